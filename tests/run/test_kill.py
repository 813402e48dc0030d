"""A run killed by SIGKILL at any moment resumes and ends with bitwise the same result.

All files of a run are written by ``write_atomically``. The tests kill a run inside every write, between
writes and in the middle of every phase, and resume it.
"""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from child_process import run_in_child
from conftest import quick, quick_pixels
from ducats.annotation import oracles
from ducats.ledger import Request, RequestWriter, load_ledger, load_request
from ducats.run import checkpoint, run, snapshot
from ducats.run.factory import build_run
from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils import files
from ducats.utils.progress import Event

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

MOMENTS = ("before", "inside", "after")
WRITES = 31
THUMBNAILS = 2  # thumbnails per round, one write each
SETTINGS = (
    "query={name: spread}",
    "views.scoring={crop: random, pad: 1}",
    "views.source={crop: random, pad: 1}",
)


PIXELS = ("task.unit=region", "views.source={crop: random, pad: 1, flip: 0.5}")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_once(
    folder: Path, on_event: Callable[[Event], None] = lambda _: None, *, pixels: bool = False
) -> None:
    snapshot.MAX_THUMBNAILS = snapshot.MAX_SEGMENTATION_THUMBNAILS = THUMBNAILS
    config = quick_pixels(*PIXELS) if pixels else quick(*SETTINGS)
    components, plan = build_run(config, RunFolder(folder))
    fabric = make_fabric("cpu")
    fabric.launch()
    run(components, plan, folder, fabric=fabric, identity=config.identity(), on_event=on_event)


def killed_at_write(number: int, moment: str) -> Callable[[Path, Callable[[IO[bytes]], object]], None]:
    """Return a ``write_atomically`` that kills the process at its n-th call."""
    genuine, calls = files.write_atomically, 0

    def write(path: Path, put: Callable[[IO[bytes]], object]) -> None:
        nonlocal calls
        calls += 1
        if calls != number:
            return genuine(path, put)
        if moment == "before":
            die()
        if moment == "inside":  # killed with a half-written draft

            def half(file: IO[bytes]) -> None:
                file.write(b"half a file")
                file.flush()
                die()

            return genuine(path, half)
        genuine(path, put)
        return die()

    return write


def with_writer(write: Any, folder: Path, *, pixels: bool = False) -> None:
    for module in (files, checkpoint, oracles.human, snapshot):
        module.write_atomically = write  # type: ignore[attr-defined]
    run_once(folder, pixels=pixels)


