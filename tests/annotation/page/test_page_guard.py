"""Access control of the page's server."""

import json
from pathlib import Path

import pytest
from page_client import BASE_URL, TOKEN, client, open_page
from page_rounds import image_questions
from PIL import Image
from starlette.testclient import TestClient

from ducats.annotation import Question, QuestionRound, RoundRules
from ducats.annotation.page.app import LabellingPage, make_app
from ducats.annotation.page.guard import SECURITY_HEADERS


def test_every_request_needs_the_token(tmp_path: Path) -> None:
    image_questions(tmp_path)
    page = client(tmp_path, token=False)
    served = ("static/page.js", "api/state?annotator=ada", "image/whole/1/1")
    for path in ("", *served, "?token=another", "?token="):
        reply = page.get(f"/{path}")
        assert reply.status_code == 403
        assert "ducats label" in reply.text
        assert "set-cookie" not in reply.headers
    # The parameter works only for the start page.
    assert page.get(f"/api/state?annotator=ada&token={TOKEN}").status_code == 403
    cookie = page.get(f"/?token={TOKEN}").headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert page.get("/api/state?annotator=ada").status_code == 200


def test_the_browser_launch_token_works_once(tmp_path: Path) -> None:
    image_questions(tmp_path)
    app = make_app(
        LabellingPage(tmp_path, accept_threshold=0.5),
        token=TOKEN,
        host="127.0.0.1",
        single_use_token="seen-by-others",
    )
    first, second = (TestClient(app, base_url=BASE_URL) for _ in range(2))
    assert first.get("/?token=seen-by-others").status_code == 200
    assert first.get("/api/state?annotator=ada").status_code == 200  # by its cookie
    assert second.get("/?token=seen-by-others").status_code == 403
    assert second.get(f"/?token={TOKEN}").status_code == 200


def test_every_reply_forbids_frames_and_foreign_scripts(tmp_path: Path) -> None:
    _, page = open_page(tmp_path)
    for reply in (page.get("/"), page.get("/nowhere"), page.get("/", headers={"Host": "evil.example"})):
        assert {name: reply.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert reply.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in SECURITY_HEADERS["Content-Security-Policy"]
    assert page.get("/image/whole/1/1").headers["cache-control"].startswith("private")


@pytest.mark.parametrize(
    ("host", "name", "status"),
    [
        *(("127.0.0.1", name, 421) for name in ("evil.example", "evil.example:8000", "10.0.0.7:8000")),
        *(("127.0.0.1", name, 421) for name in ("", "[::1", "127.0.0.1.nip.io")),
        # A tunnel may have another port.
        *(("127.0.0.1", name, 200) for name in ("localhost:9000", "127.0.0.1:9000", "[::1]:9000")),
        ("0.0.0.0", "192.168.1.5:8000", 200),
        ("0.0.0.0", "evil.example", 421),
    ],
)
def test_other_host_names_are_refused(tmp_path: Path, host: str, name: str, status: int) -> None:
    page = client(tmp_path, token=False, host=host)
    assert page.get(f"/?token={TOKEN}", headers={"Host": name}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:8001"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Length": "1000001"}, 413),
        ({"Content-Length": "-1"}, 411),
        ({"Content-Length": "1" * 5000}, 411),
    ],
)
def test_cross_site_posts_are_refused(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    store = image_questions(tmp_path)
    answers = [{"question": "r1/1", "word": "red", "external_id": "x.0"}]
    body = json.dumps({"annotator": "ada", "answers": answers})
    usual = {"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
    page = client(tmp_path)
    assert page.post("/api/answers", content=body, headers={**usual, **headers}).status_code == status
    assert store.answers() == []
    assert page.post("/api/answers", content=body, headers=usual).status_code == 200
    assert [answer.word for answer in store.answers()] == ["red"]


def test_a_post_without_an_origin_and_images_for_other_sites_are_refused(tmp_path: Path) -> None:
    _, page = open_page(tmp_path)
    for site, status in (("same-origin", 200), ("cross-site", 403), ("same-site", 403)):
        assert page.get("/image/whole/1/1", headers={"Sec-Fetch-Site": site}).status_code == status
    del page.headers["Origin"]
    assert page.post("/api/answers", json={"annotator": "ada", "answers": []}).status_code == 403


def test_an_invalid_body_is_refused(tmp_path: Path) -> None:
    store, page = open_page(tmp_path)
    bodies: list[object] = [[], {}, {"annotator": "ada", "answers": {}}, {"annotator": 7, "answers": []}]
    bodies += [{"annotator": name, "answers": []} for name in ("", "a" * 81)]
    bodies.append({"annotator": "ada", "answers": [{}] * 1001})
    for body in ("", "[" * 100_000, *map(json.dumps, bodies)):
        reply = page.post("/api/answers", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 400
    assert store.answers() == []
    for count, name in ((1000, "ada"), (0, "a" * 80)):  # the largest that are allowed
        allowed = {"annotator": name, "answers": [{}] * count}
        assert page.post("/api/answers", json=allowed).status_code == 200


@pytest.mark.parametrize("path", ["image/whole/1/", "image/whole/", "api/question/1/", "static/"])
def test_long_paths_are_refused(tmp_path: Path, path: str) -> None:
    _, page = open_page(tmp_path)
    assert page.get(f"/{path}{'1' * 5000}").status_code == 414
    assert page.get(f"/{path}{'1' * 100}/1").status_code in (400, 404)


def test_a_long_external_id_is_not_stored(tmp_path: Path) -> None:
    store, page = open_page(tmp_path)
    for length, word in ((500, "red"), (501, "blue")):
        answer = {"question": "r1/1", "word": word, "external_id": "x" * length}
        reply = page.post("/api/answers", json={"annotator": "ada", "answers": [answer]})
        assert list(reply.json()["rejected"].values()) == ([] if length == 500 else ["malformed"])
    assert [answer.reject_reason for answer in store.answers()] == [None, "malformed"]
    assert store.status("r1/1").word == "red"
    assert store.log.path.stat().st_size < 2000


def test_only_images_of_questions_are_served(tmp_path: Path) -> None:
    image_questions(tmp_path)
    Image.new("RGB", (2, 2)).save(tmp_path / "secret.png")
    page = client(tmp_path)
    for path in (
        *("/image/whole/1/0", "/image/whole/1/7", "/image/whole/2/1", "/image/whole/1/-1"),
        *("/image/raw/1/1", "/image/whole/1/1.png", "/static/../app.py", "/static/%2e%2e%2fapp.py"),
        *("/static/app.py", "/image/whole/1/..%2f..%2fsecret.png", "/questions/answers.jsonl"),
        "/image/crop/1/1?zoom=much",
    ):
        assert page.get(path).status_code == 404, path
    assert page.get("/image/whole/1/6").status_code == 200


def test_an_image_outside_the_round_folder_is_not_served(tmp_path: Path) -> None:
    folder = image_questions(tmp_path).round_folder(1)
    Image.new("RGB", (2, 2)).save(tmp_path / "secret.png")
    questions = [Question(1, "r1/1", "r1/1", "../../secret.png")]
    QuestionRound.write(folder, RoundRules(1, ("red",)), questions)
    assert client(tmp_path).get("/image/whole/1/1").status_code == 404
