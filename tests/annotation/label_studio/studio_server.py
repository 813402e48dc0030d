"""A real Label Studio server on loopback with its own database, started and stopped by tests."""

import http.cookiejar
import json
import os
import secrets
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from ducats.annotation.label_studio.client import ApiToken, JsonClient
from ducats.utils.network import free_port

ROOT = Path(__file__).parents[3]
START_TIMEOUT_SECONDS = 240.0  # seconds; usually one minute


def find_program() -> Path | None:
    """Return the path of the program, or None if it is not installed."""
    path = Path(os.environ.get("DUCATS_LABEL_STUDIO", ROOT / ".label-studio" / "bin" / "label-studio"))
    return path if path.is_file() else None


class LabelStudioProcess:
    """A server with two users, anna (the owner) and bob.

    Args:
        program: path of ``label-studio``.
        folder: folder for the database; its subfolder ``media`` is the document root.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.media = folder / "media"
        self.media.mkdir(parents=True)
        empty_database = program.parents[1] / "empty-database"
        if empty_database.is_dir():  # without it the server creates one, which takes most of a minute
            shutil.copytree(empty_database, folder / "data")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._password = secrets.token_urlsafe(16)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self.tokens = {"anna": self._create_token("anna@example.org", "/user/login/")}
        invitation = self.client("anna").get("/api/invite")["invite_url"]
        self.tokens["bob"] = self._create_token("bob@example.org", invitation)

    def start(self) -> None:
        """Start the server and wait until it responds."""
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        for name in ("HOST", "DEBUG", "PORT"):
            environment.pop(name, None)  # Label Studio reads these
        environment.update(
            LABEL_STUDIO_BASE_DATA_DIR=str(self.folder / "data"),
            LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED="true",
            LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=str(self.media),
            LABEL_STUDIO_COLLECT_ANALYTICS="false",
            LABEL_STUDIO_LATEST_VERSION_CHECK="false",
            LABEL_STUDIO_SENTRY_DSN="",
            LABEL_STUDIO_FRONTEND_SENTRY_DSN="",
            LABEL_STUDIO_SSRF_PROTECTION_ENABLED="false",  # webhooks must reach loopback
            LABEL_STUDIO_USERNAME="anna@example.org",
            LABEL_STUDIO_PASSWORD=self._password,
            PYTHONWARNINGS="ignore",
        )
        arguments = ["start", "--no-browser", "--internal-host", "127.0.0.1", "--port", str(self.port)]
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.program), *arguments],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)
        self.stop()
        raise RuntimeError(f"Label Studio did not start: {(self.folder / 'log.txt').read_text()[-2000:]}")

    def stop(self) -> None:
        """Kill the server, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, user: str) -> JsonClient:
        """Return a client for a user."""
        return JsonClient(self.url, ApiToken(self.tokens[user]), retry_timeout=5.0)

    def tasks(self, user: str, project: int) -> list[dict[str, Any]]:
        """Return all tasks with their data, as seen by a user."""
        found = self.client(user).get("/api/tasks/", project=project, fields="all", page_size=500)["tasks"]
        return list(found)

    def annotate(self, user: str, task: int, result: Any, seconds: float = 2.0, **extra: Any) -> int:
        """Submit an annotation like the page does."""
        body = {"result": result, "lead_time": seconds, **extra}
        return int(self.client(user).request("POST", f"/api/tasks/{task}/annotations/", body)["id"])

    def _create_token(self, email: str, page: str) -> str:
        """Log in or sign up like a browser and create a personal access token."""
        jar = http.cookiejar.CookieJar()
        opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(jar), urllib.request.ProxyHandler({})
        )

        def post(path: str, body: bytes, **headers: str) -> bytes:
            headers["Referer"] = self.url + path
            headers["X-CSRFToken"] = next(str(one.value) for one in jar if one.name == "csrftoken")
            request = urllib.request.Request(self.url + path, data=body, headers=headers)
            with opener.open(request, timeout=60) as response:
                return bytes(response.read())

        with opener.open(self.url + page, timeout=60) as response:
            response.read()
        csrf_token = next(str(one.value) for one in jar if one.name == "csrftoken")
        form = {"email": email, "password": self._password, "csrfmiddlewaretoken": csrf_token}
        post(page, urllib.parse.urlencode(form).encode())
        created = json.loads(post("/api/token/", b"{}", **{"Content-Type": "application/json"}))
        return str(created["token"])
