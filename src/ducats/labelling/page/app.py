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
from ducats.labelling.page import payloads
from ducats.labelling.page.guard import RequestGuard
from ducats.labelling.page.question_images import ImageView, QuestionImages
from ducats.labelling.page.round_progress import RoundProgress

STATIC_FOLDER = Path(__file__).with_name("static")
QUESTIONS_PER_STATE = 6  # questions sent to a page at once: one to show, the rest to preload
MAX_GRID_TILES = 60  # per grid
MAX_ANSWERS_PER_REQUEST = 1000  # answers per request
MAX_NAME_LENGTH = 80  # maximum length of an annotator's name
MAX_UNDO_ACTS = 20  # acts that can be undone after a reload
ZOOM_LEVELS = range(-6, 5)


class InvalidRequest(Exception):  # noqa: N818 - an invalid request, not a defect
    """An invalid request; the message says what is wrong."""


class LabellingPage:
    """State shared by all requests.

    Args:
        run_folder: the run folder.
        who: annotator name used for every browser. If empty, each browser asks for a name.
        blind: hide the model's guess and its uncertainties.
    """

    def __init__(self, run_folder: Path, *, who: str = "", blind: bool = False) -> None:
        self.run_folder = run_folder
        self.store = AnnotationStore(run_folder / "questions")
        self.who = who.strip()
        self.blind = blind
        self.images = QuestionImages()
        self.run_id = sha256(str(run_folder.resolve()).encode()).hexdigest()[:12]
        self._rounds: dict[int, tuple[str, RoundProgress]] = {}  # number -> stamp, progress
        self._lock = threading.Lock()

    def reset_if_restarted(self) -> None:
        """Drop all cached state if the run was restarted from scratch in the same folder."""
        with self._lock:
            round_numbers = set(self.store.round_numbers())
            if any(
                n not in round_numbers or self.round_stamp(n) != stamp
                for n, (stamp, _) in self._rounds.items()
            ):
                self.store, self.images, self._rounds = (
                    AnnotationStore(self.store.folder),
                    QuestionImages(),
                    {},
                )

    def open_round(self) -> RoundProgress | None:
        """Return the round that is open for answers, or None."""
        self.reset_if_restarted()
        with self._lock:  # read a long sheet once, not once per thread
            sheet = self.store.open_round()
        return None if sheet is None else self.round_progress(sheet.rules.round)

    def round_progress(self, number: int) -> RoundProgress:
        """Return the current progress of a round."""
        with self._lock:
            if number not in self._rounds:
                self._rounds[number] = (
                    self.round_stamp(number),
                    RoundProgress(self.store, self.store.question_round(number)),
                )
            progress = self._rounds[number][1]
        progress.refresh()
        return progress

    def round_stamp(self, number: int) -> str:
        """Return an id that is unique across runs; browsers cache images under it."""
        written = (self.store.round_folder(number) / "terms.json").stat().st_mtime_ns
        return f"{self.run_id}-{number}-{written:x}"

    def annotator_name(self, name: Any) -> str:
        """Return the annotator's name, validated."""
        if self.who:
            return self.who
        if not isinstance(name, str) or len(name.strip()) > MAX_NAME_LENGTH:
            raise InvalidRequest(f"`who` must be a name of at most {MAX_NAME_LENGTH} characters")
        return replace_surrogates(name.strip())

    def page_state(self, who: str) -> dict[str, Any]:
        """Return everything the page shows, except images."""
        payload: dict[str, Any] = {"desk": self.run_id, "who": self.who, "blind": self.blind, "next": []}
        progress = self.open_round()
        if progress is None:
            rounds = self.store.round_numbers()
            last = rounds[-1] if rounds else 0
            needs_label_maps = (
                self.store.round_folder(last + 1) / "masks"
            ).is_dir()  # answered with label PNGs, not one by one
            is_finished = (self.run_folder / "model.safetensors").exists()
            payload["state"] = (
                "finished" if is_finished else "maps" if needs_label_maps else "taken" if rounds else "empty"
            )
            payload["round"] = last
            return payload
        counts = progress.counts(who)
        time_limit = progress.question_round.rules.max_seconds
        is_time_spent = time_limit is not None and counts["seconds"] >= time_limit
        is_complete = counts["settled"] == counts["all"] or is_time_spent
        payload |= {
            "state": "complete" if is_complete else "asking",
            "round": progress.question_round.rules.round,
            "stamp": self.round_stamp(progress.question_round.rules.round),
            "terms": payloads.round_payload(progress.question_round),
            "counts": counts,
        }
        if who and not is_complete:
            payload["next"] = payloads.question_payloads(
                progress, progress.next_questions(who, QUESTIONS_PER_STATE), who, blind=self.blind
            )
        return payload

    def undoable_acts(self, who: str) -> dict[str, Any]:
        """Return the acts that an annotator can undo, oldest first."""
        progress = self.open_round()
        groups = [] if progress is None else progress.recent_acts(who, MAX_UNDO_ACTS)
        return {"recent": [[{"id": one.id, "number": one.number} for one in group] for group in groups]}

    def store_answers(self, who: str, answers: list[Any]) -> dict[str, Any]:
        """Store answers; they are on disk when this returns."""
        if not who:
            raise InvalidRequest("`who` is empty; an answer needs the annotator's name")
        self.reset_if_restarted()
        # The store decides what is refused, not the page.
        submitted = [
            {**one, "who": who, "refused": None} if isinstance(one, dict) else one for one in answers
        ]
        self.store.receive(submitted, channel="page")
        refused = {}
        for one in submitted:
            if (
                isinstance(one, dict)
                and isinstance(one.get("ref"), str)
                and isinstance(one.get("question"), str)
            ):
                # Look it up: this may be a repeated request whose first reply was lost.
                ref = replace_surrogates(one["ref"])
                found = (
                    a for a in self.store.answers(replace_surrogates(one["question"])) if a.external_id == ref
                )
                refused[ref] = next((a.reject_reason for a in found), "malformed")
        return {"saved": len(submitted), "refused": {ref: why for ref, why in refused.items() if why}}

    def guess_group(self, who: str, guess: str) -> dict[str, Any]:
        """Return open questions for which the model predicts the same class."""
        progress = None if self.blind else self.open_round()
        if progress is None:
            return {"guesses": [], "guess": "", "questions": [], "stamp": ""}
        found = progress.open_by_guess(who)
        guess = guess if guess in found else next(iter(found), "")
        return {
            "guesses": [[name, len(waiting)] for name, waiting in found.items()],
            "guess": guess,
            "questions": payloads.question_payloads(
                progress, found.get(guess, [])[:MAX_GRID_TILES], who, blind=False
            ),
            "stamp": self.round_stamp(progress.question_round.rules.round),
        }


