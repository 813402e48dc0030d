"""Whole runs on toy data: reproducibility, budget, leakage and refusals."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

import ducats
from conftest import Runner, make_runner, quick
from ducats.acquisition.queries import QUERIES
from ducats.data.domain import UNLABELLED, VOID
from ducats.data.toy import toy
from ducats.ledger import Request, load_ledger
from ducats.run import run
from ducats.run.checkpoint import load_model
from ducats.run.factory import build_run
from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import PerformanceOptions
from ducats.training.distributed import make_fabric
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import Event
from ranks import outcome


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of ``run_quickly`` without further settings."""
    return make_runner(tmp_path_factory.mktemp("plain"), quick)()


@pytest.fixture
def run_again(plain_run: RunFolder) -> Runner:
    """Run in the folder of the plain run."""
    return make_runner(plain_run.path.parent, quick)


@pytest.mark.parametrize("query", [name for name, spec in QUERIES.items() if not spec.per_pixel])
def test_every_query_spends_exactly_its_budget(run_quickly: Runner, query: str) -> None:
    run_folder = run_quickly(f"query={{name: {query}}}", "train={epochs: 3, steps_per_epoch: 2}")
    ledger = load_ledger(run_folder)
    assert (ledger.n_rounds, len(ledger)) == (2, 20)
    assert [(r["labels"], r["epoch"]) for r in run_folder.stages()] == [(0, 1), (10, 2), (20, 3)]
    ground_truth = toy().ground_truth
    assert ground_truth is not None
    keys = list(toy().pool.keys)
    assert all(entry.label == int(ground_truth[keys.index(entry.key)]) for entry in ledger.entries())


@pytest.mark.parametrize("query", [name for name, spec in QUERIES.items() if spec.per_pixel])
def test_pixel_queries_are_refused_for_classification(
    run_quickly: Runner, tmp_path: Path, query: str
) -> None:
    with pytest.raises(UserError, match=r"choose another query.name"):
        run_quickly(f"query={{name: {query}}}")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_labels_help(run_quickly: Runner) -> None:
    longer = ("train.epochs=8", "train.steps_per_epoch=12", "acquisition.budget=40")
    none = run_quickly(*longer, method="source-only", folder="none").stages()[-1]
    some = run_quickly(*longer, method="duc", folder="some").stages()[-1]
    assert none["labels"] == 0
    assert some["accuracy"] > none["accuracy"] + 0.05


def test_same_seed_same_run(run_quickly: Runner, plain_run: RunFolder) -> None:
    same, other = run_quickly(folder="a"), run_quickly("seed=2", folder="b")
    assert outcome(same.path) == outcome(plain_run.path)
    assert outcome(same.path)["labels"] != outcome(other.path)["labels"]


def test_global_random_state_does_not_affect_the_run(run_quickly: Runner) -> None:
    settings = ("query={name: spread}", "train={epochs: 3, steps_per_epoch: 2}")
    torch.manual_seed(1)
    one = run_quickly(*settings, folder="a")
    torch.rand(100)
    assert outcome(one.path) == outcome(run_quickly(*settings, folder="b").path)


def test_poisoned_ground_truth_changes_nothing_before_the_first_label(
    run_quickly: Runner, plain_run: RunFolder
) -> None:
    clean = toy()
    assert clean.ground_truth is not None
    poisoned = replace(clean, ground_truth=(clean.ground_truth[:] + 1) % 4)
    first, second = outcome(plain_run.path), outcome(run_quickly(data=poisoned).path)
    # Everything is equal up to the first selection ...
    assert first["lines"][:2] == second["lines"][:2]
    assert first["requests"][0] == second["requests"][0]
    # ... and differs from the first label on, so the labels really were poisoned.
    assert [e.label for e in first["labels"][:10]] != [e.label for e in second["labels"][:10]]
    assert first["lines"][-1] != second["lines"][-1]


def test_test_labels_do_not_affect_training_or_selection(run_quickly: Runner, plain_run: RunFolder) -> None:
    clean = toy()
    assert clean.test is not None
    poisoned = replace(clean, test=replace(clean.test, labels=(clean.test.labels[:] + 1) % 4))
    one, two = outcome(plain_run.path), outcome(run_quickly(data=poisoned).path)
    assert (one["model"], one["labels"]) == (two["model"], two["labels"])
    assert one["lines"] != two["lines"]


def test_without_a_test_set_unlabelled_images_are_evaluated(run_quickly: Runner) -> None:
    run_folder = run_quickly(data=replace(toy(), test=None))
    assert [r["labels"] for r in run_folder.stages()] == [0, 10, 20]
    assert [(r["evaluated_on"], r["images"]) for r in run_folder.stages()] == [
        ("unlabelled", 80),
        ("unlabelled", 70),
        ("unlabelled", 60),
    ]


def test_no_accuracy_without_a_test_set(tmp_path: Path) -> None:
    components, plan = build_run(quick(), RunFolder(tmp_path))
    run_folder = run(replace(components, test=None), plan, tmp_path, fabric=make_fabric("cpu"))
    assert [r["labels"] for r in run_folder.stages()] == [0, 10, 20]
    assert "accuracy" not in run_folder.stages()[-1]
    assert "evaluated_on" not in run_folder.stages()[-1]


