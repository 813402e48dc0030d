"""Digests of small CPU runs, to show that a refactoring changes no result.

    python benchmarks/digests.py --out before.json
    ... refactor ...
    python benchmarks/digests.py --out after.json --against before.json

Covers every method on toy images, every segmentation method on synthetic streets, a run of two processes,
scoring with several queries, an export, a triage rule and predictions, all through the command line. A digest
covers numbers only: the labels in the order in which they were acquired, the final weights, and every metric
except times and memory. Names of keys, columns and parameters do not count: renaming them changes no digest.

Digests are comparable on one machine with one version of torch; do not commit them. Takes about two minutes
on one core.
"""

import argparse
import contextlib
import csv
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from ducats.cli.base import app

TOY = (
    "data.name=toy",
    "model.name=small_cnn",
    "model.params={width: 4, features: 16}",
    "train.epochs=4",
    "train.steps_per_epoch=6",
    "train.batch_size=16",
    "train.lr=0.05",
    "acquisition={budget: 20, rounds: null, after_epochs: [1, 2]}",
    "engine.device=cpu",
    "engine.scoring_batch_size=32",
    "views={source: {crop: random, pad: 1, flip: 0.5, size: null, jitter: [0, 0, 0, 0]}, "
    "unlabelled: {crop: random, pad: 1, size: null}, scoring: {crop: none, size: null}, "
    "test: {crop: none, size: null}}",
)
STREETS = (
    "data.params={n_source: 6, n_pool: 5, n_test: 3, height: 16, width: 32}",
    "model.params={width: 8}",
    "train.epochs=4",
    "train.steps_per_epoch=8",
    "train.batch_size=2",
    "engine.device=cpu",
    "engine.scoring_batch_size=2",
)
STREETS_ROUNDS = {  # by method; "" for all others
    "": "acquisition={budget: 5%, rounds: null, after_epochs: [1, 2]}",
    "aada-seg": "acquisition={budget: 2, rounds: null, after_epochs: [1, 2]}",
    "mada": "acquisition={budget: 2, rounds: 1, after_epochs: null}",
}
NO_ROUNDS = ("source-only", "fully-supervised", "mrkld", "proda", "seg-uncertainty", "tpld")
SEGMENTATION_ONLY = (
    *("aada-seg", "eada-seg", "mada", "mrkld", "proda", "ripu", "ripu-points"),
    *("seg-uncertainty", "tpld"),
)
SEGMENTATION = (
    *SEGMENTATION_ONLY,
    *("duc", "duc-random", "ducats", "entropy", "fully-supervised", "least_confident", "margin", "random"),
    "source-only",
)
# Settings on top of a method, by task: (name, method, settings).
VARIANTS = (
    ("toy", "ducats-joint", "ducats", ("train.target_batching=joint",)),
    ("toy", "duc-kappa", "duc", ("query.params.kappa=2",)),
    ("toy", "duc-float64", "duc", ("engine.precision=64-true",)),
    ("toy", "duc-softplus", "duc", ("model.evidence=softplus_plus_one",)),
    ("toy", "duc-unlabelled-test", "duc", ("evaluation.split=unlabelled",)),
    ("streets", "ripu-points-near", "ripu-points", ("query.params.radius=2",)),
    ("streets", "duc-region", "duc", ("task.unit=region",)),
    ("streets", "duc-superpixel", "duc", ("task.unit=superpixel",)),
    (
        "streets",
        "duc-image",
        "duc",
        ("task.unit=image", "acquisition={budget: 2, rounds: null, after_epochs: [1, 2]}"),
    ),
    ("streets", "duc-original", "duc", ("task.resolution=original", "evaluation.average_flipped=true")),
)
SCORE_QUERIES = ("duc", "entropy", "coreset")
VOLATILE = ("seconds", "memory", "rate")  # parts of keys whose values differ between two equal runs


