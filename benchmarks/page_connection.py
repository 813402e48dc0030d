"""A process of `ducats label` and connections to its page, for benchmarks."""

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit


class PageConnection:
    """Connection of one annotator, who is signed in."""

    def __init__(self, url: str, annotator: str) -> None:
        address = urlsplit(url)
        self.annotator, self._n_sent = annotator, 0
        self._connection = http.client.HTTPConnection(address.netloc, timeout=60)
        self._connection.request("GET", f"/?{address.query}")
        reply = self._connection.getresponse()
        reply.read()
        self._headers = {
            "Cookie": str(reply.getheader("Set-Cookie")).partition(";")[0],
            "Origin": f"http://{address.netloc}",
            "Content-Type": "application/json",
        }

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return the reply to GET, such as that of /api/state."""
        parameters = "&".join(f"{name}={value}" for name, value in query.items())
        return self._request("GET", f"{path}?annotator={self.annotator}&{parameters}", None)

    def answer(self, words: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        """Answer questions, given by id, in one act; return the new state and the ids of the answers."""
        self._n_sent += 1
        external_ids = [f"{self.annotator}-{self._n_sent}.{n}" for n in range(len(words))]
        answers = [
            {"question": question, "word": word, "seconds": 1.0, "external_id": external_id}
            for (question, word), external_id in zip(words.items(), external_ids, strict=True)
        ]
        body = json.dumps({"annotator": self.annotator, "answers": answers})
        return self._request("POST", "/api/answers", body), external_ids

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _request(self, method: str, path: str, body: str | None) -> dict[str, Any]:
        self._connection.request(method, path, body, self._headers)
        reply = self._connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise ValueError(f"{reply.status} {text[:200]!r}")
        payload: dict[str, Any] = json.loads(text)
        return payload


@contextmanager
def serving(*arguments: object, env: Mapping[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """Run `ducats label` with these arguments, yield the URL of its page and its process id, and kill it."""
    command = [sys.executable, "-m", "ducats", "label", *map(str, arguments), "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert server.stdout is not None
        found = (re.search(r"http://\S+", line) for line in server.stdout)
        match = next(filter(None, found), None)
        if match is None:
            raise RuntimeError(f"no page: {' '.join(command)}")
        yield match.group(), server.pid
    finally:
        server.kill()
        server.wait()
