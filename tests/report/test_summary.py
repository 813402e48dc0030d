"""The first screen of a page: verdict, curve, cost and next steps, with commands that can be typed."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from page_parser import no_rendering as no_rendering
from page_parser import write_confusion
from synthetic_sweeps import write_sweep_run

from ducats.acquisition.budget import parse_budget, parse_time_budget, split_pixels
from ducats.cli import app
from ducats.report import report_page
from ducats.report.method_results import aggregate_methods
from ducats.report.next_steps import NextStep, steps_after_comparison, steps_after_run
from ducats.report.run_reader import Run, find_runs, read_run
from ducats.report.run_section.class_results import read_class_results
from ducats.report.run_section.verdict import make_verdict
from ducats.runfolder import checksums
from ducats.runfolder.snapshot_files import Snapshot, load_snapshot
from synthetic_runs import write_pixel_run, write_run

pytestmark = pytest.mark.usefixtures("no_rendering")
UNMEASURED_KEYS = ("kind", "stage", "epoch", "labels", "seconds", "losses")


def first_screen(*folders: Path) -> str:
    page = report_page(folders, folders[0].parent / "page.html").page.read_text(encoding="utf-8")
    return page[page.index("<header") : page.index("</header>")]


def forget_scores(folder: Path) -> Path:
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [{key: value for key, value in record.items() if key in UNMEASURED_KEYS} for record in records]
    path.write_text("".join(json.dumps(record) + "\n" for record in kept))
    return folder


def single_run_steps(run: Run, others: Sequence[Run] = ()) -> dict[str, NextStep]:
    steps = steps_after_run(run, make_verdict(run, others), read_class_results(run), "classes")
    return {step.action: step for step in steps}


def test_one_run_shows_gain_curve_cost_and_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a run", rounds=3, pool=60, seconds_per_label=3.0)
    write_confusion(folder, 20, 10)
    text = first_screen(folder)
    assert re.search(r"<h1>Accuracy rose by .* with 30 labels", text)
    assert 'aria-label="accuracy over labels' in text
    tiles = re.findall(r'<div><span class="soft">(.*?)</span><b>(.*?)</b>', text)
    assert tiles == [("Labels", "30"), ("People", "1.5 min"), ("Machine", "8 s")]
    assert "of 60 target images (50%)" in text
    assert "30 of 31 answers timed" in text
    actions = re.findall(r"<li><b>(?:<a.*?>)?(.*?)(?:</a>)?</b>", text)
    assert actions == ["Label more.", "Look at class 1.", "Compare with random labels.", "Use the model."]


def test_the_page_has_each_figure_once_and_hides_details(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=2, pool=60)
    page = report_page([folder], tmp_path / "page.html").page.read_text(encoding="utf-8")
    assert page.count('aria-label="accuracy over labels') == 1
    names = ("verdict", "curve", "classes", "selections", "selection-figures", "paper", "costs", "provenance")
    for name in names:
        fold = re.search(rf"<details([^>]*)><summary>[^\n]*\n<section id=\"run-1-{name}\"", page)
        assert fold is not None, name
        assert ("open" in fold[1]) == (name in ("classes", "selections"))


def test_a_run_without_truth_says_so_and_asks_for_a_test_set(tmp_path: Path) -> None:
    folder = forget_scores(write_run(tmp_path / "a", rounds=2, pool=60))
    text = first_screen(folder)
    assert "the gain from 20 labels is unknown" in text
    assert "No curve" in text
    assert "ducats evaluate a --data TEST" in text
    assert "Label more" not in text
    assert "Compare with random" not in text


def test_several_runs_show_the_comparison_and_a_run_of_the_best_method(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{method}-{seed}", method, seed, rounds=2, pool=60, snapshots=False)
        for method in ("random", "duc")
        for seed in (0, 1)
    ]
    text = first_screen(*folders)
    assert "<h1>duc has the highest mean accuracy" in text
    assert 'aria-label="accuracy over labels' in text
    assert "in 4 runs" in text
    assert "ducats run -c duc-0/config.yaml --seed 2" in text
    assert "ducats export duc-0" in text


def test_more_seeds_are_recommended_for_the_method_with_the_fewest(tmp_path: Path) -> None:
    for method, n_seeds in (("duc", 5), ("random", 2)):
        for seed in range(n_seeds):
            write_run(tmp_path / f"{method}-{seed}", method, seed, rounds=2, pool=60, snapshots=False)
    runs = find_runs([tmp_path])
    steps = {step.action: step for step in steps_after_comparison(runs[0], runs, aggregate_methods(runs))}
    assert steps["Run more seeds."].command == "ducats run -c random-0/config.yaml --seed 2"
    assert "random has 2 seeds" in steps["Run more seeds."].reason


def test_a_sweep_shows_the_mean_over_tasks(tmp_path: Path) -> None:
    folders = [
        write_sweep_run(tmp_path, method, task, 0, accuracy)
        for method, accuracy in (("clue", 0.6), ("duc", 0.7))
        for task in ("Ar-Cl", "Cl-Ar")
    ]
    text = first_screen(*folders)
    assert "mean over 2 tasks" in text
    assert "ducats report office_home-Ar-Cl-duc-0 --out run.html" in text


def test_segmentation_counts_pixels_and_scales_its_budget(tmp_path: Path) -> None:
    folder = write_pixel_run(tmp_path / "a", rounds=4, pool=4, ious=(0.3, 0.4, 0.48, 0.54, 0.6))
    text = first_screen(folder)
    assert '<span class="soft">Labelled pixels</span><b>128</b>' in text
    assert "mIoU rose" in text
    assert single_run_steps(read_run(folder))["Label more."].command.endswith("--budget 40/image")


def test_labelling_advice_follows_the_forecast(tmp_path: Path) -> None:
    flat = read_run(write_run(tmp_path / "flat", rounds=4, accuracies=(0.5, 0.88, 0.9, 0.9, 0.9)))
    assert "Label more." not in single_run_steps(flat)
    people = write_run(tmp_path / "people", rounds=4, accuracies=(0.5, 0.6, 0.68, 0.74, 0.78))
    (people / "questions").mkdir()
    step = single_run_steps(read_run(people))["Label more."]
    assert step.command == "ducats score people TARGET --budget 10 --exclude-labelled --out next"


def test_another_run_does_not_ask_annotators_again(tmp_path: Path) -> None:
    images = write_run(tmp_path / "images", rounds=2, pool=60, snapshots=False)
    ious = (0.3, 0.4, 0.48, 0.54, 0.6)
    pixels = write_pixel_run(tmp_path / "pixels", rounds=4, pool=4, ious=ious, snapshots=False)
    step = single_run_steps(read_run(images))["Compare with random labels."]
    assert (step.command.endswith("=random"), "It takes as many labels" in step.reason) == (True, True)
    for folder in (images, pixels):
        (folder / "questions").mkdir()
    step = single_run_steps(read_run(images))["Compare with random labels."]
    assert step.command == "ducats run -c images/config.yaml --set query.name=random --answers images"
    assert "at most as many labels" in step.reason
    step = single_run_steps(read_run(pixels))["Label more."]
    assert step.command == "ducats run -c pixels/config.yaml --budget 40/image --answers pixels"
    app.parse_args(shlex.split(step.command)[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    ("budget", "larger"),
    [
        (12_000, "15000"),
        (45, "57"),
        ("1.1%", "1.375%"),
        ("97%", "100%"),
        ("9000min", "11250min"),
        ("1.3h", "1.625h"),
        ("41/image", "52/image"),
    ],
)
def test_the_recommended_budget_can_be_typed(tmp_path: Path, budget: int | str, larger: str) -> None:
    folder = write_run(tmp_path / "a", rounds=4, accuracies=(0.5, 0.6, 0.68, 0.74, 0.78), snapshots=False)
    run = read_run(folder)
    run = replace(run, config={**run.config, "acquisition": {"budget": budget}})
    command = single_run_steps(run)["Label more."].command
    assert command == f"ducats run -c a/config.yaml --budget {larger}"
    if larger.endswith("image"):
        split_pixels(larger, [100], 4)
    elif parse_time_budget(larger) is None:
        parse_budget(larger)


def test_an_unfinished_run_is_finished_first(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", rounds=2, finished=False, snapshots=False))
    assert next(iter(single_run_steps(run))) == "Finish the run."
    assert "Use the model." not in single_run_steps(run)
    (run.folder / "questions").mkdir()
    (run.folder / "labels" / "round-02.npz").unlink()
    step = single_run_steps(run)["Answer the open questions."]
    assert step.command == "ducats label a"


def test_a_round_that_needs_label_pngs_names_their_folder(tmp_path: Path) -> None:
    run = read_run(write_pixel_run(tmp_path / "a", rounds=2, finished=False, snapshots=False))
    (run.folder / "labels" / "round-02.npz").unlink()
    folder = run.folder / "questions" / "round-02"
    (folder / "masks").mkdir(parents=True)
    step = single_run_steps(run)["Answer the open questions."]
    assert "Answer it with label PNGs in a/questions/round-02/answers/, then" in step.reason
    assert step.command == ""
    (folder / "rules.json").touch()  # the page can ask the questions, too
    step = single_run_steps(run)["Answer the open questions."]
    assert "Answer it with `ducats label`, then" in step.reason
    assert step.command == "ducats label a"


def test_no_step_needs_weights_that_were_deleted(tmp_path: Path) -> None:
    accuracies = (0.5, 0.6, 0.68, 0.74, 0.78)
    measured = write_run(tmp_path / "a", rounds=4, accuracies=accuracies, snapshots=False)
    unmeasured = forget_scores(write_run(tmp_path / "b", rounds=2, snapshots=False))
    for folder in (measured, unmeasured):
        (folder / "questions").mkdir()
        checksums.create(folder)
        (folder / "model.safetensors").unlink()
    runs = find_runs([tmp_path])
    assert all(run.finished for run in runs)
    steps = [step for run in runs for step in single_run_steps(run).values()]
    commands = {shlex.split(step.command)[1] for step in steps if step.command}
    assert commands == {"run"}
    assert {"Label more.", "Set aside a test set."} < {step.action for step in steps}
    assert "Run the same `ducats run` command again" in steps[-1].reason


def test_every_command_of_a_step_parses(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "an odd name", rounds=3, pool=60),
        write_run(tmp_path / "random", "random", rounds=3, pool=60),
        write_pixel_run(tmp_path / "pixels", rounds=3, pool=3),
        forget_scores(write_run(tmp_path / "unmeasured", rounds=2, pool=60)),
        write_run(tmp_path / "open", rounds=2, finished=False),
    ]
    (folders[4] / "questions").mkdir()
    runs = find_runs(folders)
    steps = [step for run in runs for step in single_run_steps(run).values()]
    steps += steps_after_comparison(runs[0], runs[:2], aggregate_methods(runs[:2]))
    commands = {step.command for step in steps if step.command}
    assert {shlex.split(command)[1] for command in commands} >= {"run", "export", "evaluate"}
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "ducats"
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_commands_show_relative_folders_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "runs" / "a", rounds=2, pool=60, snapshots=False)
    monkeypatch.chdir(tmp_path)
    assert single_run_steps(read_run(Path("runs/a")))["Use the model."].command == "ducats export runs/a"
    absolute = single_run_steps(read_run(tmp_path / "runs" / "a"))
    assert absolute["Use the model."].command == "ducats export a"


def test_the_figures_of_a_page_read_each_snapshot_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "a", rounds=2, per_round=4, pool=40, source=20)
    loaded = []

    def load(path: Path) -> Snapshot:
        loaded.append(path.name)
        return load_snapshot(path)

    monkeypatch.setattr("ducats.runfolder.snapshot_files.load_snapshot", load)
    report_page([folder], tmp_path / "page.html")
    assert sorted(loaded) == sorted(path.name for path in (folder / "snapshots").glob("*.npz"))
