"""The client against a faulty server: no duplicate tasks, no lost answers, no leaked token."""

import random
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fake_studio
import pytest
from fake_studio import FAULTS, LEGACY_TOKEN, PERSONAL_TOKEN, FakeStudio, Session, choice, connect
from studio_rounds import CLASSES, image_store

from ducats.annotation.label_studio.api import LabelStudio
from ducats.annotation.label_studio.client import (
    ApiToken,
    HTTPStatusError,
    JsonClient,
    ServerUnavailableError,
    UnknownOutcomeError,
    load_token,
    normalise_url,
)
from ducats.annotation.label_studio.pull_loop import SECRET_HEADER, pull_until_closed, webhook_listener
from ducats.utils.errors import UserError

shared, fake, start = fake_studio.shared, fake_studio.fake, fake_studio.start
Start = Callable[..., Session]


def connect_briefly(fake: FakeStudio, token: str = LEGACY_TOKEN, **options: Any) -> LabelStudio:
    return connect(fake, token, timeout=0.12, **options)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_get_request_is_retried_until_it_succeeds(fake: FakeStudio, fault: str) -> None:
    pauses: list[float] = []
    messages: list[str] = []
    fake.faults.extend([fault, fault, None])
    studio = connect_briefly(fake, sleep=pauses.append, notify=messages.append)
    assert studio.user_emails()[2] == "p2@example.org"
    assert (len(fake.requests), len(pauses)) == (3, 2)
    assert [message.split()[-1] for message in messages] == ["waiting", "back"]
    assert pauses == [7, 7] if fault == "429" else max(pauses) < 1  # as the server requests


@pytest.mark.parametrize("fault", FAULTS)
def test_a_create_request_is_retried_only_if_it_was_not_processed(fake: FakeStudio, fault: str) -> None:
    fake.faults.append(fault)
    project_settings = {"title": "one", "description": "", "label_config": "<View/>"}
    if fault in ("429", "503"):
        messages: list[str] = []
        connect_briefly(fake, notify=messages.append).create_project(project_settings)
        assert (len(fake.projects), messages) == (1, [])  # a single failure is not reported
    else:
        with pytest.raises(UnknownOutcomeError):
            connect_briefly(fake).create_project(project_settings)
        assert len(fake.requests) == 1


def test_an_unreachable_server_is_retried_and_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    messages: list[str] = []
    pauses: tuple[list[float], list[float]] = ([], [])
    for found in pauses:
        options: dict[str, Any] = {"retry_timeout": 2.0, "notify": messages.append, "sleep": found.append}
        client = JsonClient(url, ApiToken(LEGACY_TOKEN), **options)
        with pytest.raises(ServerUnavailableError, match=r"does not respond \(Connection refused\)"):
            # Never processed, so it is retried.
            client.request("POST", "/api/projects/", {}, at_most_once=True)
    assert len(messages) == 2
    assert pauses[0] == sorted(pauses[0]) == pauses[1]  # deterministic: the jitter has a fixed seed
    assert len(pauses[0]) >= 2


def test_a_personal_token_is_exchanged_and_renewed(fake: FakeStudio) -> None:
    server = connect_briefly(fake, PERSONAL_TOKEN)
    server.user_emails()
    server.user_emails()
    fake.access.clear()  # expired
    server.user_emails()
    sent = [header for header in fake.authorizations if header]
    assert sent == [*["Bearer access-1"] * 3, "Bearer access-2"]


def test_a_wrong_token_is_reported_without_the_token(fake: FakeStudio) -> None:
    for secret in ("wrong-secret", PERSONAL_TOKEN[:-1] + "A"):
        with pytest.raises(HTTPStatusError) as caught:
            connect_briefly(fake, secret).user_emails()
        assert caught.value.status == 401
        assert "create a new token" in str(caught.value)
        assert secret not in str(caught.value)
        assert secret not in repr(ApiToken(secret))


def test_the_token_and_control_characters_are_removed_from_server_messages(
    fake: FakeStudio, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = {"detail": f"we got {LEGACY_TOKEN} \x1b[31m\r\n from you"}
    monkeypatch.setattr(fake, "handle", lambda *_: (400, reply))
    with pytest.raises(HTTPStatusError, match=r"rejected GET /api/users/: HTTP 400, we got …") as caught:
        connect_briefly(fake).user_emails()
    assert LEGACY_TOKEN not in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_token_is_not_sent_to_a_redirect(fake: FakeStudio) -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"{fake.url}/api/token/refresh/")
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - name of http.server

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        for token in (LEGACY_TOKEN, PERSONAL_TOKEN):
            client = JsonClient(f"http://127.0.0.1:{server.server_address[1]}", ApiToken(token), timeout=5.0)
            with pytest.raises(HTTPStatusError, match=r"redirects to .*; give the final address"):
                client.get("/api/users/")
        server.shutdown()
    assert fake.requests == []


