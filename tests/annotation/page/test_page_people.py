"""Links of people: whoever opens one answers under its name only."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from page_client import BASE_URL, next_ids, post, state
from page_rounds import image_questions
from starlette.testclient import TestClient

from commands import Capture, ducats, error_of
from ducats.annotation.page import server
from ducats.annotation.page.app import LabellingPage, make_app
from ducats.utils.errors import UserError

PEOPLE = {"token-of-ada-0000": "ada", "token-of-ben-0000": "ben"}


def browsers(run: Path, count: int = 2) -> list[TestClient]:
    app = make_app(LabellingPage(run, accept_threshold=0.5), people=PEOPLE, host="127.0.0.1")
    return [TestClient(app, base_url=BASE_URL, headers={"Origin": BASE_URL}) for _ in range(count)]


def test_answers_carry_the_name_of_the_link_whatever_the_page_sends(tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2, rule="unanimous", min_annotators=2)
    ada, ben = browsers(tmp_path)
    for page, token in ((ada, "token-of-ada-0000"), (ben, "token-of-ben-0000")):
        cookie = page.get(f"/?token={token}").headers["set-cookie"]
        assert token in cookie
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    body = post(ada, ("r1/1", "red"), annotator="ben")
    assert (body["annotator"], body["personal"]) == ("ada", True)
    assert next_ids(body) == ["r1/2"]
    assert state(ben, annotator="ada")["annotator"] == "ben"
    assert next_ids(state(ben, annotator="ada")) == ["r1/1", "r1/2"]
    post(ben, ("r1/1", "blue"), annotator="ada")
    reply = ben.post("/api/review", json={"annotator": "ada", "round": 1, "question": "r1/1", "word": "red"})
    assert reply.json() == {"label": "red", "message": ""}
    assert [(one.annotator, one.word) for one in store.answers()] == [
        ("ada", "red"),
        ("ben", "blue"),
        ("ben", "red"),
    ]


def test_unknown_and_missing_tokens_are_refused(tmp_path: Path) -> None:
    image_questions(tmp_path)
    page, other = browsers(tmp_path)
    for path in ("/", "/?token=", "/?token=token-of-eve-0000", "/api/state?annotator=ada"):
        assert page.get(path).status_code == 403
    assert page.get("/?token=token-of-ada-0000").status_code == 200
    # A wrong link must not open the page of the person who used this browser before.
    assert page.get("/?token=token-of-eve-0000").status_code == 403
    assert page.get("/?token=token-of-ben-0000").status_code == 200
    assert state(page)["annotator"] == "ben"
    other.cookies.set("ducats", "token-of-eve-0000")
    assert other.get("/api/state").status_code == 403
    with pytest.raises(ValueError, match="empty token"):
        make_app(LabellingPage(tmp_path, accept_threshold=0.5), host="127.0.0.1")


def test_links_stay_the_same_and_their_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "people.json"
    first = server.load_or_create_people(path, ["ada", "ben"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(first.values()) == ["ada", "ben"]
    more = server.load_or_create_people(path, ["ben", "eve"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert [token for token, name in more.items() if name == "ben"] == [
        token for token, name in first.items() if name == "ben"
    ]
    assert "ada" not in more.values()  # not named this time, so her link does not work
    assert server.load_or_create_people(path, ["ada", "ben"]) == first
    assert list(tmp_path.iterdir()) == [path]
    same = json.dumps(dict.fromkeys(("ada", "ben"), "one-token-for-two-people"))
    for content in ("", "[]", "[1]", '"x"', '{"ada": "short"}', '{"ada": 7}', same):
        path.write_text(content)
        with pytest.raises(UserError, match="people as JSON"):
            server.load_or_create_people(path, ["ada"])
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        server.load_or_create_people(path, ["ada"])


def test_the_command_prints_a_link_per_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    image_questions(tmp_path)
    served: list[dict[str, Any]] = []

    def serve(run_folder: Path, sock: socket.socket, **options: Any) -> None:
        sock.close()
        served.append(options)

    monkeypatch.setattr(server, "serve_page", serve)
    printed = []
    for _ in range(2):
        assert ducats("label", tmp_path, "--people", "ada, ben") == 0
        printed.append(re.findall(r"  (\S+): http://127.0.0.1:\d+/\?token=(\S+)", capsys.readouterr().out))
    assert printed[0] == printed[1] == [(name, token) for token, name in served[0]["people"].items()]
    assert [name for name, _ in printed[0]] == ["ada", "ben"]
    assert not served[0]["open_browser"]  # it would be unclear whose link to open
    assert "token" not in served[0]
    assert json.loads((tmp_path / "people.json").read_text()).keys() == {"ada", "ben"}
    assert ducats("label", tmp_path, "--people", "ada", "--token-file", tmp_path / "other") == 0
    assert served[-1]["people"].keys() != {printed[0][0][1]}
    capsys.readouterr()
    for names, words in (
        ("ada,", "separated by commas"),
        ("ada,ada", "'ada' twice"),
        ("a" * 81, "at most 80"),
    ):
        assert words in error_of(capsys, "label", tmp_path, "--people", names)
    message = error_of(capsys, "label", tmp_path, "--people", "ada", "--annotator", "ben")
    assert "exclude each other" in message
