import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from commands import read_csv
from ducats.annotation import AnnotationStore, RoundRules
from ducats.annotation.oracles import HumanOracle
from ducats.data.domain import UNLABELLED, VOID, Images
from ducats.ledger import Request
from ducats.runfolder.hints import AnnotatorHints
from ducats.utils.errors import AwaitingLabels, UserError

POOL = Images(
    tuple(f"sub dir/ü{i},x.png" for i in range(6)),
    torch.arange(6 * 3 * 4 * 4, dtype=torch.uint8).reshape(6, 3, 4, 4),
)
REQUEST = Request(2, torch.tensor([4, 1, 3]), torch.zeros(3, dtype=torch.long))


@pytest.fixture
def round_folder(tmp_path: Path) -> Path:
    with pytest.raises(AwaitingLabels, match=r"round 2 waits for 3 labels. To answer, copy .*questions.csv"):
        HumanOracle(tmp_path, POOL, ["cat", "dog"])(REQUEST)
    return tmp_path / "round-02"


def key(image: int) -> str:
    return f'"{POOL.keys[image]}"'


def read_rows(round_folder: Path) -> list[dict[str, str]]:
    return read_csv(round_folder / "questions.csv")


def test_questions_have_keys_thumbnails_and_a_contact_sheet(round_folder: Path) -> None:
    rows = read_rows(round_folder)
    assert [(row["key"], row["label"]) for row in rows] == [(POOL.keys[i], "") for i in (4, 1, 3)]
    thumbnail = Image.open(round_folder / rows[0]["thumbnail"])
    assert thumbnail.size == (256, 256)
    first = thumbnail.resize((4, 4), Image.Resampling.NEAREST).getpixel((0, 0))
    assert first == tuple(POOL.pixels[4, :, 0, 0].tolist())
    assert (round_folder / "classes.txt").read_text().split() == ["cat", "dog"]
    page = (round_folder / "questions.html").read_text(encoding="utf-8")
    assert page.count("<img") == 3
    assert all(name in page for name in ("cat", "dog", "sub dir/ü4,x.png", "thumbnails/0001.png"))
    assert "light-dark(" in page  # the theme of the labelling page
    assert all(word in page for word in ("questions.csv", "answers.csv", "void", "unsure"))


