"""Damage every file of small runs, then run every reader and resume: same result, or one clear sentence.

    python benchmarks/file_damage.py [--flips 3] [--only TEXT] [--commands labels ...] [--json FILE]

Six run folders: a half-done and a finished one with images, with pixels, and with answers of people. In each,
every file (only two thumbnails) is deleted, cut in half, emptied, filled with zeros and has one bit flipped
(several times, at random); files of two rounds are swapped. After each damage, all commands that read a run
are called, and the run is resumed. A command must give the same output as before, or refuse with a sentence
(`UserError`). `report`, `figure`, `watch` and `answers` may show the rest if they name the damaged file. A
different output without a word, or another exception, is a failure. Exit code 1 if there is any.
"""

import argparse
import contextlib
import io
import json
import random
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from ducats.annotation import AnnotationStore
from ducats.cli.base import app
from ducats.runfolder import checksums
from ducats.runfolder.run_folder import RunFolder
from ducats.utils import files
from ducats.utils.errors import AwaitingLabels, UserError

IMAGES = (
    *("data.name=toy", "model.name=small_cnn", "model.params={width: 4, features: 16}"),
    *("train.epochs=4", "train.steps_per_epoch=3", "train.batch_size=16", "train.lr=0.05"),
    *("acquisition={budget: 20, rounds: null, after_epochs: [1, 2]}", "engine.device=cpu"),
    "views={source: {crop: none, size: null, flip: 0, jitter: [0, 0, 0, 0]}, "
    "unlabelled: {crop: none, size: null}, scoring: {crop: none, size: null}, "
    "test: {crop: none, size: null}}",
)
PIXELS = (
    "data.params={n_source: 6, n_pool: 5, n_test: 3, height: 16, width: 32}",
    *("model.params={width: 8}", "train.epochs=4", "train.steps_per_epoch=2", "train.batch_size=2"),
    *("acquisition={budget: 5%, rounds: null, after_epochs: [1, 2]}", "engine.device=cpu"),
)
RUNS = {
    "images": ("-c", "methods/duc", *(part for setting in IMAGES for part in ("--set", setting))),
    "pixels": (
        *("-c", "data/streets", "-c", "methods/duc"),
        *(part for setting in PIXELS for part in ("--set", setting)),
    ),
}
RUNS["people"] = (*RUNS["images"], "--set", "oracle.name=human")
OPTIONAL = ("confusion", "requests", "snapshots")  # readers name those that are damaged
VOLATILE = ("seconds", "memory")  # parts of keys whose values differ between two equal runs
LENIENT = ("report", "figure", "watch", "answers")


class Outcome(NamedTuple):
    """What a command did."""

    kind: str  # done, refused, paused or the name of an unexpected exception
    output: str
    result: Mapping[str, object] = MappingProxyType({})  # of a resumed run, by file


class Case(NamedTuple):
    """A run folder to damage."""

    name: str
    folder: Path
    task: str
    finished: bool


