"""Whole runs on toy data: reproducibility, budget, leakage and refusals."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import ducats
from conftest import Runner, make_runner, quick, quick_pixels
from ducats.acquisition.queries import QUERIES
from ducats.config import Config
from ducats.data.domain import UNLABELLED, AdaptationData
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.ledger import Ledger, TargetMaps, load_ledger
from ducats.objectives import duc
from ducats.run import _check_same_data, run
from ducats.run.checkpoint import load_model
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import PerformanceOptions
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError
from ducats.utils.progress import Event
from present import present
from ranks import outcome


class Task(NamedTuple):
    """Classification or segmentation: the quick config, its data, and the known labels after a run."""

    make: Callable[..., Config]
    data: AdaptationData
    targets: Callable[[Ledger], Tensor]


TASKS = {
    "images": Task(quick, toy(), lambda ledger: ledger.targets()),
    "pixels": Task(
        quick_pixels,
        streets(n_source=6, n_pool=5, n_test=3, height=16, width=32),
        lambda ledger: TargetMaps(ledger, (16, 32))[:],
    ),
}


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


@pytest.fixture
def run_task(task: Task, tmp_path: Path) -> Runner:
    """Run a quick config of the task in a folder."""
    return make_runner(tmp_path, task.make)


@pytest.fixture(scope="module")
def plain_task_run(task: Task, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of ``run_task`` without further settings."""
    return make_runner(tmp_path_factory.mktemp("plain"), task.make)()


@pytest.fixture(scope="module")
def plain_events() -> list[Event]:
    """The events of ``plain_run``."""
    return []


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory, plain_events: list[Event]) -> RunFolder:
    """A run of ``run_quickly`` without further settings."""
    return make_runner(tmp_path_factory.mktemp("plain"), quick)(on_event=plain_events.append)


@pytest.fixture
def run_again(plain_run: RunFolder) -> Runner:
    """Run in the folder of the plain run."""
    return make_runner(plain_run.path.parent, quick)


# ---- reproducibility and leakage, of images and pixels


def test_same_seed_same_run(run_task: Runner, plain_task_run: RunFolder) -> None:
    same, other = (outcome(run_task(f"seed={seed}", folder=str(seed)).path) for seed in (0, 2))
    assert same == outcome(plain_task_run.path)
    assert same["labels"] != other["labels"]


def test_unlabelled_ground_truth_changes_nothing(
    task: Task, run_task: Runner, plain_task_run: RunFolder
) -> None:
    plain, truth = outcome(plain_task_run.path), present(task.data.ground_truth)[:]
    is_unlabelled = task.targets(load_ledger(plain_task_run)) == UNLABELLED
    wrong = ((truth + 3) % len(task.data.classes)).to(truth.dtype)  # also where the label is void
    elsewhere = replace(task.data, ground_truth=torch.where(is_unlabelled, wrong, truth))
    assert outcome(run_task(folder="a", data=elsewhere).path) == plain
    # Wrong labels of selected samples: everything is equal until they are acquired, and differs afterwards.
    poisoned = replace(task.data, ground_truth=torch.where(is_unlabelled, truth, wrong))
    other = outcome(run_task(folder="b", data=poisoned).path)
    assert other["lines"][:2] == plain["lines"][:2]
    assert other["requests"][0] == plain["requests"][0]
    assert other["model"] != plain["model"]


def test_test_labels_do_not_affect_training_or_selection(
    task: Task, run_task: Runner, plain_task_run: RunFolder
) -> None:
    test = present(task.data.test)
    wrong = ((test.labels[:] + 1) % len(task.data.classes)).to(test.labels.dtype)
    poisoned = replace(task.data, test=replace(test, labels=wrong))
    one, two = outcome(plain_task_run.path), outcome(run_task(data=poisoned).path)
    assert (one["model"], one["labels"]) == (two["model"], two["labels"])
    assert one["lines"] != two["lines"]


