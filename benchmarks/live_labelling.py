"""Live labelling over HTTP, with an annotator who answers with the truth.

    python benchmarks/live_labelling.py [--images 1000 10000] [--answers 30] [--size 64] [--json FILE]
    python benchmarks/live_labelling.py --digits [--seeds 0 1 2] [--size 64] [--json FILE]

Starts `ducats label FOLDER --classes ... --backbone offline`, which needs `ducats[offline]`. The images are
embedded in views of --size pixels, in an empty cache.

Without --digits, the images are printed digits. Measures the start of the command, with and without embedded
images; an answer, from its POST to the reply; and the time from the POST until the model has learnt from it.
The annotator gives single answers and waits each time until the model has learnt; then opens the grid of
similar images and confirms them, twice; then answers without waiting for the model. CPU time is that of the
server. On a machine that others use, only CPU time means something.

With --digits, the images are the handwritten digits of the demo. After each answer, the model's guesses for
all unlabelled images are compared with the truth, for our query and for random order.

FILE keeps the results of the other mode.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from page_connection import PageConnection, serving
from PIL import Image
from torch import Tensor

from ducats.data.digits import DIGIT_CLASSES, digits

GRID_ACTS = 2
MAX_LABELS = 65  # with --digits
WANTED_ACCURACY = 0.9

Row = dict[str, Any]


def main() -> None:
    """Measure, print tables, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--answers", type=int, default=30)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = list(measure_digits(options) if options.digits else measure_latency(options))
    if options.json:
        results = json.loads(options.json.read_text()) if options.json.exists() else {}
        results["digits" if options.digits else "latency"] = {
            "command": f"python benchmarks/live_labelling.py{' --digits' if options.digits else ''}",
            "size": options.size,
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "rows": rows,
        }
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