def main() -> None:
    """Damage all files of all cases and print what the commands did."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flips", type=int, default=3, help="flipped bits per file, one at a time")
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--commands", nargs="*", help="only these, and run; default: all")
    parser.add_argument("--json", type=Path, help="file for the counts and failures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts, failures = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as scratch:
        for case in make_cases(Path(scratch), options.only):
            started = time.monotonic()
            found = attack(case, Path(scratch), options.flips, options.commands)
            failures += found.failures
            counts += found.counts
            summary = ", ".join(f"{count} {kind}" for kind, count in sorted(found.counts.items()))
            print(f"{case.name}: {summary}; {time.monotonic() - started:.0f} s", flush=True)
    print(f"{len(failures)} different results or unexpected exceptions in {counts.total()} calls")
    if options.json:
        options.json.write_text(json.dumps({"counts": counts, "failures": failures}, indent=1), "utf-8")
    sys.exit(bool(failures))


# ---- run folders


def make_cases(scratch: Path, only: str) -> Iterator[Case]:
    """Run each task, and keep a copy of its folder after the third epoch."""
    for task in RUNS:
        if not any(only in f"{task} {state}" for state in ("half-done", "finished")):
            continue
        half, folder = scratch / f"{task}-half-done", scratch / f"{task}-finished"
        with copy_at_checkpoint(folder, half, 4):
            while call(run_command(task, folder)).kind == "paused":
                answer_all(folder)
        if task != "pixels":
            call(["triage", str(folder), "--risk", "0.9", "--confidence", "0.5", "--device", "cpu"])
        for name, path in (("half-done", half), ("finished", folder)):
            if only in f"{task} {name}":
                yield Case(f"{task} {name}", path, task, name == "finished")


@contextlib.contextmanager
def copy_at_checkpoint(folder: Path, copy: Path, number: int) -> Iterator[None]:
    """Copy a run folder after it has written its n-th checkpoint."""
    genuine, written = files.write_atomically, 0

    def write(path: Path, *rest: Any) -> None:
        nonlocal written
        genuine(path, *rest)
        written += path == RunFolder(folder).checkpoint_path
        if written == number and not copy.exists():
            shutil.copytree(folder, copy)

    files.write_atomically = write  # type: ignore[assignment]
    try:
        yield
    finally:
        files.write_atomically = genuine


def run_command(task: str, folder: Path) -> list[str]:
    """Return the arguments that start or resume a run."""
    return ["run", *RUNS[task], "--out", str(folder)]


def answer_all(folder: Path) -> None:
    """Answer all open questions, as a person would."""
    store = AnnotationStore(RunFolder(folder).questions_path)
    question_round = store.open_round()
    if question_round is not None:
        words = question_round.rules.classes
        raw = [{"question": q.id, "word": words[q.number % len(words)]} for q in question_round.questions]
        for one in raw:
            store.receive([one], channel="benchmark")


# ---- damage


def damages(case: Case, flips: int) -> Iterator[tuple[str, str, Callable[[Path], object]]]:
    """Yield the damaged file, the kind of damage, and a function that does it to a copy of the folder."""
    paths = sorted(p for p in case.folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    thumbnails = [path for path in paths if path.parent.name == "thumbnails"]
    for path in [p for p in paths if p not in thumbnails[2:]]:
        name = path.relative_to(case.folder).as_posix()
        data = path.read_bytes()
        if path != RunFolder(case.folder).triage_path:  # users delete it to predict without a rule
            yield name, "delete", partial(change, name=name, content=None)
        changed = {"truncate": data[: len(data) // 2], "empty": b"", "zero": bytes(len(data))}
        for number in range(flips):
            bit = random.Random(f"{name} {number}").randrange(8 * len(data))
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            changed[f"flip bit {bit}"] = bytes(flipped)
        for kind, content in changed.items():
            yield name, kind, partial(change, name=name, content=content)
    for name in ("labels", "requests", "snapshots"):
        if (case.folder / name / "round-02.npz").exists():
            yield f"{name}/round-01.npz", "swap rounds", partial(swap, name=name)


def change(folder: Path, name: str, content: bytes | None) -> None:
    """Overwrite a file, or delete it."""
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)


def swap(folder: Path, name: str) -> None:
    """Swap the files of two rounds."""
    first, second = folder / name / "round-01.npz", folder / name / "round-02.npz"
    first_bytes = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(first_bytes)


# ---- commands


def call(arguments: Sequence[str], out: Path | None = None) -> Outcome:
    """Run a command in this process; its output is what it prints and the files below ``out``."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            code = app(list(arguments), exit_on_error=False, result_action="return_value")
    except UserError as error:
        return Outcome("refused", str(error))
    except AwaitingLabels as pause:
        return Outcome("paused", str(pause))
    except Exception as error:
        return Outcome(type(error).__name__, str(error))
    written = sorted(p for p in out.rglob("*") if p.is_file()) if out is not None and out.exists() else []
    digest = [
        f"{p.name} {p.read_bytes()!r}" for p in written if not p.name.startswith("chunk-")
    ]  # have times
    return Outcome("refused" if code else "done", "\n".join([text.getvalue(), *digest]))


def commands(case: Case, folder: Path, out: Path, images: Path) -> dict[str, list[str]]:
    """Return the commands that read a run folder."""
    run, device = str(folder), ("--device", "cpu")
    found = {
        "report": ["report", run, "--out", str(out)],
        "watch": ["watch", run, "--once"],
        "labels": ["labels", run],
    }
    if case.task == "pixels":
        found["picks"] = ["picks", run, "--out", str(out / "picks.png")]
    else:
        found["figure"] = ["figure", "gallery", run, "--out", str(out / "figure.svg")]
    if case.task == "people":
        found["answers"] = ["answers", run]
        found["answers --csv"] = ["answers", run, "--csv"]
    if not case.finished:
        return found
    found["evaluate"] = ["evaluate", run, *device]
    found["export"] = ["export", run, "--out", str(out)]
    target = out if case.task == "pixels" else out / "predictions.csv"
    found["predict"] = ["predict", run, str(images), "--out", str(target), *device]
    if case.task != "pixels":
        found["score"] = ["score", run, str(images), "--budget", "3", *device, "--out", str(out)]
        found["triage"] = ["triage", run, "--risk", "0.9", "--confidence", "0.5", *device]
    return found


