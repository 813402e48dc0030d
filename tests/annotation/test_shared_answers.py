"""Answers shared between runs: the book, and the oracle that reads it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ducats.annotation import AnnotationStore
from ducats.annotation.amend import LabelAmender, NewLabel
from ducats.annotation.oracles import HumanOracle
from ducats.data.domain import VOID, Images
from ducats.ledger import Request, open_ledger
from ducats.runfolder.amendments import Amendment, Correction
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels
from question_rounds import submit_answer

CLASSES = ("cat", "dog", "cow")
PIXELS = torch.arange(6 * 3 * 4 * 5, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(6, 3, 4, 5)
POOL = Images(tuple(f"{i}.png" for i in range(6)), PIXELS)
SIZES = torch.tensor([[4, 5]] * 6)


class SweepOracle:
    """The human oracle of one run in the folder of a sweep."""

    def __init__(self, sweep: Path, name: str, pool: Images = POOL, **options: Any) -> None:
        run = sweep / name
        run.mkdir(parents=True)
        (run / "config.yaml").touch()
        options = {"classes": CLASSES, **options}
        self.store = AnnotationStore(run / "questions")
        self.round = self.store.round_folder(1)
        self.oracle = HumanOracle(run / "questions", pool, shared_answers=[sweep], **options)

    def ask(self, request: Request) -> Tensor | None:
        """Return the labels, None if people are asked."""
        try:
            return self.oracle(request)
        except AwaitingLabels:
            return None

    def answer(self, question: str, word: str, annotator: str = "anna", **more: Any) -> str | None:
        return submit_answer(self.store, question, word, annotator, **more)


def images(*indices: int) -> Request:
    return Request(1, torch.tensor(indices), torch.zeros(len(indices), dtype=torch.long))


def pixels(image: int, *positions: int, unit_sizes: list[int] | None = None) -> Request:
    sizes = torch.tensor(unit_sizes) if unit_sizes else None
    return Request(1, torch.full((len(positions),), image), torch.tensor(positions), sizes)


def test_a_label_given_once_answers_every_run(tmp_path: Path) -> None:
    first, second = SweepOracle(tmp_path, "duc"), SweepOracle(tmp_path, "random")
    assert first.ask(images(4, 1)) is None
    for question, word in (("4.png", "cow"), ("1.png", "void")):
        first.answer(question, word, seconds=2.5)
    assert second.ask(images(1, 3)) is None
    assert [status.state for status in second.store.statuses(1).values()] == ["settled", "open"]
    second.answer("3.png", "dog", seconds=1.0)
    assert second.oracle(images(1, 3)).tolist() == [VOID, 1]
    assert second.oracle.annotation_seconds(images(1, 3)) == pytest.approx(torch.tensor([2.5, 1.0]))
    assert first.oracle(images(4, 1)).tolist() == [2, VOID]
    third = SweepOracle(tmp_path, "entropy")
    assert third.oracle(images(3, 4, 1)).tolist() == [1, 2, VOID]  # nobody is asked
    assert len(third.store.answers()) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"pool": Images(POOL.keys, PIXELS.flip(0))},  # other images under the same keys
        {"classes": ("cat", "dog")},
        {"classes": (*CLASSES, "horse")},
    ],
)
def test_other_images_and_other_classes_are_asked_again(tmp_path: Path, options: dict[str, Any]) -> None:
    first, second = SweepOracle(tmp_path, "a"), SweepOracle(tmp_path, "b", **options)
    assert first.ask(images(2)) is None
    first.answer("2.png", "cat")
    assert second.ask(images(2)) is None
    assert second.store.answers() == []


def test_a_corrected_label_replaces_the_answer_in_other_runs(tmp_path: Path) -> None:
    first, second = SweepOracle(tmp_path, "duc"), SweepOracle(tmp_path, "random")
    assert first.ask(images(4)) is None
    first.answer("4.png", "cow")
    assert second.ask(images(4, 1)) is None  # has a copy of the answer now
    run_folder = RunFolder(tmp_path / "duc")
    open_ledger(run_folder, POOL.keys).append(images(4), first.oracle(images(4)))
    LabelAmender(run_folder, "eve").amend([NewLabel("4.png", "dog")])
    second.answer("1.png", "cat")
    assert second.oracle(images(4, 1)).tolist() == [1, 0]
    assert SweepOracle(tmp_path, "entropy").oracle(images(4)).tolist() == [1]


def test_classes_may_be_in_another_order_and_keys_may_differ(tmp_path: Path) -> None:
    renamed = Images(tuple(f"copy/{i}.png" for i in range(6)), POOL.pixels)
    first, second = SweepOracle(tmp_path, "a"), SweepOracle(tmp_path, "b", renamed, classes=CLASSES[::-1])
    assert first.ask(images(2)) is None
    first.answer("2.png", "cat")
    assert second.oracle(images(2)).tolist() == [2]


def test_each_annotator_has_one_vote_in_every_run(tmp_path: Path) -> None:
    first, second = (SweepOracle(tmp_path, name, rule="majority") for name in "ab")
    assert first.ask(images(0)) is second.ask(images(0)) is None
    first.answer("0.png", "cat", "anna")
    first.answer("0.png", "unsure", "bob")
    first.answer("0.png", "skip", "carl")
    second.answer("0.png", "dog", "anna")
    assert first.ask(images(0)) is second.ask(images(0)) is None
    (status,) = first.store.statuses(1).values()
    assert [(vote.annotator, vote.word) for vote in status.votes] == [("anna", "cat")]  # her own answer stays
    (status,) = second.store.statuses(1).values()
    assert [(vote.annotator, vote.word) for vote in status.votes] == [("anna", "dog")]
    assert status.unsure_annotators == ("bob",)
    second.answer("0.png", "dog", "carl")
    second.answer("0.png", "dog", "dora")
    assert second.oracle(images(0)).tolist() == [1]
    assert first.oracle(images(0)).tolist() == [1]  # anna: cat, carl and dora: dog


def test_copies_follow_the_original_until_the_round_closes(tmp_path: Path) -> None:
    first, second = (SweepOracle(tmp_path, name) for name in "ab")
    assert first.ask(images(0, 1)) is second.ask(images(0, 1)) is None
    words = []
    for word in ("cat", "", "dog", "cow"):
        first.answer("0.png", word, seconds=1.0)
        assert second.ask(images(0, 1)) is None
        words.append(second.store.status("0.png").word)
    assert words == ["cat", None, "dog", "cow"]
    assert second.store.status("0.png").seconds == pytest.approx(4.0)
    first.answer("1.png", "dog")
    assert second.oracle(images(0, 1)).tolist() == [2, 1]
    first.answer("0.png", "cat")
    assert second.oracle(images(0, 1)).tolist() == [2, 1]
    assert first.oracle(images(0, 1)).tolist() == [0, 1]
    assert first.answer("0.png", "dog") == "late"
    assert SweepOracle(tmp_path, "c").oracle(images(0)).tolist() == [
        1
    ]  # a late correction helps the next run


def test_a_pixel_answered_once_answers_every_run(tmp_path: Path) -> None:
    first, second = (SweepOracle(tmp_path, name, sizes=SIZES) for name in "ab")
    assert first.ask(pixels(3, 7, 8)) is None
    assert second.ask(pixels(3, 8, 9)) is None
    first.answer("3.png#1,3", "dog")
    second.answer("3.png#1,4", "cow")
    assert second.oracle(pixels(3, 8, 9)).tolist() == [1, 2]
    region = SweepOracle(tmp_path, "c", sizes=SIZES, unit="region")
    assert (
        region.ask(pixels(3, 7, 8, unit_sizes=[2])) is None
    )  # the class of a pixel is not that of its region
    assert region.store.answers() == []


def save_labels(folder: Path, values: Any) -> None:
    (folder / "answers").mkdir(exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8).reshape(4, 5)).save(folder / "answers" / "3.png")


def test_a_label_png_answers_the_pixels_that_it_was_asked_for(tmp_path: Path) -> None:
    first = SweepOracle(tmp_path, "whole", sizes=SIZES, unit="image")
    assert first.ask(pixels(3, *range(20), unit_sizes=[20])) is None
    values = np.arange(20) % 3
    values[9] = 255
    save_labels(first.round, values)
    second = SweepOracle(tmp_path, "pixels", sizes=SIZES)
    assert second.oracle(pixels(3, 11, 9, 4)).tolist() == [2, VOID, 1]
    assert not (second.round / "answers").exists()  # only people write there
    assert second.oracle(pixels(3, 11, 9, 4)).tolist() == [2, VOID, 1]


def test_pixels_outside_the_mask_and_invalid_pngs_answer_nothing(tmp_path: Path) -> None:
    first, second = (SweepOracle(tmp_path, name, sizes=SIZES) for name in "ab")
    assert first.ask(pixels(3, 7)) is None
    save_labels(first.round, np.zeros(20))  # class 0 everywhere, but only pixel 7 was asked for
    assert second.ask(pixels(3, 7, 8)) is None
    states = [status.state for status in second.store.statuses(1).values()]
    assert states == ["open", "open"]
    (first.round / "answers" / "3.png").write_bytes(b"not a PNG")
    assert second.ask(pixels(3, 7, 8)) is None
    save_labels(first.round, np.zeros(20))
    second.answer("3.png#1,2", "dog")  # contradicts the PNG of the other run, and wins
    save_labels(second.round, [2 if i == 8 else 254 for i in range(20)])
    assert second.oracle(pixels(3, 7, 8)).tolist() == [1, 2]


def test_answers_to_images_with_long_names_are_shared(tmp_path: Path) -> None:
    key = "x" * 480 + ".png"
    pool = Images((key,), PIXELS[:1])
    first, second = SweepOracle(tmp_path, "duc", pool), SweepOracle(tmp_path, "random", pool)
    assert first.ask(images(0)) is None
    first.answer(key, "cow")
    assert second.oracle(images(0)).tolist() == [2]


def test_a_correction_by_a_label_png_does_not_stop_other_runs(tmp_path: Path) -> None:
    first = SweepOracle(tmp_path, "duc", sizes=SIZES)
    correction = Correction("4.png", 1, "cat", "dog", 4, ())
    amendment = Amendment("eve", "2026-01-01T00:00:00+00:00", "a.png", (correction,))
    RunFolder(tmp_path / "duc").append_amendment(amendment)
    assert not first.store.round_numbers()
    assert SweepOracle(tmp_path, "random").ask(images(4)) is None
