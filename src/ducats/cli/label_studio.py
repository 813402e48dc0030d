"""Commands for Label Studio: push questions, pull answers. Imports no torch."""

import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ducats.cli.base import app, print_line, print_warning
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

if TYPE_CHECKING:
    from ducats.annotation import AnnotationStore
    from ducats.annotation.label_studio.api import LabelStudio
    from ducats.annotation.label_studio.pull import PullResult

MAX_POLL_SECONDS = 24 * 3600.0


@app.command
def push(
    run: Path,
    *,
    url: str,
    project: str | None = None,
    token_file: Path | None = None,
    images: str = "inline",
    document_root: Path | None = None,
    blind: Annotated[bool, Parameter(negative=())] = False,
    max_side: int = 1024,
    retry_timeout: float = 60.0,
) -> int:
    """Push the open questions of a run to a Label Studio project. Existing tasks are kept.

    The token, a personal access token or a legacy one, is read from LABEL_STUDIO_API_KEY or --token-file.

    Args:
        run: Run folder.
        url: URL of the server, e.g. http://127.0.0.1:8080.
        project: Number or title of the project; default: named after the run folder, created if missing.
        token_file: File with the token, mode 600.
        images: inline: embed the image in each task; local-files: the server reads images below
            --document-root; otherwise a URL prefix to which the image key is appended.
        document_root: The server's LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT.
        blind: Do not send the model's predictions, which can bias annotators.
        max_side: Maximum side of inline images in pixels.
        retry_timeout: Seconds to keep trying if the server does not respond.
    """
    from ducats.annotation.label_studio.push import push_questions

    store = _open_store(run)
    pushed = push_questions(
        store,
        _connect(url, token_file, retry_timeout),
        f"ducats: {run.resolve().name}",
        project=project,
        images=images,
        document_root=document_root,
        blind=blind,
        max_side=max_side,
    )
    new_tasks = pluralise(pushed.new_tasks, "new task")
    print_line(
        f"round {pushed.round}: {new_tasks}, {pushed.existing_tasks} already there, in {pushed.project_url}"
    )
    if pushed.answered_images:
        print_line(f"already answered, not pushed: {pluralise(pushed.answered_images, 'image')}")
    print_line(f"once they are labelled: `ducats pull {shlex.quote(str(run))}`")
    return 0


@app.command
def pull(
    run: Path,
    *,
    url: str | None = None,
    project: int | None = None,
    token_file: Path | None = None,
    watch: Annotated[bool, Parameter(negative=())] = False,
    poll: float = 10.0,
    webhook: str | None = None,
    retry_timeout: float = 60.0,
) -> int:
    """Pull new answers from Label Studio. Answers that were pulled before are skipped.

    Args:
        run: Run folder.
        url: URL of the server; default: where the questions were pushed.
        project: Number of the project; default: the one the questions were pushed to.
        token_file: File with the token, mode 600; default: use LABEL_STUDIO_API_KEY.
        watch: Keep pulling until the run has closed the round, and keep trying if the server is down.
        poll: With --watch: seconds between pulls.
        webhook: With --watch: HOST:PORT to listen on, reachable from the server, which then reports each
            answer at once.
        retry_timeout: Seconds to keep trying if the server does not respond; unlimited with --watch.
    """
    from ducats.annotation.label_studio.pull import pull_answers
    from ducats.annotation.label_studio.sync_state import SyncState

    store = _open_store(run)
    state = SyncState.read(store.folder)
    if url is None and not state.url:
        raise UserError(
            f"{run} was not pushed to Label Studio; run `ducats push {shlex.quote(str(run))} --url URL` first"
        )
    if not 0 < poll <= MAX_POLL_SECONDS:
        raise UserError(f"--poll must be a positive number of seconds, at most a day, not {poll:g}")
    if webhook is not None and not watch:
        raise UserError("--webhook needs --watch")
    studio = _connect(url or state.url, token_file, float("inf") if watch else retry_timeout)
    if not watch:
        print_line(_describe_pulled(store, pull_answers(store, studio, project)))
        return 0
    _watch(store, studio, project, poll, webhook)
    return 0


def _watch(
    store: "AnnotationStore", studio: "LabelStudio", project: int | None, poll: float, webhook: str | None
) -> None:
    from ducats.annotation.label_studio.pull import pull_answers
    from ducats.annotation.label_studio.pull_loop import pull_until_closed, webhook_listener

    last = ""

    def print_progress(pulled: "PullResult") -> None:
        nonlocal last
        message = _describe_pulled(store, pulled)
        if pulled.received or not last:
            print_line(message)
        last = message

    notified = threading.Event()
    if webhook is None:
        pull_until_closed(store, studio, project, poll=poll, on_pull=print_progress, notified=notified)
        return
    pulled = pull_answers(store, studio, project)  # also resolves the project
    print_progress(pulled)
    with webhook_listener(studio, pulled.project_id, webhook, notified, print_line):
        pull_until_closed(
            store, studio, pulled.project_id, poll=poll, on_pull=print_progress, notified=notified
        )


def _describe_pulled(store: "AnnotationStore", pulled: "PullResult") -> str:
    """Summarise the pulled answers and the open questions."""
    rejected = pulled.rejected
    phrases = [f"{pluralise(len(pulled.received) - rejected.total(), 'answer')} accepted"]
    if rejected:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(rejected.items()))
        phrases.append(f"{rejected.total()} rejected ({reasons})")
    if pulled.stray_points:
        phrases.append(f"{pluralise(pulled.stray_points, 'point')} outside the queried pixels ignored")
    question_round = store.open_round()
    if question_round is None:
        phrases.append("no round is open")
    else:
        states = [status.state for status in store.statuses(question_round.rules.round).values()]
        left = len(states) - states.count("settled")
        disputed = f", {states.count('disputed')} disputed" if "disputed" in states else ""
        phrases.append(
            f"round {question_round.rules.round} waits for {left} of {len(states)}{disputed}"
            if left
            else f"round {question_round.rules.round} is complete; run the same `ducats run` command again"
        )
    return "; ".join(phrases)


def _open_store(run: Path) -> "AnnotationStore":
    from ducats.annotation import AnnotationStore
    from ducats.runfolder.run_folder import RunFolder

    run_folder = RunFolder(run)
    run_folder.check_format()
    store = AnnotationStore(run_folder.questions_path)
    if not store.round_numbers():
        raise UserError(
            f"{run} has no questions that can be answered one by one; give the folder of a run that waits "
            "for annotators"
        )
    return store


def _connect(url: str, token_file: Path | None, retry_timeout: float) -> "LabelStudio":
    from ducats.annotation.label_studio.api import LabelStudio
    from ducats.annotation.label_studio.client import JsonClient, is_loopback_url, load_token

    client = JsonClient(url, load_token(token_file), retry_timeout=retry_timeout, notify=print_line)
    if client.url.startswith("http:") and not is_loopback_url(client.url):
        print_warning(f"{client.url} is not encrypted, so the token can be intercepted; use https://")
    return LabelStudio(client)