def read_all(case: Case, folder: Path, scratch: Path, only: Sequence[str] | None) -> dict[str, Outcome]:
    """Call all readers, then resume the run."""
    images = scratch / "images"
    if not images.exists():
        images.mkdir()
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), np.uint8)
            Image.fromarray(pixels).save(images / f"{number}.png")
    found = {}
    for name, arguments in commands(case, folder, scratch / "out", images).items():
        if only is not None and name not in only:
            continue
        (scratch / "out").mkdir()
        outcome = call(arguments, scratch / "out")
        shutil.rmtree(scratch / "out")
        found[name] = outcome._replace(output=without_times(outcome.output))
    resumed = call(run_command(case.task, folder))
    while resumed.kind == "paused":
        answer_all(folder)
        resumed = call(run_command(case.task, folder))
    found["run"] = resumed if resumed.kind != "done" else Outcome("done", "", result_of(folder))
    return found


def without_times(text: str) -> str:
    """Remove times, which differ between two equal calls."""
    text = re.sub(r"\d+(\.\d+)?(?= (s|seconds|min|minutes|images/s|MB|per second)\b)", "0", text)
    text = re.sub(r"last write \d+ \w+ ago; run\s+the\s+same\s+command\s+again\s+to\s+resume", "", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?", "", text)
    return re.sub(r'"\w*(second|memory|rate)\w*": [\d.e+-]+', "", text)


def result_of(folder: Path) -> dict[str, object]:
    """Return labels, weights, metrics, selections, snapshots and confusion matrices of a finished run.

    A file that readers refuse does not count.
    """
    patterns = ("labels/*.npz", "requests/*.npz", "snapshots/*.npz", "confusion/*.csv", "*.safetensors")
    contents: dict[str, object] = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
        if is_intact(path)
    }
    return {**contents, "stages": [_numbers(record) for record in RunFolder(folder).read_records("stage")]}


def is_intact(path: Path) -> bool:
    """Return whether a file matches its checksum."""
    try:
        checksums.verify(path)
    except UserError:
        return False
    return True


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items() if not any(part in k for part in VOLATILE)}
    return value


# ---- attack


class Attack(NamedTuple):
    """Outcomes of all damages of one folder."""

    counts: Counter[str]
    failures: list[str]


def attack(case: Case, scratch: Path, flips: int, only: Sequence[str] | None) -> Attack:
    """Damage a copy of the folder in every way, and compare all commands with the undamaged folder."""
    folder, counts, failures = scratch / "case" / "run", Counter[str](), list[str]()

    def restore() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(case.folder, folder)

    restore()
    expected = read_all(case, folder, scratch, only)
    restore()
    again = read_all(case, folder, scratch, only)
    for name in expected:
        if expected[name] != again[name]:
            shown = difference(expected[name], again[name])
            failures.append(f"{case.name}: {name} differs between two equal calls: {shown}")
        if expected[name].kind != "done":
            failures.append(f"{case.name}: {name} of the undamaged run: {expected[name]}")
    for file, kind, damage in damages(case, flips):
        restore()
        damage(folder)
        for name, outcome in read_all(case, folder, scratch, only).items():
            verdict = judge(name, file, expected[name], outcome)
            counts[verdict] += 1
            if verdict in ("DIFFERENT", "EXCEPTION"):
                shown = (
                    outcome.output[:300] if verdict == "EXCEPTION" else difference(expected[name], outcome)
                )
                failures.append(f"{verdict}: {case.name}, {kind} {file}, {name}: {outcome.kind} {shown!r}")
                print(failures[-1], flush=True)
    return Attack(counts, failures)


def judge(command: str, file: str, expected: Outcome, outcome: Outcome) -> str:
    """Return same, refused, named (the output differs, but names the file), DIFFERENT or EXCEPTION."""
    if outcome == expected:
        return "same"
    if outcome.kind == "refused":
        return "refused"
    if outcome.kind not in ("done", "paused"):
        return "EXCEPTION"
    if command == "watch" and file == "model.safetensors" and "stopped" in outcome.output:
        return "same"  # as after a kill before the last write
    lost = expected.result.keys() - outcome.result.keys()
    unchanged = all(expected.result.get(name) == content for name, content in outcome.result.items())
    if command == "run" and unchanged and all(name.startswith(OPTIONAL) for name in lost):
        return "same"  # for a finished run, which does not need these files
    is_named = Path(file).name in outcome.output.replace("\n", "") or "are corrupt" in outcome.output
    return "named" if command in LENIENT and is_named else "DIFFERENT"


def difference(a: Outcome, b: Outcome) -> str:
    """Return where two outputs differ."""
    pairs = enumerate(zip(a.output, b.output, strict=False))
    at = next((i for i, (x, y) in pairs if x != y), min(len(a.output), len(b.output)))
    shown = slice(max(at - 60, 0), at + 60)
    files_differ = [name for name in a.result if a.result[name] != b.result.get(name)]
    return f"{a.output[shown]!r} against {b.output[shown]!r} {files_differ or ''}"


if __name__ == "__main__":
    main()