def test_evaluation_does_not_affect_training_or_selection(
    task: Task, run_task: Runner, plain_task_run: RunFolder
) -> None:
    run_folder = run_task("evaluation={every_epochs: 1, split: target}")
    one, two = outcome(run_folder.path), outcome(plain_task_run.path)
    assert (one["model"], one["labels"]) == (two["model"], two["labels"])
    assert [r["epoch"] for r in one["lines"] if r["kind"] == "interim"] == [3]
    count = int((present(task.data.ground_truth)[:] >= 0).sum())
    assert [(r["evaluated_on"], r.get("pixels", r["images"])) for r in run_folder.stages()] == [
        ("target", count)
    ] * 3


def test_global_random_state_does_not_affect_the_run(run_quickly: Runner) -> None:
    settings = ("query={name: clue}", "train={epochs: 3, steps_per_epoch: 2}")
    torch.manual_seed(1)
    one = run_quickly(*settings, folder="a")
    torch.rand(100)
    assert outcome(one.path) == outcome(run_quickly(*settings, folder="b").path)


# ---- selection and labels


@pytest.mark.parametrize("query", [name for name, spec in QUERIES.items() if not spec.per_pixel])
def test_every_query_spends_exactly_its_budget(run_quickly: Runner, query: str) -> None:
    settings = ("train={epochs: 2, steps_per_epoch: 1}", "acquisition.after_epochs=[0, 1]")
    run_folder = run_quickly(f"query={{name: {query}}}", *settings)
    ledger, data = load_ledger(run_folder), toy()
    assert (ledger.n_rounds, len(ledger)) == (2, 20)
    assert [(r["labels"], r["epoch"]) for r in run_folder.stages()] == [(0, 0), (10, 1), (20, 2)]
    label_of = dict(zip(data.pool.keys, present(data.ground_truth)[:].tolist(), strict=True))
    assert all(entry.label == label_of[entry.key] for entry in ledger.entries())


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


def linear_components(**changes: Any) -> ducats.Components:
    data = toy()
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    oracle = ducats.GroundTruthOracle(data.ground_truth)
    return replace(ducats.Components(net, data.source, data.pool, oracle, QUERIES["duc"], duc), **changes)


@pytest.mark.parametrize(
    ("picks", "words"),
    [
        (lambda s: torch.arange(s.budget - 1), "4 indices instead of 5"),
        (lambda s: torch.zeros(s.budget, dtype=torch.long), "more than once"),
        (lambda s: torch.arange(s.budget) + 78, "outside"),
    ],
)
def test_invalid_query_results_are_refused(tmp_path: Path, picks: Any, words: str) -> None:
    plan = ducats.RunPlan(epochs=2, query_epochs=(1,), budget=(5,), steps_per_epoch=1)
    with pytest.raises(UserError, match=words):
        ducats.adapt(linear_components(query=picks), plan, tmp_path / "r")


@pytest.mark.parametrize(
    ("query_epochs", "budget", "words"),
    [
        ((1,), (81,), "exceeds the pool of 80"),
        ((1, 2), (1,), "2 rounds but 1 budgets"),
        ((3,), (1,), "less than epochs=3"),
        ((2, 1), (1, 1), "strictly increasing"),
    ],
)
def test_invalid_plans_fail_before_training(
    tmp_path: Path, query_epochs: tuple[int, ...], budget: tuple[int, ...], words: str
) -> None:
    plan = ducats.RunPlan(epochs=3, query_epochs=query_epochs, budget=budget)
    with pytest.raises(UserError, match=words):
        ducats.adapt(linear_components(), plan, tmp_path / "r")
    assert not (tmp_path / "r").exists()


# ---- evaluation


@pytest.mark.parametrize(
    ("settings", "evaluated_on", "images", "pool"),
    [
        ((), "unlabelled", [80, 70, 60], 80),
        (("evaluation={split: held_out, test_fraction: 0.25}",), "held_out", [20] * 3, 60),
    ],
)
def test_evaluation_without_a_test_set(
    run_quickly: Runner, settings: tuple[str, ...], evaluated_on: str, images: list[int], pool: int
) -> None:
    run_folder = run_quickly(*settings, data=replace(toy(), test=None))
    stages = run_folder.stages()
    assert [r["labels"] for r in stages] == [0, 10, 20]
    assert [(r["evaluated_on"], r["images"]) for r in stages] == [(evaluated_on, n) for n in images]
    assert run_folder.data_summary["pool"]["images"] == len(load_ledger(run_folder).keys) == pool


