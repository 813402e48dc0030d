"""ASGI application behind the page: serves questions and images, and stores answers."""

import json
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ducats.annotation import AnnotationStore
from ducats.annotation.answer import replace_surrogates
from ducats.errors import UserError
from ducats.labelling.page import views
from ducats.labelling.page.guard import Guard
from ducats.labelling.page.pictures import Pictures, View
from ducats.labelling.page.progress import Progress

STATIC = Path(__file__).with_name("static")
AHEAD = 6  # questions sent to a page at once: one to show, the rest to preload
TILES = 60  # per grid
MOST = 1000  # answers per request
NAME = 80  # maximum length of an annotator's name
RECENT = 20  # acts that can be undone after a reload
ZOOMS = range(-6, 5)


class Refused(Exception):  # noqa: N818 - an invalid request, not a defect
    """An invalid request; the message says what is wrong."""


class Page:
    """State shared by all requests.

    Args:
        run: the run folder.
        who: annotator name used for every browser. If empty, each browser asks for a name.
        blind: hide the model's guess and its uncertainties.
    """

    def __init__(self, run: Path, *, who: str = "", blind: bool = False) -> None:
        self.run = run
        self.desk = AnnotationStore(run / "questions")
        self.who = who.strip()
        self.blind = blind
        self.pictures = Pictures()
        self.name = sha256(str(run.resolve()).encode()).hexdigest()[:12]
        self._rounds: dict[int, tuple[str, Progress]] = {}  # number -> stamp, progress
        self._own = threading.Lock()

    def look(self) -> None:
        """Drop all cached state if the run was restarted from scratch in the same folder."""
        with self._own:
            rounds = set(self.desk.round_numbers())
            if any(n not in rounds or self.stamp(n) != stamp for n, (stamp, _) in self._rounds.items()):
                self.desk, self.pictures, self._rounds = AnnotationStore(self.desk.folder), Pictures(), {}

    def progress(self) -> Progress | None:
        """Return the round that is open for answers, or None."""
        self.look()
        with self._own:  # read a long sheet once, not once per thread
            sheet = self.desk.open_round()
        return None if sheet is None else self.round(sheet.rules.round)

    def round(self, number: int) -> Progress:
        """Return the current progress of a round."""
        with self._own:
            if number not in self._rounds:
                self._rounds[number] = (
                    self.stamp(number),
                    Progress(self.desk, self.desk.question_round(number)),
                )
            progress = self._rounds[number][1]
        progress.refresh()
        return progress

    def stamp(self, number: int) -> str:
        """Return an id that is unique across runs; browsers cache images under it."""
        written = (self.desk.round_folder(number) / "terms.json").stat().st_mtime_ns
        return f"{self.name}-{number}-{written:x}"

    def person(self, given: Any) -> str:
        """Return the annotator's name, validated."""
        if self.who:
            return self.who
        if not isinstance(given, str) or len(given.strip()) > NAME:
            raise Refused(f"`who` must be a name of at most {NAME} characters")
        return replace_surrogates(given.strip())

    def state(self, who: str) -> dict[str, Any]:
        """Return everything the page shows, except images."""
        told: dict[str, Any] = {"desk": self.name, "who": self.who, "blind": self.blind, "next": []}
        progress = self.progress()
        if progress is None:
            rounds = self.desk.round_numbers()
            last = rounds[-1] if rounds else 0
            maps = (
                self.desk.round_folder(last + 1) / "masks"
            ).is_dir()  # answered with label PNGs, not one by one
            done = (self.run / "model.safetensors").exists()
            told["state"] = "finished" if done else "maps" if maps else "taken" if rounds else "empty"
            told["round"] = last
            return told
        counts = progress.counts(who)
        bound = progress.sheet.rules.max_seconds
        spent = bound is not None and counts["seconds"] >= bound
        complete = counts["settled"] == counts["all"] or spent
        told |= {
            "state": "complete" if complete else "asking",
            "round": progress.sheet.rules.round,
            "stamp": self.stamp(progress.sheet.rules.round),
            "terms": views.terms(progress.sheet),
            "counts": counts,
        }
        if who and not complete:
            told["next"] = views.questions(progress, progress.next(who, AHEAD), who, blind=self.blind)
        return told

    def recent(self, who: str) -> dict[str, Any]:
        """Return the acts that an annotator can undo, oldest first."""
        progress = self.progress()
        groups = [] if progress is None else progress.recent(who, RECENT)
        return {"recent": [[{"id": one.id, "number": one.number} for one in group] for group in groups]}

    def receive(self, who: str, answers: list[Any]) -> dict[str, Any]:
        """Store answers; they are on disk when this returns."""
        if not who:
            raise Refused("`who` is empty; an answer needs the annotator's name")
        self.look()
        # The store decides what is refused, not the page.
        given = [{**one, "who": who, "refused": None} if isinstance(one, dict) else one for one in answers]
        self.desk.receive(given, channel="page")
        refused = {}
        for one in given:
            if (
                isinstance(one, dict)
                and isinstance(one.get("ref"), str)
                and isinstance(one.get("question"), str)
            ):
                # Look it up: this may be a repeated request whose first reply was lost.
                ref = replace_surrogates(one["ref"])
                found = (
                    a for a in self.desk.answers(replace_surrogates(one["question"])) if a.external_id == ref
                )
                refused[ref] = next((a.reject_reason for a in found), "malformed")
        return {"saved": len(given), "refused": {ref: why for ref, why in refused.items() if why}}

    def grid(self, who: str, guess: str) -> dict[str, Any]:
        """Return open questions for which the model predicts the same class."""
        progress = None if self.blind else self.progress()
        if progress is None:
            return {"guesses": [], "guess": "", "questions": [], "stamp": ""}
        found = progress.guesses(who)
        guess = guess if guess in found else next(iter(found), "")
        return {
            "guesses": [[name, len(waiting)] for name, waiting in found.items()],
            "guess": guess,
            "questions": views.questions(progress, found.get(guess, [])[:TILES], who, blind=False),
            "stamp": self.stamp(progress.sheet.rules.round),
        }


