"""Settings and environments of runs, warnings, task names, and the images they were evaluated on."""

import re
from pathlib import Path
from typing import Any

import pytest
from minimal_runs import write_run, write_runs
from page_parser import no_rendering as no_rendering

from ducats.report import find_runs, report
from ducats.report.page import write_page
from ducats.report.provenance import (
    collect_cautions,
    differing_settings,
    group_environments,
    progress_message,
)
from ducats.report.run_reader import Run
from synthetic_records import change_records

# -- settings and tasks ----------------------------------------------------------------------------------


def test_settings_show_differences_between_methods(tmp_path: Path) -> None:
    shared = {"train": {"lr": 0.1, "epochs": 3}}
    write_run(tmp_path / "a", "duc", config=shared | {"query": {"name": "duc", "params": {"kappa": 10}}})
    write_run(tmp_path / "b", "random", config=shared | {"query": {"name": "random", "params": {}}})
    found = {setting.key: setting.values for setting in differing_settings(find_runs([tmp_path]))}
    assert found == {"query.name": ("duc", "random"), "query.params.kappa": ("10", "–")}


def write_folder_run(folder: Path, method: str, source: str, target: str, kappa: int = 10) -> Path:
    data = {"name": "folders", "params": {"source": source, "target": target}}
    return write_run(folder, method, config={"data": data, "query": {"params": {"kappa": kappa}}})


def test_settings_of_several_tasks_are_compared_on_one_of_them(tmp_path: Path) -> None:
    write_folder_run(tmp_path / "a", "duc", "/data/ann/photos", "/data/ann/web")
    write_folder_run(tmp_path / "b", "duc", "/data/ann/photos", "/data/ann/sketch")
    write_folder_run(tmp_path / "c", "random", "/data/ann/photos", "/data/ann/sketch", kappa=1)
    found = {setting.key: setting.values for setting in differing_settings(find_runs([tmp_path]))}
    assert found == {"query.params.kappa": ("10", "1")}
    write_folder_run(
        tmp_path / "d", "clue", "/data/ann/photos", "/data/ann/film"
    )  # shares no task with the others
    found = {setting.key: setting.values for setting in differing_settings(find_runs([tmp_path]))}
    assert found == {"query.params.kappa": ("10", "1", "10")}


def test_paths_are_cut_to_their_last_part(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "duc", config={"model": {"params": {"weights": "/data/ann/one.npz"}}})
    write_run(tmp_path / "b", "random", config={"model": {"params": {"weights": "/mnt/two.npz"}}})
    (setting,) = differing_settings(find_runs([tmp_path]))
    assert setting.values == ("one.npz", "two.npz")
    write_run(tmp_path / "c", "clue", config={"model": {"params": {"weights": "/mnt/other/one.npz"}}})
    assert differing_settings(find_runs([tmp_path]))[0].values == ("one.npz", "two.npz", "one.npz")


@pytest.mark.usefixtures("no_rendering")
def test_a_page_contains_no_local_paths(tmp_path: Path) -> None:
    write_folder_run(tmp_path / "a", "duc", "/data/ann/photos", "C:\\ann\\web")
    write_folder_run(tmp_path / "b", "random", "/data/ann/photos", "~/ann/sketch")
    for paths in ([tmp_path], [tmp_path / "a"]):
        text = write_page(find_runs(paths), tmp_path / "page.html").read_text(encoding="utf-8")
        assert "photos" in text
        assert not any(folder in text for folder in ("/ann/", "home/ann", "ann\\\\web"))