def test_names_like_formulas_are_escaped_and_come_back_exactly(tmp_path: Path) -> None:
    keys, classes = ("=1+2.png", "a\rb.png", "'@x.png"), ["-cat", "=dog"]
    oracle = HumanOracle(tmp_path, Images(keys, POOL.pixels[:3]), classes)
    request = Request(1, torch.arange(3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(AwaitingLabels):
        oracle(request)
    rows = read_rows(tmp_path / "round-01")
    assert [row["key"] for row in rows] == ["'=1+2.png", "a\rb.png", "''@x.png"]
    for row, label in zip(rows, ("=dog", "'-cat", "'=dog"), strict=True):
        row["label"] = label  # typed, or copied from an escaped cell
    with (tmp_path / "round-01" / "answers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    assert oracle(request).tolist() == [1, 0, 1]


def test_thumbnails_are_made_from_the_original_file(tmp_path: Path) -> None:
    wide = Image.new("RGBA", (300, 100), (255, 0, 0, 0))  # transparent: shown on white
    wide.paste((0, 0, 255, 255), (0, 0, 150, 100))
    wide.save(tmp_path / "wide.png")
    thumbnail = thumbnail_of(tmp_path / "wide.png", tmp_path / "a")
    assert thumbnail.size == (256, 85)
    assert [thumbnail.getpixel((x, 40)) for x in (20, 230)] == [(0, 0, 255), (255, 255, 255)]
    values = np.full((100, 300), 257 * 40, np.uint16)  # shown as the model gets it
    values[:, 150:] = 257 * 200
    Image.fromarray(values).save(tmp_path / "deep.png")
    thumbnail = thumbnail_of(tmp_path / "deep.png", tmp_path / "b")
    assert thumbnail.size == (300, 100)  # in full: the page cannot show the file
    assert [thumbnail.getpixel((x, 40)) for x in (20, 230)] == [(40, 40, 40), (200, 200, 200)]
    (tmp_path / "bad.png").write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"bad\.png is not a readable image"):
        thumbnail_of(tmp_path / "bad.png", tmp_path / "c")


def thumbnail_of(path: Path, folder: Path) -> Image.Image:
    """Return the thumbnail that annotators see for a file."""
    pool = Images((path.name,), torch.zeros(1, 3, 4, 4, dtype=torch.uint8), (path,), value_range=(0, 65535))
    with pytest.raises(AwaitingLabels):
        HumanOracle(folder, pool, ["cat", "dog"])(Request(1, torch.tensor([0]), torch.tensor([0])))
    return Image.open(folder / "round-01" / "thumbnails" / "0001.png")


def test_the_filled_in_questions_are_answers(round_folder: Path) -> None:
    rows = read_rows(round_folder)
    words = ["CAT", "Void", "dog "]
    # As a spreadsheet saves it: in any order, with semicolons and a byte order mark.
    with (round_folder / "answers.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), delimiter=";")
        writer.writeheader()
        filled_in = [row | {"label": word} for row, word in zip(rows, words, strict=True)]
        writer.writerows(reversed(filled_in))
    assert HumanOracle(round_folder.parent, POOL, ["cat", "dog"])(REQUEST).tolist() == [0, VOID, 1]


# ---- several annotators, through the annotation store


def oracle(folder: Path, **params: Any) -> HumanOracle:
    return HumanOracle(folder / "questions", POOL, ["cat", "dog"], **params)


def store_with_questions(folder: Path, **params: Any) -> AnnotationStore:
    """Return an annotation store with the questions of the request."""
    with pytest.raises(AwaitingLabels):
        oracle(folder, **params)(REQUEST)
    return AnnotationStore(folder / "questions")


def submit(store: AnnotationStore, image: int, word: str, annotator: str, **more: Any) -> str | None:
    answer = {"question": POOL.keys[image], "word": word, "annotator": annotator, **more}
    return store.receive([answer], channel="test")[0].reject_reason


def test_the_store_has_the_questions_and_the_model_hints(tmp_path: Path) -> None:
    known = np.array([0.9, 0.6, np.nan], np.float32)
    zero = np.zeros(3, np.float32)
    hints = AnnotatorHints(
        np.array([1, 0, -1], np.int16), known, known / 2, zero, known / 3, zero, np.full(3, -1)
    )
    store = store_with_questions(
        tmp_path, hints={2: hints}.get, query="clue", max_seconds=lambda number: 7.0 * number
    )
    question_round = store.question_round(2)
    rules = RoundRules(2, ("cat", "dog"), query="clue", max_seconds=14.0, allow_new_classes=True)
    assert question_round.rules == rules
    assert [(q.id, q.guess, q.probability, q.u_dis, q.segment) for q in question_round.questions] == [
        (POOL.keys[4], "dog", 0.9, 0.45, None),
        (POOL.keys[1], "cat", 0.6, 0.3, None),
        (POOL.keys[3], None, None, None, None),
    ]
    rows = read_rows(question_round.folder)
    assert list(rows[0])[-4:] == ["guess", "probability", "u_dis", "u_data"]
    assert [(row["guess"], row["u_dis"]) for row in rows] == [("dog", "0.45"), ("cat", "0.3"), ("", "")]
    assert oracle(tmp_path, hints={}.get).wants_hints
    assert not oracle(tmp_path).wants_hints


def test_questions_are_completed_after_a_kill_between_two_files(tmp_path: Path) -> None:
    folder = store_with_questions(tmp_path).round_folder(2)
    for name in ("rules.json", "questions.jsonl"):
        (folder / name).unlink()
    before = (folder / "questions.csv").stat().st_mtime_ns
    store = store_with_questions(tmp_path)
    assert len(store.question_round(2).questions) == 3
    assert (folder / "questions.csv").stat().st_mtime_ns == before


def test_unanimous_labels_come_in_the_order_of_the_request(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path, rule="unanimous")
    for annotator in ("anna", "bob"):
        for image, word in ((1, "void"), (3, "cat"), (4, "dog")):
            assert submit(store, image, word, annotator, seconds=1.5) is None
    human = oracle(tmp_path, rule="unanimous")
    labels = human(REQUEST)
    assert (labels.tolist(), labels.dtype) == ([1, VOID, 0], torch.int64)
    seconds = human.annotation_seconds(REQUEST)
    assert seconds is not None
    assert (seconds.tolist(), seconds.dtype) == ([3.0, 3.0, 3.0], torch.float32)
    assert submit(store, 1, "cat", "anna") == "late"
    assert oracle(tmp_path, rule="unanimous")(REQUEST).tolist() == [1, VOID, 0]


def test_the_message_lists_open_and_disputed_questions_and_next_steps(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path, rule="unanimous")
    submit(store, 4, "cat", "anna")
    submit(store, 4, "cat", "bob")
    submit(store, 1, "cat", "anna")
    submit(store, 1, "dog", "bob")
    with pytest.raises(AwaitingLabels) as pause:
        oracle(tmp_path, rule="unanimous")(REQUEST)
    for words in (
        f"round 2 waits for 2 of 3 labels; first: {POOL.keys[1]!r}; 1 is disputed (rule unanimous)",
        f"{POOL.keys[1]!r}: anna: cat, bob: dog",
        *(
            f"`ducats label {tmp_path}`",
            "answers.csv",
            f"`ducats push {tmp_path} --url URL`",
            "same command again",
        ),
    ):
        assert words in str(pause.value)


def test_the_last_answer_arrives_while_the_message_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_with_questions(tmp_path)
    close_round = AnnotationStore.close_round

    def slowly(self: AnnotationStore, number: int) -> Any:
        found = close_round(self, number)
        for image in (1, 3, 4) if found is None else ():
            submit(store, image, "dog", "anna")
        return found

    monkeypatch.setattr(AnnotationStore, "close_round", slowly)
    assert oracle(tmp_path)(REQUEST).tolist() == [1, 1, 1]


def test_questions_of_another_request_are_refused(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path)
    for image in (1, 3, 4):
        submit(store, image, "dog", "anna")
    other = Request(2, torch.tensor([4, 1, 2]), torch.zeros(3, dtype=torch.long))
    with pytest.raises(UserError, match="round-02 do not match the run's request"):
        oracle(tmp_path)(other)
    assert store.closed_round(2) is None
    assert oracle(tmp_path)(REQUEST).tolist() == [1, 1, 1]


def test_unanswered_questions_are_unlabelled_at_the_time_limit(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path, max_seconds=lambda _: 5.0)
    submit(store, 1, "dog", "anna", seconds=5.0)
    human = oracle(tmp_path, max_seconds=lambda _: 5.0)
    assert human(REQUEST).tolist() == [UNLABELLED, 1, UNLABELLED]
    seconds = human.annotation_seconds(REQUEST)
    assert seconds is not None
    assert seconds.tolist() == [0.0, 5.0, 0.0]


def write_answers(store: AnnotationStore, image: int, word: str, name: str = "answers.csv") -> None:
    (store.round_folder(2) / name).write_text(f"key,label\n{key(image)},{word}\n", encoding="utf-8")


def test_answers_from_files_and_from_the_store_are_combined(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path)
    submit(store, 4, "cat", "anna")
    write_answers(store, 1, "dog", "answers-bob.csv")
    for word in ("", "unsure"):
        write_answers(store, 3, word)
        with pytest.raises(AwaitingLabels, match=r"waits for 1 of 3 labels; first: 'sub dir/ü3,x\.png'"):
            oracle(tmp_path)(REQUEST)
    assert oracle(tmp_path).annotation_seconds(REQUEST) is None
    write_answers(store, 3, "void")
    human = oracle(tmp_path)
    assert human(REQUEST).tolist() == [0, 1, VOID]
    assert human.annotation_seconds(REQUEST) is None  # no time was recorded
    assert {one.annotator for one in store.answers()} == {"anna", "bob", ""}


def test_invalid_files_of_earlier_rounds_do_not_stop_the_run(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path)
    for image in (1, 3, 4):
        submit(store, image, "cat", "anna")
    oracle(tmp_path)(REQUEST)
    write_answers(store, 1, "dog\nnowhere,cat")
    (store.round_folder(2) / "answers-x.csv").write_bytes(b"\xff")
    with pytest.raises(AwaitingLabels, match=r"round 3 waits for 1 label\. "):
        oracle(tmp_path)(Request(3, torch.tensor([0]), torch.tensor([0])))
    assert [one.reject_reason for one in store.answers()[3:]] == ["late", "unknown question"]


def test_a_new_class_is_refused_or_gets_the_next_number(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path, allow_new_classes=False)
    write_answers(store, 1, "horse")
    with pytest.raises(UserError, match="'horse' is not a class"):
        oracle(tmp_path, allow_new_classes=False)(REQUEST)
    assert [one.reject_reason for one in store.answers()] == ["unknown class"]
    other = store_with_questions(tmp_path / "open")
    submit(other, 4, "tree", "anna")  # changed before the round closes: no class of the run
    for image, word in ((4, "horse"), (1, "horse"), (3, "dog")):
        assert submit(other, image, word, "anna") is None
    asked = oracle(tmp_path / "open")
    n_classes = len(asked.classes)
    assert asked(REQUEST).tolist() == [n_classes, n_classes, 1]
    assert asked.classes.names[n_classes:] == ("horse",)
    assert asked.classes.added == (("horse", 2),)


def test_a_misspelt_class_in_a_file_is_not_a_new_class(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path)
    write_answers(store, 1, "dgo")
    with pytest.raises(UserError, match="did you mean 'dog'"):
        oracle(tmp_path)(REQUEST)
    store.add_class(2, "dgo")
    submit(store, 4, "dog", "anna")
    submit(store, 3, "dog", "anna")
    asked = oracle(tmp_path)
    asked(REQUEST)
    assert asked.classes.names[-1] == "dgo"


def test_runs_that_share_answers_cannot_add_classes(tmp_path: Path) -> None:
    store = store_with_questions(tmp_path, shared_answers=[tmp_path / "other"])
    assert submit(store, 4, "horse", "anna") == "unknown class"
    with pytest.raises(UserError, match="share answers"):
        oracle(tmp_path, allow_new_classes=True, shared_answers=[tmp_path / "other"])


def test_invalid_rules(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rule must be one of"):
        oracle(tmp_path, rule="loudest")
