"""Checksums of a run's files: every damage is noticed, and no kill is mistaken for damage."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ducats.annotation import AnnotationStore, QuestionRound, RoundRules
from ducats.annotation.answer import Answer
from ducats.annotation.answer_log import AnswerLog
from ducats.annotation.summary import summarise_rounds
from ducats.runfolder import checksums
from ducats.runfolder.checksums import CHECKSUM_FILE
from ducats.utils.errors import UserError

Damage = Callable[[Path], object]


def flip_bit(path: Path, bit: int = 13) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


DAMAGES: dict[str, Damage] = {
    "flip": flip_bit,
    "truncate": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "zero": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "delete": Path.unlink,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with some files, written twice."""
    checksums.create(tmp_path)
    for text in ("first", "second"):
        for name in ("pool.json", "metrics.jsonl", "labels/round-01.npz", "questions/round-01/closed.json"):
            checksums.write_text(tmp_path / name, f"{text} {name}")
    return tmp_path


@pytest.mark.parametrize("name", ["pool.json", "labels/round-01.npz", "questions/round-01/closed.json"])
@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named_with_its_remedy(folder: Path, name: str, kind: str) -> None:
    checksums.verify(folder / name)
    DAMAGES[kind](folder / name)
    words = "is missing" if kind == "delete" else "is corrupt"
    with pytest.raises(UserError, match=rf"{name} {words}.*; (restore|delete) it"):
        checksums.verify(folder / name)
    assert checksums.missing(folder) == ([name] if kind == "delete" else [])


