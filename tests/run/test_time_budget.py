"""Time budgets: number of questions, and behaviour of a run when the time is spent."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from commands import ducats
from conftest import Runner, quick
from ducats.acquisition.budget import TimeBudget, parse_time_budget
from ducats.annotation import AnnotationStore
from ducats.annotation.oracles import GroundTruthOracle, Oracle
from ducats.data.domain import UNLABELLED
from ducats.data.toy import toy
from ducats.doctor import diagnose
from ducats.ledger import Request, load_ledger, load_request
from ducats.run import run
from ducats.run.checks import check_run
from ducats.run.components import run_identity
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils.errors import AwaitingLabels, UserError
from present import present

# ---- arithmetic


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        *(("30min", 1800), ("1.5h", 5400), (" 2 min ", 120), ("0.5h", 1800)),
        *((other, None) for other in (65, "65", "5%", "40/image", "30", "30m", "min", "-3min", "30 s")),
    ],
)
def test_time_budgets(budget: int | str, expected: float | None) -> None:
    assert parse_time_budget(budget) == (None if expected is None else TimeBudget(expected, 5.0))


@pytest.mark.parametrize(
    ("measured_seconds", "answered_units", "timed_units", "remaining_rounds", "questions"),
    [
        (None, 0, 0, 5, 12),  # 300 s at 5 s, in 5 rounds
        (None, 12, 0, 4, 12),  # none measured: 12 at 5 s are 60 s
        (36.0, 12, 12, 4, 22),  # 3 s each: 264 s left, 66 s per round
        (240.0, 12, 12, 4, 1),  # 20 s each: 60 s left, 15 s per round, but at least one question
        (240.0, 12, 12, 1, 3),
        (36.0, 15, 12, 1, 83),  # 12 measured at 3 s, 3 assumed at 5 s: 249 s left at 3 s
        (281.0, 14, 14, 1, 0),  # 19 s are shorter than one answer
        (300.0, 15, 15, 3, 0),
        (310.0, 15, 15, 3, 0),  # overdrawn
    ],
)
def test_questions_that_time_allows(
    measured_seconds: float | None,
    answered_units: int,
    timed_units: int,
    remaining_rounds: int,
    questions: int,
) -> None:
    found = TimeBudget(300).questions_in_round(
        measured_seconds, answered_units, timed_units, remaining_rounds
    )
    assert found == questions


def test_rounding_errors_do_not_cost_a_question() -> None:
    assert TimeBudget(0.3, seconds_per_label=0.1).questions_in_round(None, 0, 0, 1) == 3
    assert TimeBudget(0.3, seconds_per_label=0.1).questions_in_round(None, 2, 0, 1) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ("acquisition.budget=30min", "acquisition.growth=2"),
            "acquisition.growth=2 does not work with the time budget",
        ),
        (("acquisition.budget=1min", "acquisition.seconds_per_label=61"), "shorter than one answer"),
        (("acquisition.budget=30 sec",), r"or a time \(30min, 1.5h\)"),
    ],
)
def test_invalid_time_budgets(tmp_path: Path, settings: Sequence[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_run(quick(*settings), RunFolder(tmp_path))


def test_a_plan_has_only_one_budget_which_is_part_of_the_identity(tmp_path: Path) -> None:
    components, plan = build_run(quick("acquisition.budget=1min"), RunFolder(tmp_path))
    assert plan.time_budget == TimeBudget(60, 5.0)
    identity = run_identity(components, plan)["plan"]
    assert identity["time_budget"] == {"seconds": 60.0, "seconds_per_label": 5.0}
    with pytest.raises(UserError, match="drop one of them"):
        check_run(components, replace(plan, budget=(1, 1)))
    assert quick().digest() != quick("acquisition.seconds_per_label=7").digest()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ("acquisition.budget=1min",),
            "the budget is 1 min of annotation for labels.* about 6 in the first, at 5 s each",
        ),
        (("acquisition.budget=1h",), "enough for about 720 labels, but the pool has 80 images"),
        (("acquisition.budget=1min", "oracle.name=human"), "stops querying after 1 min of annotation"),
    ],
)
def test_doctor_findings_for_a_time_budget(settings: Sequence[str], words: str) -> None:
    messages = " ".join(finding.message for finding in diagnose(quick(*settings)))
    assert re.search(words, messages)


# ---- runs with ground truth


@pytest.mark.parametrize(
    ("budget", "labels"),
    [
        ("1.1min", [0, 6, 13]),  # 66 s: 6.6 answers of 5 s, then 7.2 in the remaining time
        ("1h", [0, 80, 80]),  # time for more labels than the pool has
    ],
)
def test_a_simulation_does_not_exceed_the_time(run_quickly: Runner, budget: str, labels: list[int]) -> None:
    run_folder = run_quickly(f"acquisition.budget={budget}")
    assert [r["labels"] for r in run_folder.stages()] == labels
    assert load_ledger(run_folder).seconds() is None
    assert "annotation_seconds" not in run_folder.stages()[-1]


def test_when_the_time_is_spent_the_run_continues_without_labels(run_quickly: Runner, tmp_path: Path) -> None:
    run_folder = run_quickly("acquisition={budget: 1.1min, seconds_per_label: 50, after_epochs: [1, 2, 3]}")
    assert [r["labels"] for r in run_folder.stages()] == [0, 1, 1, 1]
    assert (load_ledger(run_folder).n_rounds, run_folder.finished) == (3, True)
    assert [len(present(load_request(run_folder, number))) for number in (1, 2, 3)] == [1, 0, 0]
    # All commands that read the ledger accept rounds without labels.
    for command, *options in (("labels",), ("report", "--out", tmp_path / "report"), ("table",)):
        assert ducats(command, run_folder.path, *options) == 0


def test_pixels_when_the_time_is_spent(run_pixels: Runner, tmp_path: Path) -> None:
    run_folder = run_pixels("acquisition={budget: 1min, seconds_per_label: 40, after_epochs: [1, 2]}")
    assert [r["labels"] for r in run_folder.stages()] == [0, 1, 1]
    assert ducats("picks", run_folder.path, "--out", tmp_path / "picks.png") == 0


@pytest.mark.parametrize(
    ("unit", "seconds", "units_per_image"),
    [
        ("region", 5, [[2, 1, 1, 1, 1], [1, 2, 1, 1, 1]]),
        ("pixel", 10, [[1, 1, 1, 0, 0], [1, 0, 0, 1, 1]]),
    ],
)
def test_units_are_distributed_over_the_images_round_robin(
    run_pixels: Runner, unit: str, seconds: int, units_per_image: list[list[int]]
) -> None:
    acquisition = f"acquisition={{budget: 1min, seconds_per_label: {seconds}, after_epochs: [1, 2]}}"
    run_folder = run_pixels(acquisition, f"task.unit={unit}")
    for number, expected in enumerate(units_per_image, start=1):
        blocks = present(load_request(run_folder, number)).blocks()
        units = {block.image: block.unit_sizes for block in blocks}
        assert [len(units.get(image, ())) for image in range(5)] == expected
        assert all(1 <= size <= 9 for sizes in units.values() for size in sizes.tolist())
    n_units = sum(map(sum, units_per_image))
    assert load_ledger(run_folder).n_units() == n_units == 60 / seconds


def test_time_for_whole_images(run_pixels: Runner) -> None:
    acquisition = "acquisition={budget: 1min, seconds_per_label: 20, after_epochs: [1, 2]}"
    ledger = load_ledger(run_pixels(acquisition, "task.unit=image"))
    assert [ledger.n_units(n) for n in (1, 2)] == [1, 3]
    assert int((ledger.labels_per_image() > 0).sum()) == 3


# ---- measured seconds


class TimedOracle:
    """Oracle with true labels and measured seconds that stops after three answers."""

    def __init__(self, seconds: float) -> None:
        self.oracle, self.seconds = GroundTruthOracle(toy().ground_truth), seconds

    def __call__(self, request: Request) -> Tensor:
        labels = self.oracle(request)
        labels[3:] = UNLABELLED
        return labels

    def annotation_seconds(self, request: Request) -> Tensor:
        """Return the seconds per unit; the first unanswered one took a second."""
        return torch.tensor([*[self.seconds] * 3, 1.0, *[0.0] * (request.n_units - 4)])


def with_oracle(folder: Path, oracle: Oracle, *settings: str) -> RunFolder:
    config = quick(*settings)
    components, plan = build_run(config, RunFolder(folder))
    fabric = make_fabric("cpu")
    fabric.launch()
    return run(replace(components, oracle=oracle), plan, folder, fabric=fabric)


def test_unanswered_questions_are_not_recorded(tmp_path: Path) -> None:
    run_folder = with_oracle(tmp_path / "run", TimedOracle(19.0), "acquisition.budget=1min")
    first = present(load_request(run_folder, 1))
    assert len(first) == 6
    labelled_keys = [entry.key for entry in load_ledger(run_folder).entries()]
    assert labelled_keys == [toy().pool.keys[i] for i in first.image[:3]]
    # 57 s for answers and 1 s without an answer: the remaining 2 s are shorter than one answer.
    assert load_ledger(run_folder).seconds() == 58.0
    assert [r["labels"] for r in run_folder.stages()] == [0, 3, 3]
    assert run_folder.stages()[-1]["annotation_seconds"] == 58.0


def test_with_a_label_budget_every_question_needs_an_answer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"the oracle returned {UNLABELLED} in round 1"):
        with_oracle(tmp_path / "run", TimedOracle(1.0))
    assert not (tmp_path / "run" / "labels").exists()


# ---- annotators


def test_no_questions_when_the_time_is_spent(run_quickly: Runner, tmp_path: Path) -> None:
    settings = ("oracle.name=human", "acquisition.budget=1min")
    with pytest.raises(AwaitingLabels, match="round 1 waits for 6 labels"):
        run_quickly(*settings)
    store = AnnotationStore(tmp_path / "run" / "questions")
    question_round = present(store.open_round())
    assert question_round.rules.max_seconds == 60.0
    for question, seconds in zip(question_round.questions, (20.0, 25.0, 16.0, None), strict=False):
        store.receive([{"question": question.id, "word": "blob-1", "seconds": seconds}], channel="test")
    run_folder = run_quickly(*settings)
    assert [r["labels"] for r in run_folder.stages()] == [0, 4, 4]
    last = run_folder.stages()[-1]
    assert (load_ledger(run_folder).seconds(), last["annotation_seconds"]) == (61.0, 61.0)
    assert (last["timed_units"], last["annotation_units"]) == (3, 4)
    assert store.round_numbers() == [1]


def test_regions_answered_in_time_are_recorded_completely(run_pixels: Runner, tmp_path: Path) -> None:
    settings = ("oracle.name=human", "task.unit=region", "acquisition={budget: 1min, after_epochs: [1, 2]}")
    with pytest.raises(AwaitingLabels):
        run_pixels(*settings)
    store = AnnotationStore(tmp_path / "run" / "questions")
    question_round = present(store.open_round())
    assert len(question_round.questions) == 6
    for question in question_round.questions[1:4]:
        store.receive([{"question": question.id, "word": "road", "seconds": 20.0}], channel="test")
    run_folder = run_pixels(*settings)
    ledger = load_ledger(run_folder)
    assert (ledger.n_rounds, ledger.n_units(), ledger.seconds()) == (2, 3, 60.0)
    areas = [question.area for question in question_round.questions[1:4]]
    assert len(ledger) == sum(length for area in areas if area for _, length in area.runs)
    assert run_folder.finished
