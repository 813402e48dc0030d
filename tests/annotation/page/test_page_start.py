"""Starting the page's server: port, token and printed output."""

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import page_browser
import pytest
from page_rounds import image_questions

from commands import ducats
from ducats.annotation.page import app as module
from ducats.annotation.page import server
from ducats.annotation.page.protocol import TimedProtocol
from ducats.utils.errors import UserError
from present import present


def test_a_run_reuses_its_port_unless_it_is_taken(tmp_path: Path) -> None:
    with server.open_socket("127.0.0.1", 0, tmp_path) as first:
        port = first.getsockname()[1]
        with server.open_socket("127.0.0.1", 0, tmp_path) as second:
            assert second.getsockname()[1] != port
        with pytest.raises(UserError, match=f"--port {port}"):
            server.open_socket("127.0.0.1", port, tmp_path)
    with server.open_socket("127.0.0.1", 0, tmp_path) as third:
        assert third.getsockname()[1] == port
        assert server.page_url(third, "127.0.0.1", "T") == f"http://127.0.0.1:{port}/?token=T"


def test_invalid_hosts_and_ports_are_refused(tmp_path: Path) -> None:
    for host in ("no.such.host.invalid", "203.0.113.9"):  # the second is reserved for documentation
        with pytest.raises(UserError, match=f"--host {host} .*address of this machine"):
            server.open_socket(host, 0, tmp_path)
    for port in (-1, 65536):
        with pytest.raises(UserError, match=f"--port {port} is not a valid port"):
            server.open_socket("127.0.0.1", port, tmp_path)


def test_a_token_file_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = server.load_or_create_token(path)
    assert server.load_or_create_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        server.load_or_create_token(path)
    path.chmod(0o600)
    for content in (b"short", b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(UserError, match="at least 16"):
            server.load_or_create_token(path)
    with pytest.raises(UserError, match="not a file"):
        server.load_or_create_token(tmp_path)
    assert server.load_or_create_token(None) != server.load_or_create_token(None)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        server.check_run_folder(tmp_path)
    (tmp_path / "config.yaml").touch()
    server.check_run_folder(tmp_path)


def test_the_command_prints_the_address_and_warns_of_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image_questions(tmp_path)
    served: list[dict[str, Any]] = []

    def serve(run_folder: Path, sock: socket.socket, **options: Any) -> None:
        sock.close()
        served.append(options)

    monkeypatch.setattr(server, "serve_page", serve)
    for host, warns in (("127.0.0.1", False), ("0.0.0.0", True)):
        assert ducats("label", tmp_path, "--host", host, "--annotator", "Ada", "--blind", "--no-open") == 0
        printed = capsys.readouterr().out
        assert ("reachable from other machines" in printed.replace("\n", " ")) == warns
        assert printed.count(served[-1]["token"]) == 1
        assert served[-1]["open_browser"] is False
        assert (served[-1]["annotator"], served[-1]["blind"]) == ("Ada", True)
        assert served[-1]["accept_threshold"] == 0.5
    assert ducats("label", tmp_path, "--accept-threshold", "0.8", "--no-open") == 0
    assert served[-1]["accept_threshold"] == 0.8
    assert ducats("label", tmp_path, "--accept-threshold", "50") != 0


def test_connections_without_a_complete_request_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_questions(tmp_path)
    monkeypatch.setattr(TimedProtocol, "request_seconds", 0.3)
    (tmp_path / "token").write_text("a-token-of-this-test")
    (tmp_path / "token").chmod(0o600)
    with page_browser.serving(tmp_path, token_file=tmp_path / "token") as started:
        address = urlsplit(started.url)
        port = present(address.port)
        head = f"Host: 127.0.0.1:{port}\r\nCookie: ducats-{port}=a-token-of-this-test\r\n"
        whole = f"GET /api/state HTTP/1.1\r\n{head}\r\n"
        post = (
            f"POST /api/answers HTTP/1.1\r\n{head}Origin: http://127.0.0.1:{port}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        for earlier, request in (("", ""), ("", whole[:-2]), ("", post), (whole, whole[:-2])):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(earlier.encode())
                if earlier:
                    assert b"200 OK" in connection.recv(65536)
                connection.sendall(request.encode())
                while connection.recv(65536):  # ends when the server closes the connection
                    pass
        with urlopen(started.url) as reply:
            assert reply.status == 200


def test_without_the_extra_the_error_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert ducats("label", tmp_path) == 2
    assert "pip install 'ducats[label]'" in capsys.readouterr().err


def test_the_log_has_no_token_and_help_imports_no_server(tmp_path: Path) -> None:
    image_questions(tmp_path)
    command = [sys.executable, "-m", "ducats", "label", str(tmp_path), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+token=(\S+)", server.stdout.readline())
            assert found is not None
            with urlopen(found.group()) as reply:
                assert reply.status == 200
            with pytest.raises(HTTPError, match="403"):
                urlopen(found.group() + "x")
        finally:
            server.terminate()
        rest, errors = server.communicate()
    assert found.group(1) not in rest + errors
    code = (
        "import sys\nfrom ducats.cli import main\n"
        "try: main(['label', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'starlette', 'uvicorn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_page_has_no_inline_or_external_code() -> None:
    html = (module.STATIC_FOLDER / "index.html").read_text()
    assert "style=" not in html  # the security headers would silently block it
    assert "<script>" not in html
    assert "http" not in html.replace("http-equiv", "")
