"""Load test of the labelling page: concurrent annotators, answer latency, and lost answers.

    python benchmarks/labelling_load.py [--annotators 8] [--seconds 60] [--questions 100000] [--json FILE]

Starts `ducats label` on a synthetic round over loopback. Each simulated annotator answers the next question
as fast as the server responds. Then the server is killed, and every answer it acknowledged must be in the
answer log.
"""

import argparse
import http.client
import json
import platform
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from page_connection import PageConnection, serving
from PIL import Image

from ducats.annotation import AnswerLog, Question, QuestionRound, RoundRules

CLASSES = tuple(f"class {n}" for n in range(10))


@dataclass
class Annotator:
    """Simulated annotator who answers as fast as possible."""

    name: str
    url: str
    saved: list[str] = field(default_factory=list)  # ids of answers acknowledged by the server
    latencies: list[float] = field(default_factory=list)
    failed: str = ""

    def work(self, until: float) -> None:
        """Answer questions until the time ``until``."""
        try:
            self._work(until)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.failed = f"{type(error).__name__}: {error}"

    def _work(self, until: float) -> None:
        connection = PageConnection(self.url, self.name)
        state = connection.get("/api/state")
        while time.monotonic() < until and state["next"]:
            word = CLASSES[len(self.saved) % len(CLASSES)]
            start = time.perf_counter()
            state, external_ids = connection.answer({state["next"][0]["id"]: word})
            self.latencies.append(time.perf_counter() - start)
            self.saved += external_ids
        connection.close()


def write_round(run: Path, count: int) -> None:
    """Write a round of questions that all show the same thumbnail."""
    round_folder = run / "questions" / "round-01"
    (round_folder / "thumbnails").mkdir(parents=True)
    Image.new("RGB", (64, 64), "gray").save(round_folder / "thumbnails" / "0001.png")
    questions = (
        Question(n, f"image-{n}", f"image-{n}", "thumbnails/0001.png", guess=CLASSES[0], probability=0.5)
        for n in range(1, count + 1)
    )
    QuestionRound.write(round_folder, RoundRules(1, CLASSES, query="none"), questions)


def quantile_ms(quantile: float, sorted_values: list[float]) -> float:
    """Return a quantile in milliseconds, or 0 for an empty list."""
    if not sorted_values:
        return 0.0
    return round(1000 * sorted_values[min(int(quantile * len(sorted_values)), len(sorted_values) - 1)], 2)


def measure_load(n_annotators: int, seconds: float, questions: int) -> dict[str, Any]:
    """Return answers per second, latencies, and the number of lost answers."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_round(run, questions)
        with serving(run) as (url, _):
            Annotator("nobody", url).work(0.0)  # warm-up: the server reads the round
            annotators = [Annotator(f"person{n}", url) for n in range(n_annotators)]
            start = time.monotonic()
            threads = [threading.Thread(target=a.work, args=(start + seconds,)) for a in annotators]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = time.monotonic() - start
        logged_ids = [
            answer.external_id for answer in AnswerLog(run / "questions" / "answers.jsonl").answers()
        ]
    if errors := [annotator.failed for annotator in annotators if annotator.failed]:
        print(*errors, sep="\n", file=sys.stderr)
    saved = [external_id for annotator in annotators for external_id in annotator.saved]
    latencies = sorted(value for annotator in annotators for value in annotator.latencies)
    return {
        "people": n_annotators,
        "seconds": round(took, 1),
        "questions": questions,
        "answers": len(saved),
        "answers_per_second": round(len(saved) / took, 1),
        "median_ms": quantile_ms(0.5, latencies),
        "p99_ms": quantile_ms(0.99, latencies),
        "slowest_ms": quantile_ms(1.0, latencies),
        "lost": len(set(saved) - set(logged_ids)),
        "doubled": len(logged_ids) - len(set(logged_ids)),
        "failed": errors,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def main() -> None:
    """Run the load test, print the result, and write JSON if requested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--annotators", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure_load(options.annotators, options.seconds, options.questions)
    text = json.dumps(result, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    if result["lost"] or result["doubled"] or result["failed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