def write_killed(path: Path, text: str) -> None:
    """Write a file as far as a kill between its checksum and its name leaves it."""

    def kill(draft: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            checksums.write_text(path, text)


@pytest.mark.parametrize("name", ["metrics.jsonl", "labels/round-02.npz"])  # replaced; written first
def test_a_kill_between_checksum_and_name_is_not_damage(folder: Path, name: str) -> None:
    write_killed(folder / name, "new")
    for _ in range(2):
        checksums.verify(folder / name)
        assert not checksums.missing(folder)
        checksums.write_text(folder / "pool.json", "third pool")
    checksums.write_text(folder / name, "new")
    checksums.verify(folder / name)


def test_an_older_backup_is_refused(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    old = path.read_bytes()
    checksums.write_text(path, "third")
    checksums.write_text(folder / "pool.json", "third pool")
    path.write_bytes(old)
    with pytest.raises(UserError, match=r"metrics\.jsonl is corrupt"):
        checksums.verify(path)


@pytest.mark.parametrize("bit", [13, 400])
def test_a_damaged_log_is_named(folder: Path, bit: int) -> None:
    flip_bit(folder / CHECKSUM_FILE, bit)
    for use in (lambda: checksums.verify(folder / "pool.json"), lambda: checksums.missing(folder)):
        with pytest.raises(UserError, match=rf"{CHECKSUM_FILE} is corrupt after byte 0; .* accept"):
            use()
    (folder / CHECKSUM_FILE).unlink()  # the remedy
    checksums.create(folder)
    checksums.verify(folder / "pool.json")


def test_lines_are_chained(folder: Path) -> None:
    lines = (folder / CHECKSUM_FILE).read_bytes().splitlines(keepends=True)
    for changed in (lines[1:], [lines[1], lines[0], *lines[2:]], [*lines[:3], *lines[4:]]):
        (folder / CHECKSUM_FILE).write_bytes(b"".join(changed))
        with pytest.raises(UserError, match="is corrupt after byte"):
            checksums.verify(folder / "pool.json")
    (folder / CHECKSUM_FILE).write_bytes(b"".join(lines[:1]))
    with pytest.raises(UserError, match=r"round-01\.npz has no checksum"):
        checksums.verify(folder / "labels" / "round-01.npz")


def test_an_incomplete_last_line_is_replaced(folder: Path) -> None:
    with (folder / CHECKSUM_FILE).open("ab") as file:
        file.write(b'{"file": "pool.json", "sha')
    checksums.verify(folder / "pool.json")
    checksums.write_text(folder / "pool.json", "new")
    checksums.verify(folder / "pool.json")
    assert b"sha{" not in (folder / CHECKSUM_FILE).read_bytes()


def test_files_can_be_deleted_and_written_again(folder: Path) -> None:
    checksums.delete(folder / "pool.json")
    checksums.verify(folder / "pool.json")
    checksums.write_again(folder / "pool.json", "anything")
    checksums.write_text(folder / "data.yaml", "")  # the renaming above is certain now
    (folder / "pool.json").unlink()
    with pytest.raises(UserError, match=r"pool\.json is missing and had another content"):
        checksums.write_again(folder / "pool.json", "something else")
    checksums.write_again(folder / "pool.json", "anything")
    (folder / "labels" / "round-01.npz").unlink()
    checksums.accept_missing(folder)
    checksums.verify(folder / "labels" / "round-01.npz")


def test_a_file_that_was_never_renamed_may_be_written_with_another_content(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums.delete(folder / "pool.json")

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            checksums.write_text(folder / "pool.json", "one")
    checksums.write_again(folder / "pool.json", "two")
    checksums.verify(folder / "pool.json")


def test_answers_and_corrections_are_never_accepted_as_missing(folder: Path) -> None:
    precious = ("questions/answers.jsonl", "labels/amendment-00001.json")
    for name in (*precious, "labels/round-02.npz"):
        checksums.write_text(folder / name, name)
    checksums.write_text(folder / "pool.json", "keys")
    for name in (*precious, "labels/round-02.npz"):
        (folder / name).unlink()
    checksums.accept_missing(folder)
    checksums.verify(folder / "labels/round-02.npz")
    for name in precious:
        with pytest.raises(UserError, match="is missing; restore it from a backup"):
            checksums.verify(folder / name)


def test_a_file_that_is_replaced_while_it_is_verified_is_intact(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = checksums._file_digest
    replaced: list[Path] = []

    def digest(path: Path, n_bytes: int | None = None) -> str | None:
        found = genuine(path, n_bytes)
        if path.name == "pool.json" and not replaced:
            replaced.append(path)
            checksums.write_text(folder / "pool.json", "newer")
            checksums.write_text(folder / "data.yaml", "newer")
        return found

    monkeypatch.setattr(checksums, "_file_digest", digest)
    checksums.verify(folder / "pool.json")
    assert replaced


def test_remedies_of_missing_files_do_not_say_to_delete_them(folder: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "labels/round-01.npz", "snapshots/thumbnails/000001.png"):
        assert "delete it" in checksums.remedy(folder / name)
        assert "delete it" not in checksums.remedy(folder / name, is_missing=True)
        assert "{" not in checksums.remedy(folder / name)


def test_files_outside_of_a_run_are_not_verified(tmp_path: Path) -> None:
    checksums.write_text(tmp_path / "pool.json", "text")
    flip_bit(tmp_path / "pool.json")
    checksums.verify(tmp_path / "pool.json")
    assert [path.name for path in tmp_path.iterdir()] == ["pool.json"]


def test_several_writers(folder: Path) -> None:
    def write(number: int) -> None:
        for text in "abcd":
            checksums.write_text(folder / "confusion" / f"epoch-{number:03d}.csv", text * 100)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = list((folder / "confusion").glob("*.csv"))
    assert len(paths) == 4
    for path in paths:
        checksums.verify(path)


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_answers_are_noticed(folder: Path, kind: str) -> None:
    path = folder / "questions" / "answers.jsonl"
    for log in (AnswerLog(path), AnswerLog(path)):  # two processes
        for word in ("cat", "dog"):
            log.append([Answer(word, word, "class", annotator="", received_at="", channel="test")])
    with path.open("ab") as file:
        file.write(b'{"question": "a line that a kill has cut')
    assert [answer.word for answer in AnswerLog(path).answers()] == ["cat", "dog", "cat", "dog"]
    path.write_bytes(path.read_bytes().rpartition(b"\n")[0] + b"\n")
    DAMAGES[kind](path)
    with pytest.raises(UserError, match=r"answers\.jsonl is (corrupt|missing).*; restore it"):
        AnswerLog(path).answers()


def test_a_round_without_its_rules_is_not_left_out(folder: Path) -> None:
    for number in (1, 2):
        rules = RoundRules(number, ("cat", "dog"))
        QuestionRound.write(folder / "questions" / f"round-{number:02d}", rules, [])
    (folder / "questions" / "round-01" / "rules.json").unlink()
    with pytest.raises(UserError, match=r"rules\.json is missing"):
        summarise_rounds(AnnotationStore(folder / "questions"))