def main() -> None:
    """Compute all digests, write them and compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--against", type=Path, help="JSON file of an earlier call to compare with")
    parser.add_argument("--only", help="compute only digests whose name contains this text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, compute in jobs(Path(scratch)):
            if options.only and options.only not in name:
                continue
            started = time.monotonic()
            digests[name] = compute()
            print(f"{name:40s} {digests[name]} {time.monotonic() - started:6.1f} s", flush=True)
            options.out.write_text(json.dumps(digests, indent=1), encoding="utf-8")
    if options.against:
        sys.exit(compare(json.loads(options.against.read_text(encoding="utf-8")), digests))


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    """Print what differs; return an exit code."""
    shared = before.keys() & after.keys()
    differing = sorted(name for name in shared if before[name] != after[name])
    print(f"{len(shared) - len(differing)} of {len(shared)} digests are equal")
    for name in differing:
        print(f"differs: {name}")
    return 1 if differing or not shared else 0


def jobs(scratch: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name every digest and say how to compute it; runs that later jobs read come first."""
    configs = Path(__file__).parent.parent / "src" / "ducats" / "configs"
    methods = sorted(path.stem for path in (configs / "methods").glob("*.yaml"))
    ablations = sorted(path.stem for path in (configs / "ablation").glob("*.yaml"))
    for method in [m for m in methods if m not in SEGMENTATION_ONLY]:
        yield f"toy {method}", run(scratch, "toy", method, f"methods/{method}")
    for row in ablations:
        yield f"toy ablation {row}", run(scratch, "toy", f"ablation-{row}", f"ablation/{row}")
    for method in [m for m in methods if m in SEGMENTATION]:
        yield f"streets {method}", run(scratch, "streets", method, f"methods/{method}")
    for task, name, method, settings in VARIANTS:
        yield f"{task} {name}", run(scratch, task, name, f"methods/{method}", settings)
    yield "toy duc in two processes", two_processes(scratch)
    trained, images = scratch / "toy" / "duc", image_folder(scratch / "images")
    for query in SCORE_QUERIES:
        yield f"score {query}", score(scratch, trained, images, query)
    yield "export", export(scratch, trained)
    yield "triage", triage(trained)
    yield "predict images", predict(scratch, trained, images)
    yield "predict label maps", predict(scratch, scratch / "streets" / "duc", images)


def settings_of(task: str, name: str, config: str, extra: Sequence[str]) -> list[str]:
    """Command-line options of a small run."""
    if task == "toy":
        files, settings = [config], list(TOY)
        if name in NO_ROUNDS:
            settings = [s for s in settings if not s.startswith("acquisition=")]
    else:
        files, settings = ["data/streets", config], list(STREETS)
        if name not in NO_ROUNDS:
            settings.append(STREETS_ROUNDS.get(name, STREETS_ROUNDS[""]))
    options = [option for file in files for option in ("-c", file)]
    return [*options, *(part for setting in (*settings, *extra) for part in ("--set", setting))]


