"""HTTP client of the page's server, sending the same requests as the page."""

import io
from pathlib import Path
from typing import Any
from uuid import uuid4

from page_rounds import image_questions
from PIL import Image
from starlette.testclient import TestClient

from ducats.annotation import AnnotationStore
from ducats.annotation.page.app import LabellingPage, make_app

TOKEN, BASE_URL = "a-token-of-this-test", "http://127.0.0.1:8000"


def client(
    run: Path,
    *,
    token: bool = True,
    host: str = "127.0.0.1",
    accept_threshold: float = 0.5,
    **options: Any,
) -> TestClient:
    app = make_app(LabellingPage(run, accept_threshold=accept_threshold, **options), token=TOKEN, host=host)
    page = TestClient(app, base_url=BASE_URL, headers={"Origin": BASE_URL})
    if token:
        assert page.get(f"/?token={TOKEN}").status_code == 200
    return page


def open_page(run: Path, *arguments: Any, **rules: Any) -> tuple[AnnotationStore, TestClient]:
    """Write a round of images and open the page."""
    return image_questions(run, *arguments, **rules), client(run)


def state(client: TestClient, annotator: str = "ada") -> dict[str, Any]:
    body: dict[str, Any] = client.get("/api/state", params={"annotator": annotator}).json()
    return body


def post(
    client: TestClient, *words: tuple[str, str], annotator: str = "ada", seconds: float = 1.5
) -> dict[str, Any]:
    answers = [
        {"question": question, "word": word, "seconds": seconds, "external_id": f"{uuid4()}.{n}"}
        for n, (question, word) in enumerate(words)
    ]
    reply = client.post("/api/answers", json={"annotator": annotator, "answers": answers})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def fetch_image(client: TestClient, path: str) -> Image.Image:
    reply = client.get(path)
    assert reply.status_code == 200
    return Image.open(io.BytesIO(reply.content)).convert("RGB")


def next_ids(body: dict[str, Any]) -> list[str]:
    return [one["id"] for one in body["next"]]
