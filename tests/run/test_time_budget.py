"""Time budgets: number of questions, and behaviour of a run when the time is spent."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import Runner, quick
from ducats.acquisition.budget import TimeBudget, parse_time_budget
from ducats.annotation import AnnotationStore
from ducats.annotation.oracles import GroundTruthOracle, Oracle
from ducats.cli import main
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

# ---- arithmetic


@pytest.mark.parametrize(
    ("budget", "seconds"), [("30min", 1800), ("1.5h", 5400), (" 2 min ", 120), ("0.5h", 1800)]
)
def test_time_budgets(budget: str, seconds: float) -> None:
    assert parse_time_budget(budget) == TimeBudget(seconds, 5.0)


@pytest.mark.parametrize("budget", [65, "65", "5%", "40/image", "30", "30m", "min", "-3min", "30 s"])
def test_other_budgets_are_not_times(budget: int | str) -> None:
    assert parse_time_budget(budget) is None


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


def test_a_plan_has_only_one_budget(tmp_path: Path) -> None:
    components, plan = build_run(quick("acquisition.budget=1min"), RunFolder(tmp_path))
    assert plan.time_budget == TimeBudget(60, 5.0)
    with pytest.raises(UserError, match="drop one of them"):
        check_run(components, replace(plan, budget=(1, 1)))


def test_budget_in_time_is_part_of_the_identity(tmp_path: Path) -> None:
    assert quick().digest() != quick("acquisition.seconds_per_label=7").digest()
    components, plan = build_run(quick(), RunFolder(tmp_path))
    timed = replace(plan, budget=(), time_budget=TimeBudget(60.0))
    identity = run_identity(components, timed)["plan"]
    assert identity["time_budget"] == {"seconds": 60.0, "seconds_per_label": 5.0}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("acquisition.budget=1min",), "the budget is 1 min of annotation for labels"),
        (("acquisition.budget=1min",), "about 6 in the first, at 5 s each (acquisition.seconds_per_label)"),
        (("acquisition.budget=1h",), "enough for about 720 labels, but the pool has 80 images"),
        (("acquisition.budget=1min", "oracle.name=human"), "stops querying after 1 min of annotation"),
    ],
)
def test_doctor_findings_for_a_time_budget(settings: Sequence[str], words: str) -> None:
    messages = " ".join(finding.message for finding in diagnose(quick(*settings)))
    assert words in messages


# ---- runs with ground truth


def seconds_per_round(seconds: float, run_folder: RunFolder) -> list[float]:
    """Return the total seconds of the answers of each round."""
    ledger = load_ledger(run_folder)
    return [(ledger.n_units(n + 1) - ledger.n_units(n)) * seconds for n in range(ledger.n_rounds)]


def test_a_simulation_does_not_exceed_the_time(run_quickly: Runner) -> None:
    # 66 s: 6.6 answers of 5 s, then 7.2 in the remaining time.
    run_folder = run_quickly("acquisition.budget=1.1min")
    assert [r["labels"] for r in run_folder.stages()] == [0, 6, 13]
    assert sum(seconds_per_round(5.0, run_folder)) == 65
    assert load_ledger(run_folder).seconds() is None
    assert "annotation_seconds" not in run_folder.stages()[-1]


def test_when_the_time_is_spent_the_run_continues_without_labels(
    run_quickly: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = run_quickly("acquisition={budget: 1.1min, seconds_per_label: 50, after_epochs: [1, 2, 3]}")
    assert [r["labels"] for r in run_folder.stages()] == [0, 1, 1, 1]
    assert (load_ledger(run_folder).n_rounds, run_folder.finished) == (3, True)
    requests = [load_request(run_folder, number) for number in (1, 2, 3)]
    assert [len(request) for request in requests if request is not None] == [1, 0, 0]
    # All commands that read the ledger accept rounds without labels.
    out = ("--out", str(tmp_path / "report"))
    for command in (["labels", "run"], ["report", "run", *out], ["table", "run"]):
        with pytest.raises(SystemExit) as end:
            main([part if part != "run" else str(run_folder.path) for part in command])
        assert end.value.code == 0, capsys.readouterr().err
        capsys.readouterr()


def test_time_for_more_labels_than_the_pool_has(run_quickly: Runner) -> None:
    run_folder = run_quickly("acquisition.budget=1h")
    assert [r["labels"] for r in run_folder.stages()] == [0, 80, 80]
    assert run_folder.finished


# ---- pixels


def test_units_are_distributed_over_the_images_round_robin(run_pixels: Runner) -> None:
    run_folder = run_pixels("acquisition={budget: 1min, after_epochs: [1, 2]}", "task.unit=region")
    requests = [load_request(run_folder, number) for number in (1, 2)]
    units = []
    for request in requests:
        assert request is not None
        units.append([sum(len(b.unit_sizes) for b in request.blocks() if b.image == i) for i in range(5)])
        assert all(1 <= size <= 9 for block in request.blocks() for size in block.unit_sizes.tolist())
    assert units == [[2, 1, 1, 1, 1], [1, 2, 1, 1, 1]]  # 12 answers of 5 s, round-robin
    assert (load_ledger(run_folder).n_units(), seconds_per_round(5.0, run_folder)) == (12, [30.0, 30.0])


def test_time_for_single_pixels(run_pixels: Runner) -> None:
    run_folder = run_pixels("acquisition={budget: 1min, seconds_per_label: 10, after_epochs: [1, 2]}")
    assert [r["labels"] for r in run_folder.stages()] == [0, 3, 6]
    assert load_ledger(run_folder).labels_per_image().tolist() == [2, 1, 1, 1, 1]


def test_time_for_whole_images(run_pixels: Runner) -> None:
    run_folder = run_pixels(
        "acquisition={budget: 1min, seconds_per_label: 20, after_epochs: [1, 2]}", "task.unit=image"
    )
    assert [load_ledger(run_folder).n_units(n) for n in (1, 2)] == [1, 3]
    assert int((load_ledger(run_folder).labels_per_image() > 0).sum()) == 3


def test_pixels_when_the_time_is_spent(
    run_pixels: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = run_pixels("acquisition={budget: 1min, seconds_per_label: 40, after_epochs: [1, 2]}")
    assert [r["labels"] for r in run_folder.stages()] == [0, 1, 1]
    with pytest.raises(SystemExit) as end:
        main(["picks", str(run_folder.path), "--out", str(tmp_path / "picks.png")])
    assert end.value.code == 0, capsys.readouterr().err


# ---- measured seconds


class TimedOracle:
    """Oracle with true labels and measured seconds that stops after some answers."""

    def __init__(self, seconds: float, stops_after: int | None = None) -> None:
        self.oracle, self.seconds, self.stop = GroundTruthOracle(toy().ground_truth), seconds, stops_after

    def __call__(self, request: Request) -> Tensor:
        labels = self.oracle(request)
        labels[self.stop :] = UNLABELLED if self.stop is not None else labels[self.stop :]
        return labels

    def annotation_seconds(self, request: Request) -> Tensor:
        """Return the seconds per unit; the first unanswered one took a second."""
        seconds = torch.full((request.n_units,), self.seconds)
        if self.stop is not None:
            seconds[self.stop :] = 0.0
            seconds[self.stop] = 1.0
        return seconds


def with_oracle(folder: Path, oracle: Oracle, *settings: str) -> RunFolder:
    config = quick(*settings)
    components, plan = build_run(config, RunFolder(folder))
    fabric = make_fabric("cpu")
    fabric.launch()
    return run(replace(components, oracle=oracle), plan, folder, fabric=fabric)


def test_later_rounds_use_the_measured_pace(tmp_path: Path) -> None:
    run_folder = with_oracle(tmp_path / "run", TimedOracle(4.0), "acquisition.budget=1min")
    # 6 at 5 s are planned and take 24 s; the remaining 36 s are 9 at 4 s.
    assert [r["labels"] for r in run_folder.stages()] == [0, 6, 15]
    assert [r.get("annotation_seconds") for r in run_folder.stages()] == [None, 24.0, 60.0]
    assert load_ledger(run_folder).seconds() == 60.0


def test_unanswered_questions_are_not_recorded(tmp_path: Path) -> None:
    run_folder = with_oracle(tmp_path / "run", TimedOracle(19.0, stops_after=3), "acquisition.budget=1min")
    first = load_request(run_folder, 1)
    assert first is not None
    assert len(first) == 6
    assert [entry.key for entry in load_ledger(run_folder).entries()] == [
        toy().pool.keys[i] for i in first.image[:3]
    ]
    # 57 s for answers and 1 s without an answer: the remaining 2 s are shorter than one answer.
    assert load_ledger(run_folder).seconds() == 58.0
    assert [r["labels"] for r in run_folder.stages()] == [0, 3, 3]
    assert run_folder.stages()[-1]["annotation_seconds"] == 58.0


def test_with_a_label_budget_every_question_needs_an_answer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"the oracle returned {UNLABELLED} in round 1"):
        with_oracle(tmp_path / "run", TimedOracle(1.0, stops_after=3))
    assert not (tmp_path / "run" / "labels").exists()


# ---- annotators


def test_no_questions_when_the_time_is_spent(run_quickly: Runner, tmp_path: Path) -> None:
    settings = ("oracle.name=human", "acquisition.budget=1min")
    with pytest.raises(AwaitingLabels, match="round 1 waits for 6 labels"):
        run_quickly(*settings)
    store = AnnotationStore(tmp_path / "run" / "questions")
    question_round = store.open_round()
    assert question_round is not None
    assert question_round.rules.max_seconds == 60.0
    for question, seconds in zip(question_round.questions, (20.0, 25.0, 16.0), strict=False):
        store.receive([{"question": question.id, "word": "blob-1", "seconds": seconds}], channel="test")
    run_folder = run_quickly(*settings)
    assert [r["labels"] for r in run_folder.stages()] == [0, 3, 3]
    assert (load_ledger(run_folder).seconds(), run_folder.stages()[-1]["annotation_seconds"]) == (61.0, 61.0)
    assert store.round_numbers() == [1]


def test_regions_answered_in_time_are_recorded_completely(run_pixels: Runner, tmp_path: Path) -> None:
    settings = ("oracle.name=human", "task.unit=region", "acquisition={budget: 1min, after_epochs: [1, 2]}")
    with pytest.raises(AwaitingLabels):
        run_pixels(*settings)
    store = AnnotationStore(tmp_path / "run" / "questions")
    question_round = store.open_round()
    assert question_round is not None
    assert len(question_round.questions) == 6
    for question in question_round.questions[1:4]:
        store.receive([{"question": question.id, "word": "road", "seconds": 20.0}], channel="test")
    run_folder = run_pixels(*settings)
    ledger = load_ledger(run_folder)
    assert (ledger.n_rounds, ledger.n_units(), ledger.seconds()) == (2, 3, 60.0)
    areas = [question.area for question in question_round.questions[1:4]]
    assert len(ledger) == sum(length for area in areas if area for _, length in area.runs)
    assert run_folder.finished
