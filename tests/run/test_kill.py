"""A run killed by SIGKILL at any moment resumes and ends with bitwise the same result.

All files of a run are written by ``write_atomically``. One run copies its folder inside every write, and
again before the file is renamed, when its checksum is recorded: such a copy is what a kill at this moment
leaves. Other runs are really killed, in each phase and again and again.
"""

import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest
import torch

import ranks
from child_process import run_in_child
from conftest import quick, quick_pixels
from ducats.annotation import oracles
from ducats.ledger import Request, RequestWriter, load_ledger
from ducats.run import run, snapshot
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils import files
from ducats.utils.progress import Event
from ranks import die

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

Write = Callable[..., None]
IMAGES = (
    "query={name: clue}",
    "acquisition={audit: 4, until: accuracy>99.9%}",
    "train.steps_per_epoch=2",
    "views.scoring={crop: random, pad: 1}",
    "views.source={crop: random, pad: 1}",
)
PIXELS = ("task.unit=region", "acquisition.audit=6", "views.source={crop: random, pad: 1, flip: 0.5}")

# Writes to kill at, as file and occurrence: each kind of file, and what differs with labels and at the end.
IMAGE_KILLS = [
    *(
        "checksums.jsonl 1",
        "config.yaml 1",
        "data.yaml 1",
        "environment.json 1",
        "pool.json 1",
        "checkpoint.pt 1",
    ),
    *("metrics.jsonl 1", "checkpoint.pt 2", "confusion/epoch-001.csv 1", "metrics.jsonl 2"),
    *("requests/round-01.npz 1", "thumbnail 2", "snapshots/round-01.npz 1", "labels/round-01.npz 1"),
    *("audit/epoch-001.npz 1", "metrics.jsonl 3", "checkpoint.pt 3", "requests/round-02.npz 1"),
    *("labels/round-02.npz 1", "audit/epoch-002.npz 1", "checkpoint.pt 5"),
    *("metrics.jsonl 7", "metrics.jsonl 11", "snapshots/final.npz 1", "model.safetensors 1"),
]
PIXEL_KILLS = [
    *("metrics.jsonl 2", "requests/round-01.npz 1", "requests/round-01-hints.npz 1", "thumbnail 2"),
    *("snapshots/round-01.npz 1", "labels/round-01.npz 1", "audit/epoch-001.npz 1", "metrics.jsonl 3"),
    *("checkpoint.pt 3", "requests/round-02.npz 1", "labels/round-02.npz 1", "audit/epoch-002.npz 1"),
    *("snapshots/final.npz 1", "model.safetensors 1"),
]


class OracleWithHints:
    """Ground-truth oracle that requests hints."""

    wants_hints = True

    def __init__(self, oracle: oracles.Oracle) -> None:
        self.oracle = oracle

    def __call__(self, request: Request) -> torch.Tensor:
        return self.oracle(request)


def run_once(
    folder: Path,
    on_event: Callable[[Event], None] = lambda _: None,
    *,
    write: Write | None = None,
    pixels: bool = False,
) -> None:
    """Run until the end in this process: of images, or of regions with hints for annotators."""
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("MAX_THUMBNAILS", "MAX_SEGMENTATION_THUMBNAILS"):
            patch.setattr(snapshot, limit, 2)
        if write is not None:
            patch.setattr(files, "write_atomically", write)
        config = quick_pixels(*PIXELS) if pixels else quick(*IMAGES)
        components, plan = build_run(config, RunFolder(folder))
        if pixels:
            components = replace(components, oracle=OracleWithHints(components.oracle))
        fabric = make_fabric("cpu")
        fabric.launch()
        run(components, plan, folder, fabric=fabric, identity=config.identity(), on_event=on_event)


def outcome(folder: Path) -> dict[str, Any]:
    """Return the contents of a run folder without timings."""
    patterns = ("round-*.npz", "final.npz", "epoch-*.csv", "snapshots/thumbnails/*")
    paths = [path for pattern in patterns for path in folder.rglob(pattern)]
    optimiser = torch.load(folder / "checkpoint.pt", weights_only=True)["optimiser"]
    return {
        **ranks.outcome(folder),
        "files": {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths},
        "momentum": [state["momentum_buffer"].tolist() for state in optimiser["state"].values()],
    }


class Recording(NamedTuple):
    """A whole run, and the copies of its folder inside each write, by file and occurrence."""

    outcome: dict[str, Any]
    copies: dict[str, Path]
    recorded: dict[str, Path]  # the same with the checksum of the new file, which is not renamed yet