def test_held_out_images_are_never_selected(run_quickly: Runner) -> None:
    run_folder = run_quickly(
        "evaluation.split=held_out", "evaluation.test_fraction=0.25", data=replace(toy(), test=None)
    )
    assert [(r["evaluated_on"], r["images"]) for r in run_folder.stages()] == [("held_out", 20)] * 3
    labelled_keys = {entry.key for entry in load_ledger(run_folder).entries()}
    assert len(labelled_keys) == 20
    assert run_folder.data_summary["pool"]["images"] == 60


def test_evaluation_does_not_affect_training_or_selection(run_quickly: Runner, plain_run: RunFolder) -> None:
    run_folder = run_quickly("evaluation={every_epochs: 1, split: target}")
    one, two = outcome(run_folder.path), outcome(plain_run.path)
    assert (one["model"], one["labels"]) == (two["model"], two["labels"])
    assert [(r["evaluated_on"], r["images"]) for r in run_folder.stages()] == [("target", 80)] * 3
    assert [r["epoch"] for r in one["lines"] if r["kind"] == "interim"] == [3]


def test_fully_labelled_pool_leaves_nothing_to_evaluate(run_quickly: Runner) -> None:
    run_folder = run_quickly("acquisition.budget=100%", data=replace(toy(), test=None))
    assert run_folder.finished
    last = run_folder.stages()[-1]
    assert (last["labels"], last["images"]) == (80, 0)
    assert "accuracy" not in last
    assert run_folder.stages()[0]["images"] == 80


def test_a_run_resumes_with_other_speed_settings(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818 - not an error
        """Stands for a kill."""

    def stop(event: Event) -> None:
        if event.phase == "train" and event.epoch == 2:
            raise Stop

    config = quick("train.lr=0.005")  # a high rate would amplify rounding differences
    ends = []
    for name, first, then in (
        ("plain", PerformanceOptions(), PerformanceOptions()),
        ("mixed", PerformanceOptions(fused_optimiser=True, channels_last=True), PerformanceOptions()),
        ("other", PerformanceOptions(), PerformanceOptions(fused_optimiser=True, channels_last=True)),
    ):
        components, plan = build_run(config, RunFolder(tmp_path / name))
        fabric = make_fabric("cpu")
        with pytest.raises(Stop):
            run(components, plan, tmp_path / name, fabric=fabric, performance=first, on_event=stop)
        run_folder = run(components, plan, tmp_path / name, fabric=fabric, performance=then)
        ends.append((load_model(run_folder), [e.key for e in load_ledger(run_folder).entries()]))
    for model, keys in ends[1:]:
        assert keys == ends[0][1]
        for weight, tensor in model.items():
            torch.testing.assert_close(tensor, ends[0][0][weight], rtol=1e-4, atol=1e-5)


def test_source_weight_by_epoch(run_quickly: Runner) -> None:
    whole = run_quickly(folder="a")
    halved = run_quickly("train.source_weight={0: 1.0, 1: 0.5}", folder="b")
    losses = [
        [
            r["losses"]["source/nll"]
            for r in records.read_records(run_folder.metrics_path)
            if r["kind"] == "epoch"
        ]
        for run_folder in (whole, halved)
    ]
    assert losses[0][0] == losses[1][0]
    assert losses[1][1] < 0.75 * losses[0][1]


def test_a_finished_run_is_not_repeated(plain_run: RunFolder, run_again: Runner) -> None:
    def modified() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in plain_run.path.rglob("*.*") if p.name != ".lock"}

    before = modified()
    run_again()
    assert modified() == before


def test_another_config_or_other_data_in_the_same_folder_is_refused(
    plain_run: RunFolder, run_again: Runner
) -> None:
    before, data = outcome(plain_run.path), toy()
    with pytest.raises(UserError, match=r"created with another config \(train.lr: 0.05 -> 0.01\).*--out"):
        run_again("train.lr=0.01")
    assert data.ground_truth is not None
    fewer = ducats.Images(data.pool.keys[:-1], data.pool.pixels[:-1])
    other = replace(data, pool=fewer, ground_truth=data.ground_truth[:-1])
    with pytest.raises(UserError, match=r"created with other data \(pool.images: 80 -> 79"):
        run_again(data=other)
    assert outcome(plain_run.path) == before


def test_two_processes_cannot_use_one_folder(run_quickly: Runner, tmp_path: Path) -> None:
    holder = RunFolder(tmp_path / "run")
    holder.claim({}, {})
    with pytest.raises(UserError, match="another process is working on"):
        run_quickly()
    holder.release()


def test_a_non_finite_loss_stops_with_advice(run_quickly: Runner) -> None:
    with pytest.raises(UserError, match=r"became (nan|inf).*[Ll]ower train.lr"):
        run_quickly("train.lr=1e30", "train.schedule={name: constant, params: {}}")