async def _receive_answers(request: Request, page: LabellingPage) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        who, answers = body.get("who"), body["answers"]
    except ClientDisconnect:
        raise InvalidRequest("the request is incomplete") from None
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise InvalidRequest(
            "the body must be JSON: {who, answers: [{question, word, seconds, ref}]}"
        ) from None
    if not isinstance(answers, list) or len(answers) > MAX_ANSWERS_PER_REQUEST:
        raise InvalidRequest(f"`answers` must be a list of at most {MAX_ANSWERS_PER_REQUEST}")
    who = page.annotator_name(who)

    def act() -> dict[str, Any]:
        return {**page.store_answers(who, answers), **page.page_state(who)}

    return await run_in_threadpool(act)


def make_app(
    page: LabellingPage, *, token: str, host: str, cookie: str = "ducats", single_use_token: str = ""
) -> RequestGuard:
    """Build the ASGI app, protected by ``RequestGuard``."""

    def json_endpoint(
        build_payload: Callable[[Request, str], dict[str, Any]],
    ) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:  # not async, so Starlette runs it in a thread
            try:
                return JSONResponse(
                    build_payload(request, page.annotator_name(request.query_params.get("who", "")))
                )
            except InvalidRequest as error:
                return PlainTextResponse(f"{error}\n", 400)

        return endpoint

    def question_endpoint(request: Request, who: str) -> dict[str, Any]:
        progress, index = _requested_question(page, request)
        return payloads.question_payload(
            progress, progress.question_round.questions[index], who, blind=page.blind
        )

    def image_endpoint(request: Request) -> Response:
        try:
            progress, index = _requested_question(page, request)
            who = page.annotator_name(request.query_params.get("who", ""))
            zoom = int(request.query_params.get("zoom", "0"))
        except (InvalidRequest, ValueError):
            return PlainTextResponse("no such image\n", 404)
        question = progress.question_round.questions[index]
        has_together = "together" in request.query_params
        together = (
            progress.same_segment(who, question, payloads.MAX_SEGMENT_QUESTIONS - 1) if has_together else []
        )
        zoom = min(max(zoom, ZOOM_LEVELS[0]), ZOOM_LEVELS[-1])
        view: ImageView = request.path_params["view"]
        if view not in get_args(ImageView):
            return PlainTextResponse("no such image\n", 404)
        image = page.images.render(
            progress.question_round, question, view, zoom=zoom, together=tuple(together)
        )
        if image is None:
            return PlainTextResponse("this image no longer exists\n", 404)
        cache_control = "no-store" if has_together else "private, max-age=86400, immutable"
        return Response(image[0], media_type=image[1], headers={"Cache-Control": cache_control})

    async def answers_endpoint(request: Request) -> Response:
        try:
            return JSONResponse(await _receive_answers(request, page))
        except InvalidRequest as error:
            return PlainTextResponse(f"{error}\n", 400)

    def static_endpoint(request: Request) -> Response:
        known = {path.name: path for path in STATIC_FOLDER.iterdir()}
        path = known.get(request.path_params.get("name", "index.html"))
        return PlainTextResponse("no such file\n", 404) if path is None else FileResponse(path)

    def error_response(_: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{error}\n", 500)

    routes = [
        Route("/", static_endpoint),
        Route("/static/{name}", static_endpoint),
        Route("/api/state", json_endpoint(lambda _, who: page.page_state(who))),
        Route("/api/recent", json_endpoint(lambda _, who: page.undoable_acts(who))),
        Route(
            "/api/grid",
            json_endpoint(lambda request, who: page.guess_group(who, request.query_params.get("guess", ""))),
        ),
        Route("/api/question/{round:int}/{number:int}", json_endpoint(question_endpoint)),
        Route("/api/answers", answers_endpoint, methods=["POST"]),
        Route("/picture/{view}/{round:int}/{number:int}", image_endpoint),
    ]
    app = Starlette(routes=routes, exception_handlers={UserError: error_response, OSError: error_response})
    return RequestGuard(app, token, host, cookie, single_use_token)


def _requested_question(page: LabellingPage, request: Request) -> tuple[RoundProgress, int]:
    """Return the requested question, given by round and number and never by path."""
    number, index = request.path_params["round"], request.path_params["number"] - 1
    if number not in page.store.round_numbers():
        raise InvalidRequest("no such round")
    progress = page.round_progress(number)
    if not 0 <= index < len(progress.question_round.questions):
        raise InvalidRequest("no such question")
    return progress, index
