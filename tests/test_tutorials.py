"""Run every command and Python example of the tutorials, on tiny images and with short training."""

import csv
import shlex
from pathlib import Path

import pytest

from command_checks import code_blocks, shell_lines
from commands import ducats, read_csv, set_options, write_images
from ducats.data.toy import toy

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
# Beginnings of commands that are not run here.
NOT_RUN = (
    "pip install",  # of packages
    "ducats label",  # serves a page until it is stopped: tests/annotation/page
    "ducats watch",  # watches until it is stopped: tests/report
    "ducats sweep office-home",  # needs the images
)
# Words of the pages, and what they are here.
EXAMPLES = {"img_0042.jpg": "042.png", "dog": "blob-3"}
SHORT = set_options(
    *("train.epochs=7", "train.steps_per_epoch=2", "train.batch_size=4", "acquisition.after_epochs=null")
)
FEW_DIGITS = (*SHORT, *set_options("data.params.n_source=200"))


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command of a page."""
    lines = [quote.text for quote in shell_lines(page, "sh")]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture(autouse=True)
def in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with labelled photos and unlabelled camera images."""
    monkeypatch.chdir(tmp_path)
    data = toy(n_source_per_class=4, n_pool=170, n_test=4)
    assert data.ground_truth is not None
    classes = [data.classes[label] for label in data.source.labels[:].tolist()]
    write_images(Path("photos"), data.source.images.pixels[:], classes)
    write_images(Path("camera"), data.pool.pixels[:], [""] * len(data.pool))


def answer(run: Path) -> None:
    """Answer the open round of a run."""
    folder = max(run.glob("questions/round-*"))
    classes = (folder / "classes.txt").read_text(encoding="utf-8").split()
    with (folder / "answers.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("key", "label", "annotator"))
        for number, row in enumerate(read_csv(folder / "questions.csv")):
            for annotator in ("ada", "ben"):
                writer.writerow((row["key"], classes[number % len(classes)], annotator))


def run_to_the_end(words: list[str]) -> int:
    """Run `ducats run` and answer its questions until it is finished."""
    out = Path(words[words.index("--out") + 1]) if "--out" in words else None
    short = ("-c", "small", *SHORT) if "--source" in words else FEW_DIGITS
    for _ in range(7):
        code = ducats(*words[1:], *short)
        if code != 3 or out is None:
            return code
        answer(out)
    return code


@pytest.mark.parametrize("name", ["own-photos", "labelling-project", "reproduce"])
def test_all_commands_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = TUTORIALS / f"{name}.md"
    for language, file in (("python", "mine.py"), ("yaml", "mine.yaml")):
        for _, example in code_blocks(page, language):
            Path(file).write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(".")
    codes = {}
    for words in commands(page):
        words = [EXAMPLES.get(word, word) for word in words]
        command = shlex.join(words)
        if command.startswith(NOT_RUN):
            continue
        assert words[0] == "ducats", command
        if words[1] == "run":
            codes[command] = run_to_the_end(words)
        elif words[1] == "sweep":
            one_seed = command.replace("--seeds 0 1 2", "--seeds 0")
            codes[command] = ducats(*shlex.split(one_seed)[1:], "--workers", "2", *FEW_DIGITS)
        else:
            codes[command] = ducats(*words[1:], *(("-c", "small", *SHORT) if words[1] == "doctor" else ()))
    no_rule = {command: 2 for command in codes if command.startswith("ducats triage")}  # after short training
    assert codes == {**dict.fromkeys(codes, 0), **no_rule}
