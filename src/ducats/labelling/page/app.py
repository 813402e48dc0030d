"""The server behind the page: tells what is asked, shows the pictures, and puts answers down."""

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

from ducats.answers import Desk
from ducats.answers.answer import clean
from ducats.errors import UserError
from ducats.labelling.page import views
from ducats.labelling.page.guard import Guard
from ducats.labelling.page.pictures import Pictures, View
from ducats.labelling.page.progress import Progress

STATIC = Path(__file__).with_name("static")
AHEAD = 6  # questions that a page is told at once: one to show, the others to load ahead
TILES = 60  # of a grid
MOST = 1000  # answers in one request
NAME = 80  # letters of a person's
RECENT = 20  # answers that can be undone after a reload
ZOOMS = range(-6, 5)


class Refused(Exception):  # noqa: N818 - a request that makes no sense, not a defect
    """What is wrong with a request."""


class Page:
    """What all requests share.

    Args:
        run: the run's folder.
        who: everybody's name; each browser asks for one if it is empty.
        blind: do not tell what the model thinks.
    """

    def __init__(self, run: Path, *, who: str = "", blind: bool = False) -> None:
        self.run = run
        self.desk = Desk(run / "questions")
        self.who = who.strip()
        self.blind = blind
        self.pictures = Pictures()
        self.name = sha256(str(run.resolve()).encode()).hexdigest()[:12]
        self._rounds: dict[int, tuple[str, Progress]] = {}  # with their stamps
        self._own = threading.Lock()

    def look(self) -> None:
        """Forget everything if the run was begun anew in the same folder."""
        with self._own:
            rounds = set(self.desk.rounds())
            if any(n not in rounds or self.stamp(n) != stamp for n, (stamp, _) in self._rounds.items()):
                self.desk, self.pictures, self._rounds = Desk(self.desk.folder), Pictures(), {}

    def progress(self) -> Progress | None:
        """The round that waits for answers, if one does."""
        self.look()
        with self._own:  # a long sheet is read once, not by each thread
            sheet = self.desk.current()
        return None if sheet is None else self.round(sheet.terms.round)

    def round(self, number: int) -> Progress:
        """A round, as far as it is now."""
        with self._own:
            if number not in self._rounds:
                self._rounds[number] = self.stamp(number), Progress(self.desk, self.desk.sheet(number))
            progress = self._rounds[number][1]
        progress.refresh()
        return progress

    def stamp(self, number: int) -> str:
        """Tells this round from that of any other run: browsers keep pictures by it."""
        written = (self.desk.home(number) / "terms.json").stat().st_mtime_ns
        return f"{self.name}-{number}-{written:x}"

    def person(self, given: Any) -> str:
        """Who is asking."""
        if self.who:
            return self.who
        if not isinstance(given, str) or len(given.strip()) > NAME:
            raise Refused(f"`who` is a name of at most {NAME} letters")
        return clean(given.strip())

    def state(self, who: str) -> dict[str, Any]:
        """Everything that the page shows beside pictures."""
        told: dict[str, Any] = {"desk": self.name, "who": self.who, "blind": self.blind, "next": []}
        progress = self.progress()
        if progress is None:
            rounds = self.desk.rounds()
            last = rounds[-1] if rounds else 0
            maps = (self.desk.home(last + 1) / "masks").is_dir()  # laid out, but not one by one
            done = (self.run / "model.safetensors").exists()
            told["state"] = "finished" if done else "maps" if maps else "taken" if rounds else "empty"
            told["round"] = last
            return told
        counts = progress.counts(who)
        bound = progress.sheet.terms.seconds
        spent = bound is not None and counts["seconds"] >= bound
        complete = counts["settled"] == counts["all"] or spent
        told |= {
            "state": "complete" if complete else "asking",
            "round": progress.sheet.terms.round,
            "stamp": self.stamp(progress.sheet.terms.round),
            "terms": views.terms(progress.sheet),
            "counts": counts,
        }
        if who and not complete:
            told["next"] = views.questions(progress, progress.next(who, AHEAD), who, blind=self.blind)
        return told

    def recent(self, who: str) -> dict[str, Any]:
        """What a person can undo, the latest last."""
        progress = self.progress()
        groups = [] if progress is None else progress.recent(who, RECENT)
        return {"recent": [[{"id": one.id, "number": one.number} for one in group] for group in groups]}

    def receive(self, who: str, answers: list[Any]) -> dict[str, Any]:
        """Put answers down; they are on disk when this returns."""
        if not who:
            raise Refused("an answer needs a name in `who`")
        self.look()
        # What is refused is not for a page to say.
        given = [{**one, "who": who, "refused": None} if isinstance(one, dict) else one for one in answers]
        self.desk.receive(given, via="page")
        refused = {}
        for one in given:
            if (
                isinstance(one, dict)
                and isinstance(one.get("ref"), str)
                and isinstance(one.get("question"), str)
            ):
                # Looked up, not taken from what was put down: a reply may have been lost on its way.
                ref = clean(one["ref"])
                found = (a for a in self.desk.answers(clean(one["question"])) if a.ref == ref)
                refused[ref] = next((a.refused for a in found), "malformed")
        return {"saved": len(given), "refused": {ref: why for ref, why in refused.items() if why}}

    def grid(self, who: str, guess: str) -> dict[str, Any]:
        """Questions that are alike to the model."""
        progress = None if self.blind else self.progress()
        if progress is None:
            return {"guesses": [], "guess": "", "questions": [], "stamp": ""}
        found = progress.guesses(who)
        guess = guess if guess in found else next(iter(found), "")
        return {
            "guesses": [[name, len(waiting)] for name, waiting in found.items()],
            "guess": guess,
            "questions": views.questions(progress, found.get(guess, [])[:TILES], who, blind=False),
            "stamp": self.stamp(progress.sheet.terms.round),
        }