async def _answers(request: Request, page: Page) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        who, answers = body.get("who"), body["answers"]
    except ClientDisconnect:
        raise Refused("the request is incomplete") from None
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise Refused("the body must be JSON: {who, answers: [{question, word, seconds, ref}]}") from None
    if not isinstance(answers, list) or len(answers) > MOST:
        raise Refused(f"`answers` must be a list of at most {MOST}")
    who = page.person(who)

    def act() -> dict[str, Any]:
        return {**page.receive(who, answers), **page.state(who)}

    return await run_in_threadpool(act)


def make_app(page: Page, *, token: str, host: str, cookie: str = "ducats", once: str = "") -> Guard:
    """Build the ASGI app, protected by ``Guard``."""

    def told(make: Callable[[Request, str], dict[str, Any]]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:  # not async, so Starlette runs it in a thread
            try:
                return JSONResponse(make(request, page.person(request.query_params.get("who", ""))))
            except Refused as error:
                return PlainTextResponse(f"{error}\n", 400)

        return endpoint

    def one(request: Request, who: str) -> dict[str, Any]:
        progress, place = _asked(page, request)
        return views.question(progress, progress.sheet.questions[place], who, blind=page.blind)

    def picture(request: Request) -> Response:
        try:
            progress, place = _asked(page, request)
            who = page.person(request.query_params.get("who", ""))
            zoom = int(request.query_params.get("zoom", "0"))
        except (Refused, ValueError):
            return PlainTextResponse("no such image\n", 404)
        question = progress.sheet.questions[place]
        both = "together" in request.query_params
        together = progress.together(who, question, views.TOGETHER - 1) if both else []
        zoom = min(max(zoom, ZOOMS[0]), ZOOMS[-1])
        view: View = request.path_params["view"]
        if view not in get_args(View):
            return PlainTextResponse("no such image\n", 404)
        found = page.pictures.get(progress.sheet, question, view, zoom=zoom, together=tuple(together))
        if found is None:
            return PlainTextResponse("this image no longer exists\n", 404)
        kept = "no-store" if both else "private, max-age=86400, immutable"
        return Response(found[0], media_type=found[1], headers={"Cache-Control": kept})

    async def answers(request: Request) -> Response:
        try:
            return JSONResponse(await _answers(request, page))
        except Refused as error:
            return PlainTextResponse(f"{error}\n", 400)

    def static(request: Request) -> Response:
        known = {path.name: path for path in STATIC.iterdir()}
        path = known.get(request.path_params.get("name", "index.html"))
        return PlainTextResponse("no such file\n", 404) if path is None else FileResponse(path)

    def broken(_: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{error}\n", 500)

    routes = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/api/state", told(lambda _, who: page.state(who))),
        Route("/api/recent", told(lambda _, who: page.recent(who))),
        Route("/api/grid", told(lambda request, who: page.grid(who, request.query_params.get("guess", "")))),
        Route("/api/question/{round:int}/{number:int}", told(one)),
        Route("/api/answers", answers, methods=["POST"]),
        Route("/picture/{view}/{round:int}/{number:int}", picture),
    ]
    app = Starlette(routes=routes, exception_handlers={UserError: broken, OSError: broken})
    return Guard(app, token, host, cookie, once)


def _asked(page: Page, request: Request) -> tuple[Progress, int]:
    """Return the requested question, given by round and number and never by path."""
    number, place = request.path_params["round"], request.path_params["number"] - 1
    if number not in page.desk.round_numbers():
        raise Refused("no such round")
    progress = page.round(number)
    if not 0 <= place < len(progress.sheet.questions):
        raise Refused("no such question")
    return progress, place