def test_no_accuracy_without_test_labels(tmp_path: Path) -> None:
    components, plan = build_run(quick(), RunFolder(tmp_path))
    stages = run(replace(components, test=None), plan, tmp_path, fabric=make_fabric("cpu")).stages()
    assert [r["labels"] for r in stages] == [0, 10, 20]
    assert not {"accuracy", "evaluated_on"} & stages[-1].keys()


def test_fully_labelled_pool_leaves_nothing_to_evaluate(run_quickly: Runner) -> None:
    run_folder = run_quickly("acquisition.budget=100%", data=replace(toy(), test=None))
    assert run_folder.finished
    first, *_, last = run_folder.stages()
    assert (first["images"], last["labels"], last["images"]) == (80, 80, 0)
    assert "accuracy" not in last


# ---- training


def test_a_run_resumes_with_other_speed_settings(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818 - not an error
        """Stands for a kill."""

    def stop(event: Event) -> None:
        if event.phase == "train" and event.epoch == 2:
            raise Stop

    config = quick("train.lr=0.005")  # a high rate would amplify rounding differences
    slow, fast = PerformanceOptions(), PerformanceOptions(fused_optimiser=True, channels_last=True)
    ends = []
    for name, first, then in (("plain", slow, slow), ("mixed", fast, slow), ("other", slow, fast)):
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


def test_source_weight_by_epoch(run_quickly: Runner, plain_run: RunFolder) -> None:
    halved_run = run_quickly("train.source_weight={0: 1.0, 1: 0.5}")
    whole, halved = (
        [record["losses"]["source/nll"] for record in run_folder.read_records("epoch")]
        for run_folder in (plain_run, halved_run)
    )
    assert whole[0] == halved[0]
    assert halved[1] < 0.75 * whole[1]


def test_a_non_finite_loss_stops_with_advice(run_quickly: Runner) -> None:
    with pytest.raises(UserError, match=r"became (nan|inf).*[Ll]ower train.lr"):
        run_quickly("train.lr=1e30", "train.schedule={name: constant, params: {}}")


# ---- the run folder


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
    fewer = ducats.Images(data.pool.keys[:-1], data.pool.pixels[:-1])
    other = replace(data, pool=fewer, ground_truth=present(data.ground_truth)[:-1])
    with pytest.raises(UserError, match=r"created with other data \(pool.images: 80 -> 79"):
        run_again(data=other)
    assert outcome(plain_run.path) == before


def test_two_processes_cannot_use_one_folder(run_quickly: Runner, tmp_path: Path) -> None:
    holder = RunFolder(tmp_path / "run")
    holder.claim({}, {})
    with pytest.raises(UserError, match="another process is working on"):
        run_quickly()
    holder.release()


@pytest.mark.usefixtures("plain_run")
def test_events_have_stage_step_and_losses(plain_events: list[Event]) -> None:
    train = [e for e in plain_events if e.phase == "train"]
    starts = [e for e in train if not e.values()]  # before the first step of each epoch, which may be slow
    assert [(e.epoch, e.step) for e in starts] == [(epoch, 3 * epoch) for epoch in range(4)]
    train = [e for e in train if e not in starts]
    assert [e.step for e in train] == list(range(1, 13))
    assert {e.steps for e in plain_events} == {12}
    assert [e.stage for e in train] == [0] * 3 + [1] * 3 + [2] * 6
    assert {"source/nll", "source/kl", "unlabelled/u_dis"} <= train[0].values().keys()
    assert (plain_events[-1].phase, plain_events[-1].labels) == ("done", 20)


def test_processes_that_read_other_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    summaries = [{"pool": {"images": images, "digest": "a"}} for images in (9, 8)]
    monkeypatch.setattr("ducats.run.on_rank_zero", lambda fabric, fn: summaries[0])
    fabric = make_fabric("cpu")
    _check_same_data(summaries[0], fabric)
    with pytest.raises(UserError, match=r"has read other data than process 0 \(pool\.images: 9 -> 8"):
        _check_same_data(summaries[1], fabric)