@pytest.mark.usefixtures("no_rendering")
def test_runs_of_several_tasks_show_their_task(tmp_path: Path) -> None:
    write_folder_run(tmp_path / "a", "duc", "/x/photos", "/x/web-shop")
    write_folder_run(tmp_path / "b", "random", "/x/photos", "/x/sketch")
    text = write_page(find_runs([tmp_path]), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "duc on photos-web-shop, seed 0</h2>" in text
    assert ">random on photos→sketch, seed 0</a>" in text  # in the table of contents
    _, head, *lines = text[text.index('class="every-run"') :].split("<tr>")[:4]
    assert "Task" in head
    assert [re.findall(r"<td>(.*?)</td>", line)[1] for line in lines] == ["photos-web-shop", "photos→sketch"]
    single = write_page(find_runs([tmp_path / "a", tmp_path / "a"]), tmp_path / "page.html").read_text(
        "utf-8"
    )
    assert "ducats report · duc, seed 0</p>" in single


def test_warnings_about_mixed_settings_repeated_seeds_and_other_data(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", "duc", 0, config={"train": {"lr": 0.1}, "objective": {"name": "duc"}})
    b = write_run(tmp_path / "b", "duc", 0, config={"train": {"lr": 0.2}, "objective": {"name": "duc"}})
    c = write_run(tmp_path / "c", "random", 0, config={"objective": {"name": "softmax"}})
    (a / "data.yaml").write_text("test: {images: 5}")
    (b / "data.yaml").write_text("test: {images: 6}")
    (c / "data.yaml").write_text("test: {images: 6}")
    text = " ".join(collect_cautions(find_runs([tmp_path])))
    assert "train.lr" in text
    assert "several runs with the same seed (0)" in text
    assert "2 different test sets" in text
    assert "duc with duc; random with softmax" in text


def test_consistent_runs_give_no_warning(tmp_path: Path) -> None:
    assert collect_cautions(write_runs(tmp_path, {"duc": [0.7, 0.8], "random": [0.6, 0.7]})) == []


def test_environments_are_grouped(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    other = write_run(tmp_path / "b", seed=1)
    (other / "environment.json").unlink()
    first, second = group_environments(find_runs([tmp_path]))
    assert first.facts == (("python", "3.11.7"), ("torch", "2.6.0"))
    assert (second.facts, second.run_names) == ((), ("b",))


# -- evaluated images -------------------------------------------------------------------------------------


def write_evaluated_run(folder: Path, kind: str, images: int, **more: Any) -> Path:
    """Write a run whose stages record the images they were evaluated on."""
    evaluation = {"evaluated_on": kind, "images": images}
    return change_records(write_run(folder, **more), lambda record: record | evaluation)


@pytest.mark.usefixtures("no_rendering")
def test_table_and_page_state_the_evaluated_images(tmp_path: Path) -> None:
    folders = [write_evaluated_run(tmp_path / str(n), "unlabelled", 60 + n, seed=n) for n in (0, 1)]
    sentence = "Evaluated on 60 to 61 target images without the labelled ones."
    result = report(folders, tmp_path / "out")
    assert sentence in result.table_markdown.read_text()
    assert sentence in result.page.read_text()
    assert "different kinds of images" not in result.page.read_text()


@pytest.mark.usefixtures("no_rendering")
def test_evaluation_on_unlabelled_images_gives_a_warning(tmp_path: Path) -> None:
    first = write_evaluated_run(tmp_path / "a", "unlabelled", 60, method="duc")
    second = write_evaluated_run(tmp_path / "b", "unlabelled", 60, method="random")
    page = report([first, second], tmp_path / "out").page.read_text()
    assert "is evaluated on easier ones" in page
    assert ",unlabelled," in (tmp_path / "out" / "table.csv").read_text()
    assert "easier ones" not in report([first], tmp_path / "alone").page.read_text()


@pytest.mark.usefixtures("no_rendering")
def test_runs_evaluated_on_different_images_give_a_warning(tmp_path: Path) -> None:
    first = write_evaluated_run(tmp_path / "a", "target", 80, method="duc")
    second = write_evaluated_run(tmp_path / "b", "held_out", 20, method="random")
    result = report([first, second], tmp_path / "out")
    assert "evaluated on different kinds of images" in result.page.read_text()
    assert (
        "Evaluated on 80 target images, including the labelled ones; or on 20 held-out target images, "
        "never selected for labelling."
    ) in result.table_markdown.read_text()


# -- progress --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("done", "train", "phrase"),
    [
        (1, {}, "1 epoch is done"),
        (2, {}, "2 epochs are done"),
        (1, {"epochs": 20}, "1 of 20 epochs is done"),
        (0, {"epochs": 20}, "0 of 20 epochs are done"),
    ],
)
def test_progress_is_singular_or_plural(done: int, train: dict[str, int], phrase: str) -> None:
    epochs = tuple({"kind": "epoch", "epoch": epoch} for epoch in range(1, done + 1))
    run = Run(Path("a"), "duc", 0, {"train": train}, epochs=epochs)
    assert phrase in progress_message(run)