class LiveFolder:
    """A folder of images to label live, and the truth."""

    def __init__(self, folder: Path, pixels: Tensor, labels: Tensor, size: int) -> None:
        self.folder, self.size = folder, size
        images = folder / "images"
        images.mkdir()
        self.truth: dict[str, str] = {}
        for number, (one, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            name = f"{number:05d}.png"
            Image.fromarray(one[0].numpy()).save(images / name)
            self.truth[name] = DIGIT_CLASSES[label]

    @contextmanager
    def session(self, name: str = "run", **settings: object) -> Iterator[tuple[PageConnection, int]]:
        """Start the command, sign in and yield the connection and the process id."""
        options = {"views.size": self.size, "engine.device": "cpu", **settings}
        with serving(
            self.folder / "images",
            *("--classes", ",".join(DIGIT_CLASSES), "--backbone", "offline", "--out", self.folder / name),
            *(text for key, value in options.items() for text in ("--set", f"{key}={value}")),
            env={**os.environ, "DUCATS_CACHE": str(self.folder / "cache")},
        ) as (url, pid):
            connection = PageConnection(url, "ada")
            try:
                yield connection, pid
            finally:
                connection.close()

    def words(self, questions: list[Row]) -> dict[str, str]:
        """Return the right answers to questions."""
        return {one["id"]: self.truth[one["id"]] for one in questions}


def wait_until_learnt(connection: PageConnection, state: Row) -> Row:
    """Return the state once the model has learnt from all answers."""
    while state["live"]["labels"] < state["counts"]["settled"]:
        time.sleep(0.02)
        state = connection.get("/api/state")
    return state


class Times:
    """Wall time and CPU time of the server, by action."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[tuple[float, float]]] = {}
        self.pid: int | None = None  # of the server

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Add the times of a block."""
        wall, cpu = time.perf_counter(), self._cpu()
        yield
        self.seconds.setdefault(what, []).append((time.perf_counter() - wall, self._cpu() - cpu))

    def _cpu(self) -> float:
        if self.pid is None:  # not started yet
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rows(self, images: int) -> Iterator[Row]:
        """Yield medians, and the slowest."""
        for what, seconds in self.seconds.items():
            yield {
                "images": images,
                "what": what,
                "n": len(seconds),
                "median": round(statistics.median(wall for wall, _ in seconds), 3),
                "slowest": round(max(wall for wall, _ in seconds), 3),
                "cpu": round(statistics.median(cpu for _, cpu in seconds), 2),
            }


def measure_latency(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the times for each number of images."""
    print("| images | | n | median s | slowest s | CPU s |\n| ---: | --- | ---: | ---: | ---: | ---: |")
    for count in options.images:
        data = digits(n_source=count, size=32)
        with tempfile.TemporaryDirectory() as folder:
            live = LiveFolder(Path(folder), data.source.images.pixels[:], data.source.labels[:], options.size)
            times = label(live, options.answers)
        for row in times.rows(count):
            print("| {images:,} | {what} | {n} | {median} | {slowest} | {cpu} |".format(**row), flush=True)
            yield row


def label(live: LiveFolder, n_answers: int) -> Times:
    """Label some images and return the times of all actions."""
    times = Times()

    def act(connection: PageConnection, what: str, questions: list[Row], *, waits: bool = True) -> Row:
        words = live.words(questions)
        with times.measure(f"{what}, until learnt") if waits else nullcontext():
            with times.measure(what):
                state = connection.answer(words)[0]
            return wait_until_learnt(connection, state) if waits else state

    for what in ("start", "start, images embedded before"):
        times.pid = None
        with ExitStack() as stack:
            with times.measure(what):
                connection, times.pid = stack.enter_context(live.session())
            if what == "start":  # the second session answers
                continue
            state = connection.get("/api/state")
            for _ in range(n_answers):
                state = act(connection, "answer", state["next"][:1])
            for _ in range(GRID_ACTS):
                with times.measure("grid"):
                    grid = connection.get("/api/grid", guess="")
                what = f"{len(grid['questions'])} answers in the grid"
                state = act(connection, what, grid["questions"])
            for _ in range(n_answers):
                state = act(connection, "answer without waiting", state["next"][:1], waits=False)
            with times.measure("answer without waiting, until the last one is learnt"):
                wait_until_learnt(connection, state)
    return times


def measure_digits(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the accuracy on the unlabelled images by number of labels, for each query and seed."""
    data = digits()
    assert data.ground_truth is not None
    print(f"| query | seed | accuracy %, {MAX_LABELS} labels | labels to {WANTED_ACCURACY:.0%} |")
    print("| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        live = LiveFolder(
            Path(folder), data.pool.pixels[:], torch.as_tensor(data.ground_truth[:]), options.size
        )
        for query, seed in itertools.product(("coverage", "random"), options.seeds):
            with live.session(f"{query}-{seed}", seed=seed, **{"query.name": query}) as (connection, _):
                accuracies = learning_curve(live, connection)
            reached = next((n for n, one in enumerate(accuracies, 1) if one >= WANTED_ACCURACY), None)
            print(f"| {query} | {seed} | {100 * accuracies[-1]:.1f} | {reached or '–'} |", flush=True)
            yield {
                "query": query,
                "seed": seed,
                "labels_to_90": reached,
                "accuracies": [round(one, 4) for one in accuracies],
            }


def learning_curve(live: LiveFolder, connection: PageConnection) -> list[float]:
    """Return the accuracy on the unlabelled images after each answer."""
    state, labelled, accuracies = connection.get("/api/state"), set[str](), []
    for _ in range(MAX_LABELS):
        words = live.words(state["next"][:1])
        labelled |= words.keys()
        state = wait_until_learnt(connection, connection.answer(words)[0])
        guesses = [connection.get(f"/api/question/1/{n}") for n in range(1, len(live.truth) + 1)]
        right = [one["guess"] == live.truth[one["id"]] for one in guesses if one["id"] not in labelled]
        accuracies.append(sum(right) / len(right))
    return accuracies


if __name__ == "__main__":
    main()