def ducats(*arguments: str | Path) -> str:
    """Run a command in this process and return its standard output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = app([str(a) for a in arguments], exit_on_error=False, result_action="return_value")
    if code:
        raise SystemExit(f"ducats {arguments[0]} ended with exit code {code}")
    return out.getvalue()


def run(scratch: Path, task: str, name: str, config: str, extra: Sequence[str] = ()) -> Callable[[], str]:
    """Digest of a run."""

    def compute() -> str:
        folder = scratch / task / name
        ducats("run", *settings_of(task, name, config, extra), "--out", folder)
        return of_run(folder)

    return compute


def two_processes(scratch: Path) -> Callable[[], str]:
    """Digest of a run that two processes share."""

    def compute() -> str:
        folder = scratch / "two-processes"
        options = settings_of("toy", "duc", "methods/duc", ("engine.processes=2", "engine.threads=1"))
        command = [sys.executable, "-m", "ducats", "run", *options, "--out", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
        return of_run(folder)

    return compute


def score(scratch: Path, trained: Path, images: Path, query: str) -> Callable[[], str]:
    """Digest of the picks among a folder of images."""

    def compute() -> str:
        out = scratch / f"score-{query}"
        options = ("--budget", "9", "--query", query, "--device", "cpu")
        kappa = () if query == "entropy" else ("--kappa", "2")
        ducats("score", trained, images, *options, *kappa, "--out", out)
        return digest(csv_rows((out / "picks.csv").read_text(encoding="utf-8")))

    return compute


def export(scratch: Path, trained: Path) -> Callable[[], str]:
    """Digest of exported weights and preprocessing."""

    def compute() -> str:
        out = scratch / "export"
        ducats("export", trained, "--out", out)
        files = [numbers(json.loads(p.read_text(encoding="utf-8"))) for p in sorted(out.glob("*.json"))]
        return digest(sorted(map(weights, out.glob("*.safetensors"))), sorted(map(repr, files)))

    return compute


def triage(trained: Path) -> Callable[[], str]:
    """Digest of a triage rule; written into the run's folder, where predictions use it."""

    def compute() -> str:
        ducats("triage", trained, "--risk", "0.3", "--confidence", "0.6", "--device", "cpu")
        return digest(numbers(json.loads((trained / "triage.json").read_text(encoding="utf-8"))))

    return compute


def predict(scratch: Path, trained: Path, images: Path) -> Callable[[], str]:
    """Digest of predictions for a folder of images: a table, or label maps."""

    def compute() -> str:
        out = scratch / f"predictions-{trained.parent.name}"
        target = out / "predictions.csv" if trained.parent.name == "toy" else out
        out.mkdir()
        ducats("predict", trained, images, "--out", target, "--device", "cpu")
        tables = [csv_rows(p.read_text(encoding="utf-8")) for p in sorted(out.rglob("*.csv"))]
        maps = [np.asarray(Image.open(p)).tobytes().hex() for p in sorted(out.rglob("*.png"))]
        return digest(tables, maps)

    return compute


def image_folder(folder: Path, count: int = 41) -> Path:
    """Write random images of several sizes."""
    generator = np.random.default_rng(0)
    for number in range(count):
        size = (8 + number % 3, 8 + number % 5, 3)
        path = folder / str(number % 4) / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, size, np.uint8)).save(path)
    return folder


def of_run(folder: Path) -> str:
    """Digest of a run folder: labels in order, final weights, metrics, selected samples, snapshots."""
    metrics = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    labels = csv_rows(ducats("labels", folder))
    saved = sorted(array_digest for path in folder.rglob("*.npz") for array_digest in arrays(path))
    return digest(
        labels, weights(folder / "model.safetensors"), [numbers(json.loads(m)) for m in metrics], saved
    )


def digest(*values: object) -> str:
    """Twelve characters for these values."""
    return hashlib.blake2b(repr(values).encode(), digest_size=6).hexdigest()


def weights(path: Path) -> list[str]:
    """Digest of each tensor of a safetensors file, whatever its name."""
    return sorted(digest(t.shape, t.contiguous().numpy().tobytes()) for t in load_file(path).values())


def arrays(path: Path) -> list[str]:
    """Digest of each numeric array of an NPZ file, whatever its name, except times."""
    with np.load(path) as file:
        named = {name: file[name] for name in file.files if not any(v in name for v in VOLATILE)}
    return [digest(a.shape, a.tobytes()) for a in named.values() if a.dtype.kind in "fiub"]


def numbers(value: Any) -> list[float]:
    """All numbers of a record in their order, except times and memory."""
    if isinstance(value, bool | int | float):
        return [float(value)]
    if isinstance(value, dict):
        stable = (inner for key, inner in value.items() if not any(v in key for v in VOLATILE))
        return [number for inner in stable for number in numbers(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in numbers(inner)]
    return []


def csv_rows(text: str) -> list[list[str]]:
    """Rows of a table without its header."""
    return list(csv.reader(io.StringIO(text)))[1:]


if __name__ == "__main__":
    main()