async def _answers(request: Request, page: Page) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        who, answers = body.get("who"), body["answers"]
    except ClientDisconnect:
        raise Refused("it did not arrive whole") from None
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise Refused("answers are JSON: {who, answers: [{question, word, seconds, ref}]}") from None
    if not isinstance(answers, list) or len(answers) > MOST:
        raise Refused(f"`answers` is a list of at most {MOST}")
    who = page.person(who)

    def act() -> dict[str, Any]:
        return {**page.receive(who, answers), **page.state(who)}

    return await run_in_threadpool(act)


def make_app(page: Page, *, token: str, host: str, cookie: str = "ducats", once: str = "") -> Guard:
    """The page as an ASGI app, guarded; see ``Guard``."""

    def told(make: Callable[[Request, str], dict[str, Any]]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:  # not async: Starlette runs it in a thread
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
            return PlainTextResponse("there is no such picture\n", 404)
        question = progress.sheet.questions[place]
        both = "together" in request.query_params
        together = progress.together(who, question, views.TOGETHER - 1) if both else []
        zoom = min(max(zoom, ZOOMS[0]), ZOOMS[-1])
        view: View = request.path_params["view"]
        if view not in get_args(View):
            return PlainTextResponse("there is no such picture\n", 404)
        found = page.pictures.get(progress.sheet, question, view, zoom=zoom, together=tuple(together))
        if found is None:
            return PlainTextResponse("the picture is not there any more\n", 404)
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
        return PlainTextResponse("there is no such file\n", 404) if path is None else FileResponse(path)

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
    """Which question a request is about: by round and number, never by a path."""
    number, place = request.path_params["round"], request.path_params["number"] - 1
    if number not in page.desk.rounds():
        raise Refused("there is no such round")
    progress = page.round(number)
    if not 0 <= place < len(progress.sheet.questions):
        raise Refused("there is no such question")
    return progress, place
