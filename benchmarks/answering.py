"""Load test of the labelling page: concurrent annotators, answer latency, and lost answers.

    python benchmarks/answering.py [--people 8] [--seconds 60] [--questions 100000] [--json FILE]

Starts `ducats label` on a synthetic round over loopback. Each simulated annotator answers the next question
as fast as the server responds. Then the server is killed, and every answer it acknowledged must be in the
answer log.
"""

import argparse
import http.client
import json
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from ducats.annotation import AnswerLog, Question, QuestionRound, RoundRules

CLASSES = tuple(f"class {n}" for n in range(10))


@dataclass
class Annotator:
    """Simulated annotator who answers as fast as possible."""

    who: str
    host: str
    cookie: str
    saved: list[str] = field(default_factory=list)  # refs acknowledged by the server
    latencies: list[float] = field(default_factory=list)
    failed: str = ""

    def work(self, until: float) -> None:
        """Answer questions until the time ``until``."""
        try:
            self._work(until)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.failed = f"{type(error).__name__}: {error}"

    def _work(self, until: float) -> None:
        line = http.client.HTTPConnection(self.host, timeout=60)
        headers = {"Cookie": self.cookie, "Origin": f"http://{self.host}", "Content-Type": "application/json"}
        told = self._told(line, "GET", f"/api/state?who={self.who}", None, headers)
        while time.monotonic() < until and told["next"]:
            ref = f"{self.who}-{len(self.saved)}.0"
            word = CLASSES[len(self.saved) % len(CLASSES)]
            answer = {"question": told["next"][0]["id"], "word": word, "seconds": 1.0, "ref": ref}
            body = json.dumps({"who": self.who, "answers": [answer]})
            start = time.perf_counter()
            told = self._told(line, "POST", "/api/answers", body, headers)
            self.latencies.append(time.perf_counter() - start)
            self.saved.append(ref)
        line.close()

    def _told(
        self,
        line: http.client.HTTPConnection,
        method: str,
        path: str,
        body: str | None,
        headers: dict[str, str],
    ) -> dict[str, Any]:
        line.request(method, path, body, headers)
        reply = line.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise ValueError(f"{reply.status} {text[:200]!r}")
        told: dict[str, Any] = json.loads(text)
        return told


def lay_out(run: Path, count: int) -> None:
    """Write a round of questions that all show the same thumbnail."""
    home = run / "questions" / "round-01"
    (home / "thumbnails").mkdir(parents=True)
    Image.new("RGB", (64, 64), "gray").save(home / "thumbnails" / "0001.png")
    questions = (
        Question(n, f"image-{n}", f"image-{n}", "thumbnails/0001.png", guess=CLASSES[0], probability=0.5)
        for n in range(1, count + 1)
    )
    QuestionRound.write(home, RoundRules(1, CLASSES, query="none"), questions)


def at(share: float, sorted_values: list[float]) -> float:
    """Return a quantile in milliseconds, or 0 for an empty list."""
    if not sorted_values:
        return 0.0
    return round(1000 * sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)], 2)


def measure(people: int, seconds: float, questions: int) -> dict[str, Any]:
    """Return answers per second, latencies, and the number of lost answers."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        lay_out(run, questions)
        command = [sys.executable, "-m", "ducats", "label", str(run), "--no-open"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            address = urlsplit(found.group())
            line = http.client.HTTPConnection(address.netloc, timeout=60)
            line.request("GET", f"/?{address.query}")
            cookie = str(line.getresponse().getheader("Set-Cookie")).partition(";")[0]
            line.close()
            Annotator("nobody", address.netloc, cookie).work(0.0)  # warm-up: the server reads the round
            crowd = [Annotator(f"person{n}", address.netloc, cookie) for n in range(people)]
            start = time.monotonic()
            threads = [threading.Thread(target=one.work, args=(start + seconds,)) for one in crowd]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = time.monotonic() - start
        finally:
            server.kill()
            server.wait()
        kept = [answer.external_id for answer in AnswerLog(run / "questions" / "received.jsonl").answers()]
    if errors := [one.failed for one in crowd if one.failed]:
        print(*errors, sep="\n", file=sys.stderr)
    saved = [ref for one in crowd for ref in one.saved]
    latencies = sorted(value for one in crowd for value in one.latencies)
    return {
        "people": people,
        "seconds": round(took, 1),
        "questions": questions,
        "answers": len(saved),
        "answers_per_second": round(len(saved) / took, 1),
        "median_ms": at(0.5, latencies),
        "p99_ms": at(0.99, latencies),
        "slowest_ms": at(1.0, latencies),
        "lost": len(set(saved) - set(kept)),
        "doubled": len(kept) - len(set(kept)),
        "failed": [one.failed for one in crowd if one.failed],
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def main() -> None:
    """Run the load test, print the result, and write JSON if requested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measure(given.people, given.seconds, given.questions)
    text = json.dumps(found, indent=1)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")
    if found["lost"] or found["doubled"] or found["failed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