def outcome(folder: Path) -> dict[str, Any]:
    """Return the contents of a run folder without timings."""
    run_folder = RunFolder(folder)
    patterns = ("round-*.npz", "final.npz", "epoch-*.csv", "snapshots/thumbnails/*")
    names = [p for pattern in patterns for p in folder.rglob(pattern)]
    contents = {p.relative_to(folder).as_posix(): p.read_bytes() for p in names}
    timing_keys = ("seconds", "peak_memory_bytes")
    lines = [
        {k: v for k, v in r.items() if k not in timing_keys}
        for r in records.read_records(run_folder.metrics_path)
    ]
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    momentum = [s["momentum_buffer"].tolist() for s in checkpoint["optimiser"]["state"].values()]
    return {
        "labels, requests, snapshots and confusion": contents,
        "metrics": json.dumps(lines),
        "model": (folder / "model.safetensors").read_bytes(),
        "momentum": momentum,
        "ledger": list(load_ledger(run_folder).entries()),
        "drafts": [p.name for p in folder.rglob("*.part")],
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_in_child(lambda: run_once(folder)) == 0
    return outcome(folder)


@pytest.fixture(scope="module")
def undisturbed_pixels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole") / "pixels"
    assert run_in_child(lambda: run_once(folder, pixels=True)) == 0
    return outcome(folder)


@pytest.fixture(scope="module")
def writes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Count the writes of a run."""
    folder = tmp_path_factory.mktemp("count")
    tally = folder / "tally"
    tally.touch()
    genuine = files.write_atomically

    def count(path: Path, put: Callable[[IO[bytes]], object]) -> None:
        with tally.open("a") as file:
            file.write(f"{path.name}\n")
        genuine(path, put)

    assert run_in_child(lambda: with_writer(count, folder / "run")) == 0
    return len(tally.read_text().splitlines())


def test_every_write_is_a_kill_point(writes: int) -> None:
    # Config, data, environment, pool, initial weights; per epoch a record and a checkpoint; per stage a
    # confusion matrix and a record; per round a request, thumbnails, a snapshot and labels; the final
    # snapshot and the model.
    assert writes == WRITES == 5 + 4 * 2 + 3 * 2 + 2 * (3 + THUMBNAILS) + 2


# The state before a write equals the state after the previous one; a kill inside adds a draft.
KILLS = [(number, "inside") for number in range(1, WRITES + 1)]
KILLS += [(1, "before"), *((number, "after") for number in range(1, WRITES + 1, 2))]


@pytest.mark.parametrize(("number", "moment"), KILLS)
def test_killed_at_a_write(tmp_path: Path, undisturbed: dict[str, Any], number: int, moment: str) -> None:
    folder = tmp_path / "run"
    assert run_in_child(lambda: with_writer(killed_at_write(number, moment), folder)) == -signal.SIGKILL
    assert run_in_child(lambda: run_once(folder)) == 0
    assert outcome(folder) == undisturbed


@pytest.mark.parametrize(
    ("phase", "count"),
    [("train", 1), ("train", 5), ("train", 9), ("train", 17), ("train", 24)]
    + [(phase, count) for phase in ("evaluate", "query") for count in (1, 2)]
    + [("evaluate", 5), ("done", 1)],
)
def test_killed_in_a_phase(tmp_path: Path, undisturbed: dict[str, Any], phase: str, count: int) -> None:
    folder = tmp_path / "run"
    n_events = 0

    def on_event(event: Event) -> None:
        nonlocal n_events
        n_events += event.phase == phase
        if n_events == count:
            die()

    assert run_in_child(lambda: run_once(folder, on_event)) == -signal.SIGKILL
    assert run_in_child(lambda: run_once(folder)) == 0
    assert outcome(folder) == undisturbed


def test_a_lost_checkpoint_only_costs_time(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """Repeated epochs must not use labels acquired after them."""
    folder = tmp_path / "run"
    assert run_in_child(lambda: with_writer(killed_at_write(WRITES, "before"), folder)) == -signal.SIGKILL
    assert load_ledger(RunFolder(folder)).n_rounds == 2
    (folder / "checkpoint.pt").unlink()
    assert run_in_child(lambda: run_once(folder)) == 0
    assert outcome(folder) == undisturbed


def test_killed_repeatedly(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """A run killed at every third write still finishes."""
    folder = tmp_path / "run"
    kills = 0
    while (code := run_in_child(partial(with_writer, killed_at_write(3, MOMENTS[kills % 3]), folder))) != 0:
        assert code == -signal.SIGKILL
        kills += 1
        assert kills < 60, "no progress between kills"
    assert kills >= 5
    assert outcome(folder) == undisturbed


# ---- pixels

# Writes: 8 a confusion matrix, 9 a stage's record, 10 the first request, 11 and 12 thumbnails, 13 a snapshot,
# 14 the labels, 16 a checkpoint, 19 to 21 the second request, its snapshot (the thumbnails exist) and its
# labels, 28 the final snapshot, 29 the model.
PIXEL_KILLS = [(8, "after"), (10, "before"), (10, "inside"), (10, "after"), (12, "inside"), (13, "inside")]
PIXEL_KILLS += [(13, "after"), (14, "inside"), (14, "after")]


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *PIXEL_KILLS,
        (16, "before"),
        (19, "after"),
        (20, "after"),
        (21, "before"),
        (28, "inside"),
        (29, "inside"),
    ],
)
def test_segmentation_killed_at_a_write(
    tmp_path: Path, undisturbed_pixels: dict[str, Any], number: int, moment: str
) -> None:
    folder = tmp_path / "run"
    write = killed_at_write(number, moment)
    assert run_in_child(lambda: with_writer(write, folder, pixels=True)) == -signal.SIGKILL
    found = sorted(p.name for p in (folder / "labels").glob("*")) if (folder / "labels").exists() else []
    n_rounds = 0 if number < 14 or (number, moment) == (14, "inside") else 1 if number < 22 else 2
    assert [name for name in found if name.startswith("round")] == ["round-01.npz", "round-02.npz"][:n_rounds]
    assert run_in_child(lambda: run_once(folder, pixels=True)) == 0
    assert outcome(folder) == undisturbed_pixels


@pytest.mark.parametrize("image", [1, 4, 9])  # first, middle, and in the second round
def test_killed_while_writing_a_request(
    tmp_path: Path, undisturbed_pixels: dict[str, Any], image: int
) -> None:
    folder, calls, genuine = tmp_path / "run", 0, RequestWriter.add

    def add(self: RequestWriter, *block: Any) -> None:
        nonlocal calls
        calls += 1
        genuine(self, *block)
        if calls == image:
            die()

    def act() -> None:
        RequestWriter.add = add  # type: ignore[method-assign, assignment] # only in the child
        run_once(folder, pixels=True)

    assert run_in_child(act) == -signal.SIGKILL
    # The partial selection leaves neither a request nor a draft.
    assert [p.name for p in (folder / "requests").glob("*")] == (["round-01.npz"] if image > 5 else [])
    assert run_in_child(lambda: run_once(folder, pixels=True)) == 0
    assert outcome(folder) == undisturbed_pixels


def test_repeated_epochs_do_not_use_pixels_labelled_after_them(
    tmp_path: Path, undisturbed_pixels: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    write = killed_at_write(WRITES - THUMBNAILS, "before")  # both rounds share the thumbnails
    assert run_in_child(lambda: with_writer(write, folder, pixels=True)) == -signal.SIGKILL
    assert load_ledger(RunFolder(folder)).n_rounds == 2
    (folder / "checkpoint.pt").unlink()
    assert run_in_child(lambda: run_once(folder, pixels=True)) == 0
    assert outcome(folder) == undisturbed_pixels


# ---- hints for annotators


class OracleWithHints:
    """Ground-truth oracle that requests hints."""

    wants_hints = True

    def __init__(self, oracle: oracles.Oracle) -> None:
        self.oracle = oracle

    def __call__(self, request: Request) -> torch.Tensor:
        return self.oracle(request)


def run_with_hints(folder: Path, write: Any = None) -> None:
    snapshot.MAX_THUMBNAILS = snapshot.MAX_SEGMENTATION_THUMBNAILS = THUMBNAILS
    if write is not None:
        for module in (files, checkpoint, snapshot):
            module.write_atomically = write  # type: ignore[attr-defined]
    config = quick_pixels(*PIXELS)
    components, plan = build_run(config, RunFolder(folder))
    fabric = make_fabric("cpu")
    fabric.launch()
    run(replace(components, oracle=OracleWithHints(components.oracle)), plan, folder, fabric=fabric)


@pytest.fixture(scope="module")
def undisturbed_hints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole") / "hints"
    assert run_in_child(lambda: run_with_hints(folder)) == 0
    return outcome(folder)


# Hints are written between a request and its snapshot: writes 10, 11 and 14 of the first round.
@pytest.mark.parametrize(
    ("number", "moment"), [(10, "after"), (11, "inside"), (11, "after"), (14, "before"), (21, "inside")]
)
def test_killed_between_a_request_and_its_hints(
    tmp_path: Path, undisturbed_hints: dict[str, Any], number: int, moment: str
) -> None:
    folder = tmp_path / "run"
    assert run_in_child(lambda: run_with_hints(folder, killed_at_write(number, moment))) == -signal.SIGKILL
    rounds_with_hints = [n for n in (1, 2) if (folder / "requests" / f"round-{n:02d}-hints.npz").exists()]
    assert load_request(RunFolder(folder), 1) is not None
    assert rounds_with_hints == {(10, "after"): [], (11, "inside"): []}.get((number, moment), [1])
    assert run_in_child(lambda: run_with_hints(folder)) == 0
    assert outcome(folder) == undisturbed_hints
    contents = undisturbed_hints["labels, requests, snapshots and confusion"]
    assert {"requests/round-01-hints.npz", "requests/round-02-hints.npz"} <= contents.keys()
