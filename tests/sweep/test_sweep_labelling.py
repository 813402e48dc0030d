"""Sweeps whose labels come from people: cost, questions for all runs at once, shared answers."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from commands import Capture, ducats, read_csv, write_images
from ducats.annotation import AnnotationStore
from ducats.annotation.oracles import HumanOracle
from ducats.config.options import DataOptions
from ducats.data.domain import Images
from ducats.data.toy import toy
from ducats.ledger import Request
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep import SweepFilter, SweepRun, count_labels, labelling_costs, run_sweep_with_people
from ducats.sweep.jobs import JobEnd, SweepJob
from ducats.sweep.runner import SweepOutcome
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.files import write_csv_atomically
from sweep_helpers import make_runs

CLASSES = ("cat", "dog")
POOL = Images(
    tuple(f"{i}.png" for i in range(6)), torch.arange(6 * 3 * 20, dtype=torch.uint8).reshape(6, 3, 4, 5)
)
POLL_SECONDS = 7
SIZES = torch.tensor([[4, 5]] * 6)
Requests = dict[str, list[Request]]  # of each round, by method


def images(number: int, *indices: int) -> Request:
    return Request(number, torch.tensor(indices), torch.zeros(len(indices), dtype=torch.long))


def pixels(number: int, image: int, *positions: int, whole: bool = False) -> Request:
    unit_sizes = torch.tensor([len(positions)]) if whole else None
    return Request(number, torch.full((len(positions),), image), torch.tensor(positions), unit_sizes)


class FakeBackend:
    """Executes runs that only ask for labels, in this process."""

    poll_seconds = 0.0

    def __init__(self, requests: Requests, options: Callable[[str], dict[str, Any]]) -> None:
        self.requests, self.options = requests, options
        self.started: list[str] = []  # methods
        self.labels: dict[str, list[list[int]]] = {}  # of each round, by method
        self._ends: list[JobEnd] = []

    def free_slots(self) -> int:
        return 1

    def submit(self, jobs: Sequence[SweepJob]) -> list[str]:
        for job in jobs:
            self.started.append(job.sweep_run.method)
            self._ends.append(JobEnd(job.name, self._run(job)))
        return ["here"] * len(jobs)

    def _run(self, job: SweepJob) -> int:
        method, run_folder = job.sweep_run.method, RunFolder(job.folder)
        folders = [
            Path(word)
            for flag, word in zip(job.arguments, job.arguments[1:], strict=False)
            if flag == "--answers"
        ]
        job.folder.mkdir(exist_ok=True)
        run_folder.config_path.touch()
        oracle = HumanOracle(
            run_folder.questions_path, POOL, CLASSES, shared_answers=folders, **self.options(method)
        )
        for request in self.requests[method]:
            if request.round not in run_folder.labelled_rounds():
                try:
                    labels = oracle(request)
                except AwaitingLabels:
                    return 3
                self.labels.setdefault(method, []).append(labels.tolist())
                run_folder.labels_path.mkdir(exist_ok=True)
                (run_folder.labels_path / f"round-{request.round:02d}.npz").touch()
        run_folder.model_path.touch()
        return 0

    def pop_finished(self) -> list[JobEnd]:
        ends, self._ends = self._ends, []
        return ends

    def stop(self) -> str:
        return ""


class PeopleSweep:
    """A sweep over two methods, `random` and `duc`, that can be resumed."""

    def __init__(self, folder: Path, random: list[Request], duc: list[Request], **options: Any) -> None:
        self.runs = make_runs(folder, methods=["random", "duc"])
        self.out = folder / "out"
        of_method: dict[str, Any] = options.pop("of_duc", {})
        self.backend = FakeBackend(
            {"random": random, "duc": duc},
            lambda method: {**options, **(of_method if method == "duc" else {})},
        )

    def resume(self, **more: Any) -> tuple[SweepOutcome, str]:
        """Return the outcome and the output; `started` has the methods that were started."""
        text = io.StringIO()
        self.backend.started.clear()
        outcome = run_sweep_with_people(
            self.runs,
            self.out,
            self.backend,
            Console(file=text, width=10_000),
            people=[run.name for run in self.runs],
            folders=[self.out],
            **more,
        )
        return outcome, text.getvalue()

    def round_folder(self, number: int) -> Path:
        return self.out / "questions" / f"round-{number:02d}"

    def asked(self, number: int) -> list[str]:
        return [
            question.id
            for question in AnnotationStore(self.out / "questions").question_round(number).questions
        ]

    def answer(self, number: int, words: dict[str, str], name: str = "answers.csv") -> None:
        rows = [[key, word] for key, word in words.items()]
        write_csv_atomically(self.round_folder(number) / name, ["key", "label"], rows)

    def run_of(self, method: str) -> SweepRun:
        return next(run for run in self.runs if run.method == method)


def test_people_answer_once_for_all_runs(tmp_path: Path) -> None:
    sweep = PeopleSweep(
        tmp_path, random=[images(1, 1, 4), images(2, 3, 5)], duc=[images(1, 0, 1), images(2, 2, 3)]
    )
    outcome, output = sweep.resume()
    assert (outcome.exit_code, len(outcome.waiting)) == (3, 2)
    assert "2 runs wait for 3 labels (asked 4 times). To answer, open the labelling page with" in output
    assert f"ducats label {sweep.out}" in output
    assert sweep.asked(1) == ["1.png", "4.png", "0.png"]
    table = read_csv(sweep.round_folder(1) / "questions.csv")
    assert all((sweep.round_folder(1) / row["thumbnail"]).is_file() for row in table)

    assert sweep.resume()[1].count("started") == 0  # nothing was answered, so nothing is started
    assert sweep.backend.started == []
    assert not sweep.round_folder(2).exists()  # people may be answering the first

    sweep.answer(1, {"0.png": "cat", "1.png": "dog"})
    outcome, output = sweep.resume()
    assert sweep.backend.started == ["duc"]  # `random` still waits
    assert "2 runs wait for 3 labels" in output
    assert sweep.asked(2) == ["4.png", "2.png", "3.png"]

    sweep.answer(1, {"0.png": "cat", "1.png": "dog", "4.png": "void"})  # also in the older file
    sweep.answer(2, {"2.png": "dog", "3.png": "cat"})
    outcome, output = sweep.resume()
    assert len(outcome.done) == 1
    assert "1 run waits for 1 label." in output
    store = AnnotationStore(sweep.out / "questions")
    store.receive([{"question": "5.png", "word": "cat", "annotator": "anna"}], channel="page")
    outcome, output = sweep.resume()
    assert outcome.exit_code == 0
    assert sweep.backend.labels == {"duc": [[0, 1], [1, 0]], "random": [[1, -2], [0, 0]]}
    assert "2 runs asked for 8 labels; 6 were answered by people, 2 taken from the shared answers" in output


def test_a_run_continues_with_what_people_answered_for_another(tmp_path: Path) -> None:
    sweep = PeopleSweep(tmp_path, random=[images(1, 2)], duc=[images(1, 2)])
    sweep.resume()
    run = sweep.run_of("duc").folder(sweep.out)  # answered there, not in the folder of the sweep
    (run / "questions" / "round-01" / "answers.csv").write_text("key,label\n2.png,dog\n")
    outcome, output = sweep.resume()
    assert (outcome.exit_code, sweep.backend.labels) == (0, {"random": [[1]], "duc": [[1]]})
    assert "2 runs asked for 2 labels; 1 was answered by people, 1 taken from the shared answers" in output


def test_votes_are_kept_when_a_question_is_asked_again(tmp_path: Path) -> None:
    sweep = PeopleSweep(
        tmp_path, random=[images(1, 2)], duc=[images(1, 3), images(2, 4)], rule="majority", min_annotators=2
    )
    sweep.resume()
    sweep.answer(1, {"2.png": "dog", "3.png": "dog"}, "answers-anna.csv")
    sweep.answer(1, {"3.png": "dog"}, "answers-bob.csv")
    sweep.resume()
    assert sweep.asked(2) == ["2.png", "4.png"]
    store = AnnotationStore(sweep.out / "questions")
    assert [vote.annotator for vote in store.status("2.png").votes] == ["anna"]
    sweep.answer(2, {"2.png": "dog", "4.png": "cat"}, "answers-bob.csv")
    sweep.answer(2, {"4.png": "cat"}, "answers-anna.csv")
    assert sweep.resume()[0].exit_code == 0
    assert sweep.backend.labels == {"random": [[1]], "duc": [[1], [0]]}


def test_invalid_answers_are_told_all_at_once(tmp_path: Path) -> None:
    sweep = PeopleSweep(tmp_path, random=[images(1, 2)], duc=[images(1, 3)])
    sweep.resume()
    sweep.answer(1, {"2.png": "bird", "9.png": "cat", "3.png": "cat"})
    with pytest.raises(
        UserError, match=r"(?s)line 2: 'bird' is not a class.*line 3: '9.png' is not a question"
    ):
        sweep.resume()
    sweep.answer(1, {"2.png": "dog", "3.png": "cat"})
    assert sweep.resume()[0].exit_code == 0


def test_runs_with_other_rules_are_asked_on_their_own(tmp_path: Path) -> None:
    sweep = PeopleSweep(tmp_path, random=[images(1, 2, 3)], duc=[images(1, 3)], of_duc={"rule": "unanimous"})
    output = sweep.resume()[1]
    duc = sweep.run_of("duc")
    assert sweep.asked(1) == ["2.png", "3.png"]
    assert (
        f"{duc.name} waits for 1 answer with other classes or rules: `ducats label {duc.folder(sweep.out)}`"
        in output
    )


def test_the_sweep_may_wait_for_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = PeopleSweep(tmp_path, random=[images(1, 2)], duc=[images(1, 2), images(2, 3)])
    words = iter(["bird", "dog", "", "cat"])  # wrong, corrected, nothing yet

    def answer_instead(seconds: float) -> None:
        if seconds != POLL_SECONDS:
            return  # between two polls of the backend
        number = max(int(path.name[-2:]) for path in sweep.out.glob("questions/round-*"))
        sweep.answer(number, dict.fromkeys(sweep.asked(number), next(words)))

    monkeypatch.setattr("time.sleep", answer_instead)
    outcome, output = sweep.resume(poll_seconds=POLL_SECONDS)
    assert (outcome.exit_code, list(words)) == (0, [])
    assert output.count(f"--wait: checking every {POLL_SECONDS} s") == 2
    assert output.count("'bird' is not a class") == 1


def test_a_typo_does_not_end_a_sweep_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = PeopleSweep(tmp_path, random=[images(1, 2), images(2, 4)], duc=[images(1, 3)])
    answers = iter([(1, {"2.png": "dog", "3.png": "bird"}), (2, {"3.png": "cat", "4.png": "cat"})])

    def answer_instead(seconds: float) -> None:
        if seconds == POLL_SECONDS:
            sweep.answer(*next(answers))

    monkeypatch.setattr("time.sleep", answer_instead)
    outcome, output = sweep.resume(poll_seconds=POLL_SECONDS)
    assert (outcome.exit_code, sweep.asked(2)) == (0, ["4.png", "3.png"])
    assert output.count("'bird' is not a class") == 1
    assert sweep.resume()[0].exit_code == 0  # the typo is still there, in a round that was asked again


# ---- pixels


def save_map(folder: Path, name: str, values: Any) -> None:
    (folder / "answers").mkdir(exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8).reshape(4, 5)).save(folder / "answers" / name)


def test_pixels_of_all_runs_are_asked_in_one_mask(tmp_path: Path) -> None:
    sweep = PeopleSweep(
        tmp_path, random=[pixels(1, 3, 7, 8)], duc=[pixels(1, 3, 8, 9), pixels(2, 3, 1)], sizes=SIZES
    )
    assert "2 runs wait for 3 labels (asked 4 times)" in sweep.resume()[1]
    with Image.open(sweep.round_folder(1) / "masks" / "3.png") as opened:
        mask = np.asarray(opened)
    assert np.flatnonzero(mask).tolist() == [7, 8, 9]
    assert [row["id"] for row in read_csv(sweep.round_folder(1) / "pixels.csv")] == sweep.asked(1)
    write_csv_atomically(sweep.round_folder(1) / "answers.csv", ["id", "label"], [["3.png#1,3", "dog"]])
    values = np.full(20, 254)
    values[[7, 9, 1]] = 0, 1, 1  # pixel 1 was not asked for
    save_map(sweep.round_folder(1), "3.png", values)
    sweep.resume()
    assert sweep.backend.labels == {"random": [[0, 1]], "duc": [[1, 1]]}
    assert sweep.asked(2) == ["3.png#0,1"]
    values[1] = 0
    save_map(sweep.round_folder(2), "3.png", values)
    assert sweep.resume()[0].exit_code == 0
    assert sweep.backend.labels["duc"] == [[1, 1], [0]]
    count = count_labels(sweep.runs, sweep.out)
    assert (count.labels, count.given) == (5, 4)


def test_regions_with_the_same_centre_are_asked_once_each(tmp_path: Path) -> None:
    row, column = pixels(1, 3, 6, 7, 8, whole=True), pixels(1, 3, 2, 7, 12, whole=True)
    sweep = PeopleSweep(tmp_path, random=[row], duc=[column], sizes=SIZES, unit="region")
    for _ in range(2):
        assert "2 runs wait for 2 labels. To answer" in sweep.resume()[1]
    assert not sweep.round_folder(2).exists()
    assert sweep.asked(1) == ["3.png#1,2", "3.png#1,2 (2)"]
    rows = zip(sweep.asked(1), ["cat", "dog"], strict=True)
    write_csv_atomically(sweep.round_folder(1) / "answers.csv", ["id", "label"], list(rows))
    assert sweep.resume()[0].exit_code == 0
    assert sweep.backend.labels == {"random": [[0] * 3], "duc": [[1] * 3]}


def test_an_image_labelled_as_a_whole_answers_every_run(tmp_path: Path) -> None:
    whole = pixels(1, 3, *range(20), whole=True)
    sweep = PeopleSweep(tmp_path, random=[whole], duc=[whole], sizes=SIZES, unit="image")
    output = sweep.resume()[1]
    assert "2 runs wait for 1 image (asked 2 times). To answer, see" in output
    values = np.arange(20) % 2
    values[3] = 255
    save_map(sweep.round_folder(1), "3.png", values)
    outcome, output = sweep.resume()
    expected = np.where(values == 255, -2, values).tolist()
    assert (outcome.exit_code, sweep.backend.labels) == (0, {"random": [expected], "duc": [expected]})
    assert "2 runs asked for 2 labels; 1 was answered by people" in output


@pytest.mark.parametrize("killed_in", ["QuestionRound.write", "oracles.mask_files.write_mask_table"])
def test_a_run_killed_while_it_wrote_its_questions_writes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    sweep = PeopleSweep(tmp_path, random=[pixels(1, 3, 7)], duc=[pixels(1, 3, 8)], sizes=SIZES)
    with monkeypatch.context() as patch:
        patch.setattr(f"ducats.annotation.{killed_in}", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sweep.resume()
    assert "2 runs wait for 2 labels" in sweep.resume()[1]
    assert len(sweep.asked(1)) == 2
    for run in sweep.runs:
        assert (run.folder(sweep.out) / "questions" / "round-01" / "README.txt").exists()


@pytest.mark.parametrize("unit", ["pixel", "image"])  # with questions, and with label PNGs only
@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.full((4, 5), 7), "has the value 7 at x=0, y=0, which is not a class"),
        (np.zeros((4, 5, 3)), "is a colour image"),
        (np.zeros((5, 5)), "is 5 x 5, but its mask is 5 x 4"),
    ],
)
def test_invalid_label_pngs_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, values: Any, problem: str
) -> None:
    request = pixels(1, 3, 0) if unit == "pixel" else pixels(1, 3, *range(20), whole=True)
    sweep = PeopleSweep(tmp_path, random=[request], duc=[request], sizes=SIZES, unit=unit)
    sweep.resume()
    invalid = Image.fromarray(np.asarray(values, np.uint8))
    run = sweep.run_of("duc").folder(sweep.out)
    for folder in (run / "questions" / "round-01", sweep.round_folder(1)):
        (folder / "answers").mkdir()
        invalid.save(folder / "answers" / "3.png")
        with pytest.raises(UserError, match=f"{folder}/answers/3.png {problem}"):  # in its own: by the run
            sweep.resume()
        (folder / "answers" / "3.png").unlink()

    def correct_instead(seconds: float) -> None:
        if seconds == POLL_SECONDS:
            save_map(sweep.round_folder(1), "3.png", np.zeros(20))

    invalid.save(sweep.round_folder(1) / "answers" / "3.png")
    monkeypatch.setattr("time.sleep", correct_instead)
    outcome, output = sweep.resume(poll_seconds=POLL_SECONDS)
    assert (outcome.exit_code, output.count(problem)) == (0, 1)
    invalid.save(sweep.round_folder(1) / "answers" / "3.png")
    assert sweep.resume()[0].exit_code == 0  # no run needs it any more


# ---- cost


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> DataOptions:
    folder, data = tmp_path_factory.mktemp("photos"), toy()
    write_images(folder / "source", data.source.images.pixels[:4], ["a", "b", "a", "b"])
    write_images(folder / "target", data.pool.pixels[:10], ["a"] * 10)
    return DataOptions(source=folder / "source", target=folder / "target")


def costs_of(tmp_path: Path, data: DataOptions, *settings: str) -> list[tuple[int, int, float | None]]:
    sweep_filter = SweepFilter(data=data, settings=settings)
    runs = make_runs(tmp_path, sweep_filter, methods=["random", "duc", "source-only"], settings=[])
    return [(one.rounds, one.labels, one.seconds) for one in labelling_costs(runs).values()]


def test_cost_of_each_run_that_people_label(tmp_path: Path, photos: DataOptions) -> None:
    assert costs_of(tmp_path, photos, "acquisition.budget=60%") == [(5, 6, None)] * 2  # not source-only
    assert costs_of(tmp_path, photos, "acquisition.budget=30min") == [(5, 0, 1800.0)] * 2
    truth = DataOptions(source=photos.source, target=photos.target, ground_truth=True)
    assert costs_of(tmp_path, truth) == []


def test_the_cost_is_told_before_the_sweep_starts(
    tmp_path: Path, photos: DataOptions, capsys: Capture
) -> None:
    options = (
        "--source",
        photos.source,
        "--target",
        photos.target,
        "--out",
        tmp_path / "out",
        "--devices",
        "cpu",
    )
    assert ducats("sweep", "folders", *options, "--set", "acquisition.budget=8", "--dry-run") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "2 runs with 16 labels, 8 in 5 rounds each" in output
    assert "at most 10, 0.8 minutes at an assumed 5 s each" in output  # of ten images
    assert not (tmp_path / "out").exists()
