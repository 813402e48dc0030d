"""Commands for Label Studio: push questions, pull answers. Imports no torch."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ducats.cli.base import app, console
from ducats.errors import UserError

if TYPE_CHECKING:
    from ducats.answers import Desk
    from ducats.labelling.studio import Pulled, Studio

LONGEST_PAUSE = 24 * 3600.0  # seconds


@app.command
def push(
    run: Path,
    *,
    url: str,
    project: str | None = None,
    token_file: Path | None = None,
    pictures: str = "inline",
    document_root: Path | None = None,
    blind: Annotated[bool, Parameter(negative=())] = False,
    most_side: int = 1024,
    patience: float = 60.0,
) -> int:
    """Push the open questions of a run to a Label Studio project. Existing tasks are kept.

    The token, a personal access token or a legacy one, is read from LABEL_STUDIO_API_KEY or --token-file.

    Args:
        run: Run folder.
        url: URL of the server, e.g. http://127.0.0.1:8080.
        project: Number or title of the project; default: named after the run folder, created if missing.
        token_file: File with the token, mode 600.
        pictures: inline: embed the image in each task; local-files: the server reads images below
            --document-root; otherwise a URL prefix to which the image key is appended.
        document_root: The server's LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT.
        blind: Do not send the model's predictions, which can bias annotators.
        most_side: Maximum side of inline images in pixels.
        patience: Seconds to keep trying if the server does not respond.
    """
    from ducats.labelling.studio import push as push_questions

    desk = _desk(run)
    pushed = push_questions(
        desk,
        _studio(url, token_file, patience),
        f"ducats: {run.resolve().name}",
        project=project,
        pictures=pictures,
        document_root=document_root,
        blind=blind,
        most_side=most_side,
    )
    new = _counted(pushed.new, "new task")
    _print(f"round {pushed.round}: {new}, {pushed.known} already there, in {pushed.address}")
    if pushed.answered:
        _print(f"already answered, not pushed: {_counted(pushed.answered, 'image')}")
    _print(f"once they are labelled: ducats pull {run}")
    return 0


@app.command
def pull(
    run: Path,
    *,
    url: str | None = None,
    project: int | None = None,
    token_file: Path | None = None,
    watch: Annotated[bool, Parameter(negative=())] = False,
    every: float = 10.0,
    webhook: str | None = None,
    patience: float = 60.0,
) -> int:
    """Pull new answers from Label Studio. Answers that were pulled before are skipped.

    Args:
        run: Run folder.
        url: URL of the server; default: where the questions were pushed.
        project: Number of the project; default: the one the questions were pushed to.
        token_file: File with the token, mode 600; default: use LABEL_STUDIO_API_KEY.
        watch: Keep pulling until the run has closed the round, and keep trying if the server is down.
        every: With --watch: seconds between pulls.
        webhook: With --watch: HOST:PORT to listen on, reachable from the server, which then reports each
            answer at once.
        patience: Seconds to keep trying if the server does not respond; unlimited with --watch.
    """
    from ducats.labelling.studio import State
    from ducats.labelling.studio import pull as pull_answers

    desk = _desk(run)
    state = State.read(desk.folder)
    if url is None and not state.url:
        raise UserError(f"{run} was not pushed to Label Studio; run `ducats push {run} --url URL` first")
    if not 0 < every <= LONGEST_PAUSE:
        raise UserError(f"--every must be a positive number of seconds, at most a day, not {every:g}")
    if webhook is not None and not watch:
        raise UserError("--webhook needs --watch")
    studio = _studio(url or state.url, token_file, float("inf") if watch else patience)
    if not watch:
        _print(_sentence(desk, pull_answers(desk, studio, project)))
        return 0
    _watch(desk, studio, project, every, webhook)
    return 0


def _watch(desk: "Desk", studio: "Studio", project: int | None, every: float, webhook: str | None) -> None:
    from ducats.labelling.studio import pull as pull_answers
    from ducats.labelling.studio.watch import hook
    from ducats.labelling.studio.watch import watch as watch_answers

    last = ""

    def say(pulled: "Pulled") -> None:
        nonlocal last
        sentence = _sentence(desk, pulled)
        if pulled.received or not last:
            _print(sentence)
        last = sentence

    called = threading.Event()
    if webhook is None:
        watch_answers(desk, studio, project, every=every, say=say, called=called)
        return
    pulled = pull_answers(desk, studio, project)  # also resolves the project
    say(pulled)
    with hook(studio, pulled.project, webhook, called, _print):
        watch_answers(desk, studio, pulled.project, every=every, say=say, called=called)


def _sentence(desk: "Desk", pulled: "Pulled") -> str:
    """Summarise the pulled answers and the open questions."""
    refused = pulled.refused
    parts = [f"{_counted(len(pulled.received) - refused.total(), 'answer')} accepted"]
    if refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        parts.append(f"{refused.total()} rejected ({reasons})")
    if pulled.stray:
        parts.append(f"{_counted(pulled.stray, 'point')} outside the queried pixels ignored")
    sheet = desk.current()
    if sheet is None:
        parts.append("no round is open")
    else:
        states = [one.state for one in desk.standings(sheet.terms.round).values()]
        left = len(states) - states.count("settled")
        disputed = f", {states.count('disputed')} disputed" if "disputed" in states else ""
        parts.append(
            f"round {sheet.terms.round} waits for {left} of {len(states)}{disputed}"
            if left
            else f"round {sheet.terms.round} is complete; run the same `ducats run` command again"
        )
    return "; ".join(parts)


def _counted(count: int, what: str) -> str:
    """Format a count with its noun.

    >>> _counted(1, "answer"), _counted(2, "answer")
    ('1 answer', '2 answers')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def _desk(run: Path) -> "Desk":
    from ducats.answers import Desk

    desk = Desk(run / "questions")
    if not desk.rounds():
        raise UserError(
            f"{run} has no questions that can be answered one by one; give the folder of a run that waits "
            "for annotators"
        )
    return desk


def _studio(url: str, token_file: Path | None, patience: float) -> "Studio":
    from ducats.labelling.studio import Client, Studio, find_token
    from ducats.labelling.studio.client import is_loopback

    client = Client(url, find_token(token_file), patience=patience, say=_print)
    if client.url.startswith("http:") and not is_loopback(client.url):
        _print(f"warning: {client.url} is not encrypted, so the token can be intercepted; use https://")
    return Studio(client)


def _print(sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