def record(folder: Path, *, pixels: bool = False) -> Recording:
    genuine, occurrences = files.write_atomically, Counter[str]()
    copies, recorded = dict[str, Path](), dict[str, Path]()

    def write(path: Path, put: Callable[[IO[bytes]], object], replace: Any = None) -> None:
        def copy_half_written(file: IO[bytes]) -> None:
            file.write(b"half a file")
            file.flush()
            is_thumbnail = path.parent.name == "thumbnails"
            name = "thumbnail" if is_thumbnail else path.relative_to(folder / "run").as_posix()
            occurrences[name] += 1
            copies[f"{name} {occurrences[name]}"] = copy = folder / str(len(copies))
            shutil.copytree(folder / "run", copy)
            file.seek(0)
            file.truncate()
            put(file)

        genuine(path, copy_half_written, replace)

    genuine_replace = Path.replace

    def replace(draft: Path, path: Path) -> Path:
        write = [*copies][-1]
        recorded[write] = copy = folder / f"{len(copies)}-recorded"
        shutil.copytree(folder / "run", copy)
        return genuine_replace(draft, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        run_once(folder / "run", write=write, pixels=pixels)
    return Recording(outcome(folder / "run"), copies, recorded)


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def pixel_run(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("pixels"), pixels=True)


def test_every_kind_of_file_is_a_kill_point(image_run: Recording, pixel_run: Recording) -> None:
    def kinds(writes: Iterable[str]) -> set[str]:
        return {re.sub(r"[\d -]", "", write) for write in writes}

    assert kinds(IMAGE_KILLS) == kinds(image_run.copies)
    assert kinds(pixel_run.copies) - kinds(image_run.copies) == {"requests/roundhints.npz"}
    # Checksums, config, data, environment, pool, initial weights; per epoch a record and a checkpoint; per
    # stage a confusion matrix and a record; per round a request, two thumbnails, a snapshot and labels; the
    # final snapshot and the model; at each stage, the predictions and the record of the audit. Pixels have
    # hints, and both rounds share their thumbnails. Images have a record of the gain over random labels.
    assert len(pixel_run.copies) == 6 + 4 * 2 + 3 * 2 + 2 * 5 + 2 + 3 * 2
    assert len(image_run.copies) == len(pixel_run.copies) + 1


@pytest.mark.parametrize(
    ("pixels", "write"),
    [*((False, write) for write in IMAGE_KILLS), *((True, write) for write in PIXEL_KILLS)],
)
def test_killed_at_a_write(image_run: Recording, pixel_run: Recording, pixels: bool, write: str) -> None:
    undisturbed = pixel_run if pixels else image_run
    folder, writes = undisturbed.copies[write], list(undisturbed.copies)
    assert len(list(folder.rglob("*.part"))) == 1
    for name in ("requests/round-01.npz", "labels/round-01.npz", "labels/round-02.npz"):
        assert (folder / name).exists() == (writes.index(write) > writes.index(f"{name} 1"))
    run_once(folder, pixels=pixels)
    assert outcome(folder) == undisturbed.outcome


RECORDED_KILLS = [
    *(
        (False, f"{name} 1")
        for name in ("config.yaml", "pool.json", "labels/round-02.npz", "model.safetensors")
    ),
    *((False, write) for write in ("checkpoint.pt 3", "metrics.jsonl 3", "thumbnail 2")),
    *((True, write) for write in ("requests/round-01.npz 1", "snapshots/round-02.npz 1", "checkpoint.pt 2")),
]


@pytest.mark.parametrize(("pixels", "write"), RECORDED_KILLS)
def test_killed_after_a_checksum(
    image_run: Recording, pixel_run: Recording, pixels: bool, write: str
) -> None:
    undisturbed = pixel_run if pixels else image_run
    run_once(undisturbed.recorded[write], pixels=pixels)
    assert outcome(undisturbed.recorded[write]) == undisturbed.outcome


@pytest.mark.parametrize(("phase", "count"), [("train", 3), ("evaluate", 5), ("query", 2), ("done", 1)])
def test_killed_in_a_phase(tmp_path: Path, image_run: Recording, phase: str, count: int) -> None:
    folder, n_events = tmp_path / "run", 0

    def on_event(event: Event) -> None:
        nonlocal n_events
        n_events += event.phase == phase
        if n_events == count:
            die()

    assert run_in_child(lambda: run_once(folder, on_event)) == -signal.SIGKILL
    run_once(folder)
    assert outcome(folder) == image_run.outcome


def test_killed_repeatedly(tmp_path: Path, image_run: Recording) -> None:
    """A run killed before or after every third write still finishes."""
    folder, genuine, kills = tmp_path / "run", files.write_atomically, 0

    def resume() -> None:
        calls = 0

        def write(*rest: Any) -> None:
            nonlocal calls
            calls += 1
            if calls < 3 or kills % 2:
                genuine(*rest)
            if calls == 3:
                die()

        run_once(folder, write=write)

    while (code := run_in_child(resume)) != 0:
        assert code == -signal.SIGKILL
        kills += 1
        assert kills < 60, "no progress between kills"
    assert kills >= 5
    assert outcome(folder) == image_run.outcome


@pytest.mark.parametrize("pixels", [False, True])
def test_a_lost_checkpoint_only_costs_time(
    tmp_path: Path, image_run: Recording, pixel_run: Recording, pixels: bool
) -> None:
    """Repeated epochs must not use labels acquired after them."""
    undisturbed, folder = pixel_run if pixels else image_run, tmp_path / "run"
    shutil.copytree(undisturbed.copies["model.safetensors 1"].parent / "run", folder)
    (folder / "model.safetensors").unlink()
    (folder / "checkpoint.pt").unlink()
    assert load_ledger(RunFolder(folder)).n_rounds == 2
    run_once(folder, pixels=pixels)
    assert outcome(folder) == undisturbed.outcome


@pytest.mark.parametrize("image", [1, 9])  # the first, and one of the second round
def test_killed_while_writing_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pixel_run: Recording, image: int
) -> None:
    folder, calls, genuine = tmp_path / "run", 0, RequestWriter.add

    def add(self: RequestWriter, *block: Any) -> None:
        nonlocal calls
        calls += 1
        genuine(self, *block)
        if calls == image:
            die()

    with monkeypatch.context() as patch:
        patch.setattr(RequestWriter, "add", add)
        assert run_in_child(lambda: run_once(folder, pixels=True)) == -signal.SIGKILL
    # The partial selection leaves neither a request nor a draft.
    assert {p.name for p in (folder / "requests").glob("*")} == (
        {"round-01.npz", "round-01-hints.npz"} if image > 5 else set()
    )
    run_once(folder, pixels=True)
    assert outcome(folder) == pixel_run.outcome
