"""Commands for Label Studio: questions there, answers back. No torch."""

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
    """Put the questions that a run waits for into a Label Studio project; what is there already stays.

    The token comes from LABEL_STUDIO_API_KEY or --token-file, a personal access token or a legacy one.

    Args:
        run: The run's folder.
        url: The server's address, e.g. http://127.0.0.1:8080.
        project: Number or title of the project; by default one named after the run's folder, made if need be.
        token_file: A file with the token, mode 600.
        pictures: inline: each task holds its picture; local-files: the server reads them below
            --document-root; or the beginning of an address that images' keys are put behind.
        document_root: The server's LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT.
        blind: Keep the model's guesses to ourselves: people are swayed by them.
        most_side: Longest side of inline pictures in pixels.
        patience: Seconds to wait for a server that does not answer.
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
    _print(f"round {pushed.round}: {new}, {pushed.known} there already, in {pushed.address}")
    if pushed.answered:
        _print(f"not put there, as they are answered: {_counted(pushed.answered, 'image')}")
    _print(f"people answer there; then: ducats pull {run}")
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
    """Take what people answered in Label Studio; nothing is taken twice.

    Args:
        run: The run's folder.
        url: The server's address; by default where the questions were pushed.
        project: The project's number, if it is not the one they were pushed to.
        token_file: A file with the token, mode 600; by default it comes from LABEL_STUDIO_API_KEY.
        watch: Go on until the run took the round; a server that is down is waited for.
        every: With --watch, seconds between two looks.
        webhook: With --watch, HOST:PORT to listen on, as the server reaches it: it calls us when someone
            answers.
        patience: Seconds to wait for a server that does not answer; for ever with --watch.
    """
    from ducats.labelling.studio import State
    from ducats.labelling.studio import pull as pull_answers

    desk = _desk(run)
    state = State.read(desk.folder)
    if url is None and not state.url:
        raise UserError(f"{run} was not pushed to Label Studio: `ducats push {run} --url URL` first")
    if not 0 < every <= LONGEST_PAUSE:
        raise UserError(f"--every {every:g} has to be more than 0 seconds, and a day at most")
    if webhook is not None and not watch:
        raise UserError("--webhook only makes sense with --watch: give both")
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
    pulled = pull_answers(desk, studio, project)  # and know the project
    say(pulled)
    with hook(studio, pulled.project, webhook, called, _print):
        watch_answers(desk, studio, pulled.project, every=every, say=say, called=called)


def _sentence(desk: "Desk", pulled: "Pulled") -> str:
    """What came, and what is still open."""
    refused = pulled.refused
    parts = [f"{_counted(len(pulled.received) - refused.total(), 'answer')} taken"]
    if refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        parts.append(f"{refused.total()} on record that do not count ({reasons})")
    if pulled.stray:
        parts.append(f"{_counted(pulled.stray, 'point')} on no pixel that was asked, left aside")
    sheet = desk.current()
    if sheet is None:
        parts.append("no round waits")
    else:
        states = [one.state for one in desk.standings(sheet.terms.round).values()]
        left = len(states) - states.count("settled")
        disputed = f", {states.count('disputed')} disputed" if "disputed" in states else ""
        parts.append(
            f"round {sheet.terms.round} waits for {left} of {len(states)}{disputed}"
            if left
            else f"round {sheet.terms.round} is complete: give the `ducats run` command again"
        )
    return "; ".join(parts)


def _counted(count: int, what: str) -> str:
    """A number of things.

    >>> _counted(1, "answer"), _counted(2, "answer")
    ('1 answer', '2 answers')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def _desk(run: Path) -> "Desk":
    from ducats.answers import Desk

    desk = Desk(run / "questions")
    if not desk.rounds():
        raise UserError(
            f"{run} has no questions that can be answered one by one: give the folder of a run that waits "
            "for people"
        )
    return desk


def _studio(url: str, token_file: Path | None, patience: float) -> "Studio":
    from ducats.labelling.studio import Client, Studio, find_token
    from ducats.labelling.studio.client import is_loopback

    client = Client(url, find_token(token_file), patience=patience, say=_print)
    if client.url.startswith("http:") and not is_loopback(client.url):
        _print(f"{client.url} is not encrypted: who is on the way can read the token; https:// is safe")
    return Studio(client)


def _print(sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