def test_token_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    file = tmp_path / "token"
    for content, mode, path, words in (
        ("", 0o600, None, "needs a token"),
        ("abc", 0o640, file, r"readable by other users \(mode 640\)"),
        ("two secrets", 0o600, file, "must contain a single token"),
        ("", 0o600, tmp_path / "none", "cannot be read"),
    ):
        file.write_text(content)
        file.chmod(mode)
        with pytest.raises(UserError, match=words) as caught:
            load_token(path)
        assert "secrets" not in str(caught.value)
    file.write_text("abc\n")
    assert load_token(file).reveal() == "abc"
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "xyz")
    assert load_token(None).reveal() == "xyz"
    assert [ApiToken(token).is_personal for token in (LEGACY_TOKEN, PERSONAL_TOKEN)] == [False, True]


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:80", "ftp://a", "http://", "http://a/?b", "http://a:x", "http://a#b", "http://a/?"),
        "http://a#",
        *("http://u:secret@a", "u:secret@a:80", "ftp://u:secret@a", "http://u:secret@a:x", "http://@a"),
        *("http://a..b", "http://a b", "http://a\n", "http://a/ü", f"http://{'a' * 70}.org"),
    ],
)
def test_invalid_urls_and_urls_with_a_password_are_rejected(url: str) -> None:
    with pytest.raises(UserError, match="--url") as caught:
        normalise_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("seed", range(12))
def test_any_faults_leave_one_task_per_question_and_one_answer_per_annotation(
    fake: FakeStudio, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    store = image_store(tmp_path / "questions", 5)
    session = Session(fake, connect_briefly(fake), store)
    fake.faults.extend(rng.choices([None, None, *FAULTS], k=2 * seed))
    fake.import_faults.extend([FAULTS[seed % len(FAULTS)]] * (1 + seed % 3))
    while True:  # repeat the same command until it succeeds
        try:
            session.push()
            break
        except ServerUnavailableError:
            continue
    fake.faults.clear()
    keys = [task["data"]["key"] for task in fake.tasks.values()]
    assert keys == list(store.question_round(1).by_id)
    assert session.push().new_tasks == 0
    assert (len(fake.projects), len(fake.tabs)) == (1, 1)
    words = {key: rng.choice(CLASSES) for key in keys}
    for number, key in zip(list(fake.tasks), keys, strict=True):
        fake.annotate(number, choice(words[key]), user=rng.choice([1, 2]))
    fake.faults.extend(rng.choices([None, *FAULTS], k=2 * seed))
    for _ in range(3):
        session.pull()
    assert sorted((answer.question, answer.word) for answer in store.answers()) == sorted(words.items())
    assert {question: status.word for question, status in store.statuses(1).items()} == words


def test_more_tasks_than_fit_on_a_page(fake: FakeStudio, start: Start) -> None:
    session = start(101)
    assert (len(fake.tasks), session.push().existing_tasks) == (101, 101)
    imports = [path for _, path in fake.requests if path.endswith("/import")]
    assert len(imports) == 2  # at most 100 tasks each
    for number in list(fake.tasks):
        fake.annotate(number, choice("dog"))
    assert session.pull_words() == ["dog"] * 101
    assert session.store.close_round(1) is not None


def test_only_changed_tasks_are_read_again(fake: FakeStudio, start: Start) -> None:
    session = start(4)
    for task in fake.tasks.values():
        task["updated_at"] = "2020-01-01T00:00:00.000000Z"
    first, other, *_ = fake.tasks
    fake.annotate(first, choice("cat"))
    assert session.pull_words() == ["cat"]
    assert "2020" < session.state.read_until <= fake.tasks[first]["updated_at"]
    fake.annotate(other, choice("dog"))
    fake.tasks[other]["updated_at"] = "2020-01-01T00:00:00.000000Z"  # unchanged according to the server
    assert session.pull_words() == []
    session.forget()  # now all tasks are read
    assert session.pull_words() == ["dog"]
    assert len(session.state.tasks["1"]) == 4


def test_the_token_is_not_saved(fake: FakeStudio, start: Start, tmp_path: Path) -> None:
    session = start(2, studio=connect(fake, PERSONAL_TOKEN))
    fake.annotate(min(fake.tasks), choice("cat"))
    session.pull()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (PERSONAL_TOKEN, *fake.access):
        assert secret.encode() not in written


def test_watching_ends_when_the_round_is_closed_and_a_webhook_call_wakes_it(
    fake: FakeStudio, start: Start
) -> None:
    session = start()
    [project], [task] = fake.projects, fake.tasks
    notified = threading.Event()
    messages: list[str] = []
    pulls: list[int] = []
    with webhook_listener(session.studio, project, "127.0.0.1:0", notified, messages.append):
        [registered] = fake.hooks.values()

        def call(secret: str) -> int:
            request = urllib.request.Request(registered["url"], data=b"{}", headers={SECRET_HEADER: secret})
            try:
                with urllib.request.urlopen(request, timeout=5) as response:
                    return int(response.status)
            except urllib.error.HTTPError as error:
                return error.code

        def on_pull(pulled: Any) -> None:
            pulls.append(len(pulled.received))
            if len(pulls) == 1:  # an answer arrives an hour before the next poll
                fake.annotate(task, choice("cat"))
                assert call(registered["headers"][SECRET_HEADER]) == 204
            else:
                assert session.store.close_round(1) is not None

        assert call("guessed") == 403
        assert not notified.is_set()
        pull_until_closed(
            session.store, session.studio, project, poll=3600, on_pull=on_pull, notified=notified
        )
    assert (pulls, fake.hooks, messages) == ([0, 1], {}, [])
