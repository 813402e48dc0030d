"""HTTP client of the page's server, sending the same requests as the page."""

import io
from pathlib import Path
from typing import Any
from uuid import uuid4

from PIL import Image
from starlette.testclient import TestClient

from ducats.labelling.page.app import Page, make_app

TOKEN, HOME = "a-token-of-this-test", "http://127.0.0.1:8000"


def client(run: Path, *, token: bool = True, host: str = "127.0.0.1", **options: Any) -> TestClient:
    page = make_app(Page(run, **options), token=TOKEN, host=host)
    made = TestClient(page, base_url=HOME, headers={"Origin": HOME})
    if token:
        assert made.get(f"/?token={TOKEN}").status_code == 200
    return made


def state(asked: TestClient, who: str = "ada") -> dict[str, Any]:
    told: dict[str, Any] = asked.get("/api/state", params={"who": who}).json()
    return told


def post(
    asked: TestClient, *words: tuple[str, str], who: str = "ada", seconds: float = 1.5
) -> dict[str, Any]:
    answers = [
        {"question": question, "word": word, "seconds": seconds, "ref": f"{uuid4()}.{n}"}
        for n, (question, word) in enumerate(words)
    ]
    reply = asked.post("/api/answers", json={"who": who, "answers": answers})
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()
    return told


def shown(asked: TestClient, path: str) -> Image.Image:
    reply = asked.get(path)
    assert reply.status_code == 200
    return Image.open(io.BytesIO(reply.content)).convert("RGB")


def asked_next(told: dict[str, Any]) -> list[str]:
    return [one["id"] for one in told["next"]]