def test_annotators_answer_between_two_calls(
    run_quickly: Runner, tmp_path: Path, plain_run: RunFolder
) -> None:
    data = toy()
    assert data.ground_truth is not None
    class_of = {
        key: data.classes[int(label)] for key, label in zip(data.pool.keys, data.ground_truth[:], strict=True)
    }
    blind = replace(data, ground_truth=None)
    for number in (1, 2):
        with pytest.raises(AwaitingLabels, match=f"round {number} waits"):
            run_quickly(data=blind)
        folder = tmp_path / "run" / "questions" / f"round-0{number}"
        with (folder / "questions.csv").open(newline="") as file:
            keys = [row["key"] for row in csv.DictReader(file)]
        lines = [f"{key},{class_of[key]}" for key in keys]
        (folder / "answers.csv").write_text("\n".join(["key,label", *lines]) + "\n")
    with_annotators = outcome(run_quickly(data=blind).path)
    without_hints = {**with_annotators, "requests": with_annotators["requests"][1::2]}
    assert without_hints == outcome(plain_run.path)


def test_void_counts_as_spent_and_is_never_selected_or_trained_on(tmp_path: Path) -> None:
    data = toy()
    requests: list[Request] = []

    def unhelpful(request: Request) -> Tensor:
        requests.append(request)
        return torch.full_like(request.image, VOID)

    def unlabelled_only(context: ducats.QueryContext) -> Tensor:
        """Pick the first candidates."""
        return torch.arange(context.budget)

    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    components = ducats.Components(net, data.source, data.pool, unhelpful, query=unlabelled_only)
    plan = ducats.RunPlan(epochs=3, query_epochs=(1, 2), budget=(5, 5), steps_per_epoch=2)
    run_folder = ducats.adapt(components, plan, tmp_path / "run")
    assert len(load_ledger(run_folder)) == 10
    assert [r.image.tolist() for r in requests] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    targets = load_ledger(run_folder).targets()
    assert int((targets == VOID).sum()) == 10
    assert int((targets == UNLABELLED).sum()) == 70
    assert not any(
        "labelled/" in name
        for r in records.read_records(run_folder.metrics_path)
        if r["kind"] == "epoch"
        for name in r["losses"]
        if not name.startswith("un")
    )


@pytest.mark.parametrize(
    ("picks", "words"),
    [
        (lambda s: torch.arange(s.budget - 1), "4 indices instead of 5"),
        (lambda s: torch.zeros(s.budget, dtype=torch.long), "more than once"),
        (lambda s: torch.arange(s.budget) + 78, "outside"),
    ],
)
def test_invalid_query_results_are_refused(tmp_path: Path, picks: Any, words: str) -> None:
    data = toy()
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    oracle = ducats.GroundTruthOracle(data.ground_truth)
    components = ducats.Components(net, data.source, data.pool, oracle, query=picks)
    plan = ducats.RunPlan(epochs=2, query_epochs=(1,), budget=(5,), steps_per_epoch=1)
    with pytest.raises(UserError, match=words):
        ducats.adapt(components, plan, tmp_path / "r")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (ducats.RunPlan(epochs=3, query_epochs=(1,), budget=(81,)), "exceeds the pool of 80"),
        (ducats.RunPlan(epochs=3, query_epochs=(1, 2), budget=(1,)), "2 rounds but 1 budgets"),
        (ducats.RunPlan(epochs=3, query_epochs=(3,), budget=(1,)), "less than epochs=3"),
        (ducats.RunPlan(epochs=3, query_epochs=(2, 1), budget=(1, 1)), "strictly increasing"),
    ],
)
def test_invalid_plans_fail_before_training(tmp_path: Path, plan: ducats.RunPlan, words: str) -> None:
    data = toy()
    oracle = ducats.GroundTruthOracle(data.ground_truth)
    components = ducats.Components(nn.Flatten(), data.source, data.pool, oracle)
    with pytest.raises(UserError, match=words):
        ducats.adapt(components, plan, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_events_have_stage_step_and_losses(run_quickly: Runner) -> None:
    events: list[Event] = []
    run_quickly(on_event=events.append)
    train = [e for e in events if e.phase == "train"]
    assert [e.step for e in train] == list(range(1, 13))
    assert {e.steps for e in events} == {12}
    assert [e.stage for e in train] == [0] * 3 + [1] * 3 + [2] * 6
    assert {"source/nll", "source/kl", "unlabelled/u_dis"} <= train[0].values().keys()
    assert events[-1].phase == "done"
    assert events[-1].labels == 20


def test_files_of_the_run_folder(plain_run: RunFolder) -> None:
    names = {p.name for p in plain_run.path.iterdir()}
    assert {
        *("config.yaml", "data.yaml", "environment.json", "pool.json", "metrics.jsonl"),
        *("labels", "requests", "confusion", "checkpoint.pt", "model.safetensors"),
    } <= names
    assert {p.name for p in (plain_run.path / "confusion").iterdir()} == {
        f"epoch-{r['epoch']:03d}.csv" for r in plain_run.stages()
    }
    assert not list(plain_run.path.rglob("*.part"))
    assert yaml.safe_load((plain_run.path / "config.yaml").read_text())["acquisition"]["budget"] == 20
