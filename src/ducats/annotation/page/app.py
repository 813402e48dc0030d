"""ASGI application behind the page: serves questions and images, and stores answers."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ducats.annotation import AnnotationStore, Question, QuestionRound
from ducats.annotation.amend import LabelAmender, NewLabel
from ducats.annotation.answer import REVIEW_CHANNEL, parse_word, replace_surrogates
from ducats.annotation.page import payloads
from ducats.annotation.page.guard import PERSON, RequestGuard
from ducats.annotation.page.live import LiveModel
from ducats.annotation.page.question_images import ImageView, QuestionImages
from ducats.annotation.page.round_progress import RoundProgress
from ducats.annotation.review import list_for_review
from ducats.runfolder.question_names import MASKS, QUESTIONS
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

STATIC_FOLDER = Path(__file__).with_name("static")
QUESTIONS_PER_STATE = 6  # questions sent to a page at once: one to show, the rest to preload
LIVE_QUESTIONS_PER_STATE = 2  # the same while a model learns: later ones will be chosen with more answers
LIVE_WAIT_SECONDS = 0.5  # for the model to learn from an answer before the next question is chosen
MAX_GRID_TILES = 60
MAX_ANSWERS_PER_REQUEST = 1000
MAX_REVIEW_ITEMS = 200
MAX_NAME_LENGTH = 80  # of an annotator's name
MAX_UNDO_ACTS = 20  # acts that can be undone after a reload
ZOOM_LEVELS = range(-6, 5)


class InvalidRequest(Exception):  # noqa: N818 - an invalid request, not a defect
    """An invalid request; the message says what is wrong."""


class LabellingPage:
    """State shared by all requests.

    Args:
        annotator: name used for every browser. If empty, each browser asks for a name.
        blind: hide the model's guess and its uncertainties.
        accept_threshold: probability from which Enter accepts a guess.
        live: a model that learns from each answer.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        accept_threshold: float,
        annotator: str = "",
        blind: bool = False,
        live: LiveModel | None = None,
    ) -> None:
        self.run_folder, self.live = run_folder, live
        self.store = AnnotationStore(RunFolder(run_folder).questions_path) if live is None else live.store
        self.annotator = annotator.strip()
        self.blind = blind
        self.accept_threshold = accept_threshold
        self.images = QuestionImages()
        self.run_id = sha256(str(run_folder.resolve()).encode()).hexdigest()[:12]
        self._rounds: dict[int, tuple[str, RoundProgress]] = {}  # number -> stamp, progress
        self._lock = threading.Lock()

    def reset_if_restarted(self) -> None:
        """Drop all cached state if the run was restarted from scratch in the same folder."""
        with self._lock:
            round_numbers = set(self.store.round_numbers())
            stamps = {number: stamp for number, (stamp, _) in self._rounds.items()}
            if any(n not in round_numbers or self.round_stamp(n) != stamp for n, stamp in stamps.items()):
                self.store, self.images = AnnotationStore(self.store.folder), QuestionImages()
                self._rounds = {}

    def open_round(self) -> RoundProgress | None:
        """Return the round that is open for answers, or None."""
        self.reset_if_restarted()
        with self._lock:  # read many questions once, not once per thread
            question_round = self.store.open_round()
        return None if question_round is None else self.round_progress(question_round.rules.round)

    def round_progress(self, number: int) -> RoundProgress:
        """Return the current progress of a round."""
        with self._lock:
            if number not in self._rounds:
                progress = RoundProgress(self.store, self.store.question_round(number))
                self._rounds[number] = (self.round_stamp(number), progress)
            progress = self._rounds[number][1]
        progress.refresh()
        return progress

    def round_stamp(self, number: int) -> str:
        """Return an id that is unique across runs; browsers cache images under it."""
        written = (self.store.round_folder(number) / QUESTIONS).stat().st_mtime_ns
        return f"{self.run_id}-{number}-{written:x}-{self.store.n_class_changes()}"

    def annotator_name(self, request: Request, name: Any) -> str:
        """Return the annotator's name, validated; ``name`` is what the page sent."""
        if fixed := self.fixed_name(request):
            return fixed
        if not isinstance(name, str) or len(name.strip()) > MAX_NAME_LENGTH:
            raise InvalidRequest(f"`annotator` must be a name of at most {MAX_NAME_LENGTH} characters")
        return replace_surrogates(name.strip())

    def fixed_name(self, request: Request) -> str:
        """Return the name that belongs to the token, or that of all browsers; empty if neither is set."""
        return str(request.scope[PERSON]) or self.annotator

    def page_state(self, annotator: str, request: Request) -> dict[str, Any]:
        """Return everything the page shows, except images."""
        payload: dict[str, Any] = {
            "run": self.run_id,
            "annotator": self.fixed_name(request),
            "personal": bool(request.scope[PERSON]),
            "reviewable": bool(self.store.answers()),
            "blind": self.blind,
            "next": [],
        }
        progress = self.open_round()
        if progress is None:
            rounds = self.store.round_numbers()
            last = rounds[-1] if rounds else 0
            # Answered with label PNGs, not one by one.
            needs_label_maps = (self.store.round_folder(last + 1) / MASKS).is_dir()
            is_finished = RunFolder(self.run_folder).finished
            payload["state"] = (
                "finished" if is_finished else "maps" if needs_label_maps else "closed" if rounds else "empty"
            )
            payload["round"] = last
            return payload
        counts = progress.counts(annotator)
        time_limit = progress.question_round.rules.max_seconds
        is_time_spent = time_limit is not None and counts["seconds"] >= time_limit
        is_complete = counts["settled"] == counts["all"] or is_time_spent
        payload |= {
            "state": "complete" if is_complete else "asking",
            "round": progress.question_round.rules.round,
            "stamp": self.round_stamp(progress.question_round.rules.round),
            "rules": payloads.round_payload(progress.question_round),
            "counts": counts,
        }
        if self.live is not None:
            payload["live"] = payloads.learning_payload(self.live.summary(), blind=self.blind)
        if annotator and not is_complete:
            if self.live is None:
                questions = progress.next_questions(annotator, QUESTIONS_PER_STATE)
            else:
                first = self.live.first_questions()
                questions = progress.next_questions(annotator, LIVE_QUESTIONS_PER_STATE, first)
            payload["next"] = [self.question_payload(progress, one, annotator) for one in questions]
        return payload

    def question_payload(self, progress: RoundProgress, question: Question, annotator: str) -> dict[str, Any]:
        """Return one question as one annotator sees it."""
        return payloads.question_payload(
            progress,
            self.with_hints(question),
            annotator,
            blind=self.blind,
            accept_threshold=self.accept_threshold,
        )

    def with_hints(self, question: Question) -> Question:
        """Return a question with the guess of the model that learns, if there is one."""
        return question if self.live is None else self.live.with_hints(question)

    def undoable_acts(self, annotator: str) -> dict[str, Any]:
        """Return the acts that an annotator can undo, oldest first."""
        progress = self.open_round()
        acts = [] if progress is None else progress.recent_acts(annotator, MAX_UNDO_ACTS)
        return {"recent": [[{"id": one.id, "number": one.number} for one in act] for act in acts]}

    def store_answers(self, annotator: str, answers: list[Any]) -> dict[str, Any]:
        """Store answers; they are on disk when this returns."""
        if not annotator:
            raise InvalidRequest("`annotator` is empty; an answer needs the annotator's name")
        self.reset_if_restarted()
        # The store decides what is rejected, not the page.
        submitted = [
            {**one, "annotator": annotator, "reject_reason": None} if isinstance(one, dict) else one
            for one in answers
        ]
        self.store.receive(submitted, channel="page")
        if self.live is not None:
            self.live.notify()
        rejected = {}
        for one in submitted:
            if (
                isinstance(one, dict)
                and isinstance(one.get("external_id"), str)
                and isinstance(one.get("question"), str)
            ):
                # Look it up: this may be a repeated request whose first reply was lost.
                external_id = replace_surrogates(one["external_id"])
                answers_to_question = self.store.answers(replace_surrogates(one["question"]))
                reasons = (a.reject_reason for a in answers_to_question if a.external_id == external_id)
                rejected[external_id] = next(reasons, "malformed")
        return {
            "saved": len(submitted),
            "rejected": {external_id: reason for external_id, reason in rejected.items() if reason},
        }

    def guess_group(self, annotator: str, guess: str) -> dict[str, Any]:
        """Return open questions for which the model predicts the same class."""
        progress = None if self.blind else self.open_round()
        if progress is None:
            return {"guesses": [], "guess": "", "questions": [], "stamp": ""}
        groups = progress.open_by_guess(annotator, self.with_hints)
        guess = guess if guess in groups else next(iter(groups), "")
        likely_first = sorted(
            groups.get(guess, []),
            key=lambda one: (
                not payloads.is_acceptable(one, self.accept_threshold),
                0.0 if self.live is None else -(one.probability or 0.0),
            ),
        )
        return {
            "guesses": [[name, len(questions)] for name, questions in groups.items()],
            "guess": guess,
            "questions": [
                self.question_payload(progress, one, annotator) for one in likely_first[:MAX_GRID_TILES]
            ],
            "stamp": self.round_stamp(progress.question_round.rules.round),
        }

    def review_items(self, annotator: str) -> dict[str, Any]:
        """Return the answers worth a second look, the most suspicious first, and the rounds they belong to.

        Who has not answered an open question does not see the answers of others.
        """
        self.reset_if_restarted()
        items: list[dict[str, Any]] = []
        for one in list_for_review(RunFolder(self.run_folder), with_hints=self.with_hints):
            reasons, status = one.reasons(blind=self.blind), one.status
            is_own = annotator in {vote.annotator for vote in status.votes}
            if reasons and (one.is_closed or is_own or status.state == "settled"):
                progress = self.round_progress(one.round)
                question = progress.question_round.by_id[one.question.id]
                review = {"label": status.word, "reasons": reasons, "closed": one.is_closed}
                payload = self.question_payload(progress, question, annotator)
                items.append({**payload, "round": one.round, "together": [], "review": review})
            if len(items) == MAX_REVIEW_ITEMS:
                break
        rounds = {
            number: {
                "stamp": self.round_stamp(number),
                "rules": payloads.round_payload(self._reviewed_round(number)),
            }
            for number in {item["round"] for item in items}
        }
        return {"items": items, "rounds": rounds}

    def _reviewed_round(self, number: int) -> QuestionRound:
        """Return a round; a closed one has all classes of the run, also those that were added later."""
        question_round, run_folder = self.store.question_round(number), RunFolder(self.run_folder)
        if self.store.closed_round(number) is None or not run_folder.data_path.exists():
            return question_round
        return replace(
            question_round, rules=replace(question_round.rules, classes=run_folder.classes.current)
        )

    def store_review(self, annotator: str, round_number: int, question: str, word: str) -> dict[str, Any]:
        """Store what a reviewer decided: an answer to an open round, an amendment of a closed one."""
        if not annotator:
            raise InvalidRequest("`annotator` is empty; a review needs the annotator's name")
        self.reset_if_restarted()
        if round_number not in self.store.round_numbers():
            raise InvalidRequest("no such round")
        question_round = self._reviewed_round(round_number)
        kind, word = parse_word(replace_surrogates(word), question_round.rules.classes)
        if kind not in ("class", "void") or question not in question_round.by_id:
            raise InvalidRequest("a review needs a question of the round, and one of its classes or void")
        if self.store.closed_round(round_number) is not None:
            try:
                amender = LabelAmender(RunFolder(self.run_folder), annotator)
                result = amender.amend([NewLabel(question, word)], channel="page")
            except UserError as error:
                raise InvalidRequest(str(error)) from None
            changes = [f"{one.old} → {one.new}" for one in result.corrections if one.runs]
            return {"label": word, "message": f"Corrected: {changes[0]}." if changes else ""}
        answer = {"question": question, "word": word, "annotator": annotator}
        (stored,) = self.store.receive([answer], channel=REVIEW_CHANNEL)
        if stored.reject_reason is not None:  # the round was closed meanwhile
            raise InvalidRequest(f"the answer does not count ({stored.reject_reason})")
        if self.live is not None:
            self.live.notify()
        label, rule = self.store.status(question).word, question_round.rules_for(question).rule
        if label == word:
            return {"label": label, "message": ""}
        state = "people still differ" if label is None else f"the label is still {label}"
        return {"label": label, "message": f"Saved, but {state} (rule {rule})."}


async def _receive_review(request: Request, page: LabellingPage) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        annotator, number = body.get("annotator"), body["round"]
        question, word = body["question"], body["word"]
    except ClientDisconnect:
        raise InvalidRequest("the request is incomplete") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise InvalidRequest("the body must be JSON: {annotator, round, question, word}") from None
    if not (isinstance(number, int) and isinstance(question, str) and isinstance(word, str)):
        raise InvalidRequest("`round` must be a number, `question` and `word` must be texts")
    annotator = page.annotator_name(request, annotator)
    return await run_in_threadpool(page.store_review, annotator, number, question, word)


async def _receive_answers(request: Request, page: LabellingPage) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        annotator, answers = body.get("annotator"), body["answers"]
    except ClientDisconnect:
        raise InvalidRequest("the request is incomplete") from None
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise InvalidRequest(
            "the body must be JSON: {annotator, answers: [{question, word, seconds, external_id}]}"
        ) from None
    if not isinstance(answers, list) or len(answers) > MAX_ANSWERS_PER_REQUEST:
        raise InvalidRequest(f"`answers` must be a list of at most {MAX_ANSWERS_PER_REQUEST}")
    annotator = page.annotator_name(request, annotator)

    def act() -> dict[str, Any]:
        stored = page.store_answers(annotator, answers)
        if page.live is not None:  # the answers are on disk; the next question should know them
            page.live.wait_until_current(LIVE_WAIT_SECONDS)
        return {**stored, **page.page_state(annotator, request)}

    return await run_in_threadpool(act)


def make_app(
    page: LabellingPage,
    *,
    host: str,
    token: str = "",
    people: Mapping[str, str] = {},
    cookie: str = "ducats",
    single_use_token: str = "",
) -> RequestGuard:
    """Build the ASGI app, protected by ``RequestGuard``.

    Args:
        token: opens the page for everybody, unless there are ``people``.
        people: names by token.
    """

    def json_endpoint(
        build_payload: Callable[[Request, str], dict[str, Any]],
    ) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:  # not async, so Starlette runs it in a thread
            annotator = page.annotator_name(request, request.query_params.get("annotator", ""))
            return JSONResponse(build_payload(request, annotator))

        return endpoint

    def question_endpoint(request: Request, annotator: str) -> dict[str, Any]:
        return page.question_payload(*_requested_question(page, request), annotator)

    def image_endpoint(request: Request) -> Response:
        view: ImageView = request.path_params["view"]
        try:
            progress, question = _requested_question(page, request)
            annotator = page.annotator_name(request, request.query_params.get("annotator", ""))
            zoom = int(request.query_params.get("zoom", "0"))
            if view not in get_args(ImageView):
                raise InvalidRequest("no such view")
        except (InvalidRequest, ValueError):
            return PlainTextResponse("no such image\n", 404)
        has_together = "together" in request.query_params
        together = tuple(progress.same_segment(annotator, question)) if has_together else ()
        zoom = min(max(zoom, ZOOM_LEVELS[0]), ZOOM_LEVELS[-1])
        image = page.images.render(progress.question_round, question, view, zoom=zoom, together=together)
        if image is None:
            return PlainTextResponse("this image no longer exists\n", 404)
        cache_control = "no-store" if has_together else "private, max-age=86400, immutable"
        return Response(image[0], media_type=image[1], headers={"Cache-Control": cache_control})

    async def answers_endpoint(request: Request) -> Response:
        return JSONResponse(await _receive_answers(request, page))

    async def review_endpoint(request: Request) -> Response:
        return JSONResponse(await _receive_review(request, page))

    def static_endpoint(request: Request) -> Response:
        known = {path.name: path for path in STATIC_FOLDER.iterdir()}
        path = known.get(request.path_params.get("name", "index.html"))
        return PlainTextResponse("no such file\n", 404) if path is None else FileResponse(path)

    def error_response(_: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{error}\n", 400 if isinstance(error, InvalidRequest) else 500)

    routes = [
        Route("/", static_endpoint),
        Route("/static/{name}", static_endpoint),
        Route("/api/state", json_endpoint(lambda request, annotator: page.page_state(annotator, request))),
        Route("/api/recent", json_endpoint(lambda _, annotator: page.undoable_acts(annotator))),
        Route(
            "/api/grid",
            json_endpoint(
                lambda request, annotator: page.guess_group(annotator, request.query_params.get("guess", ""))
            ),
        ),
        Route("/api/question/{round:int}/{number:int}", json_endpoint(question_endpoint)),
        Route("/api/answers", answers_endpoint, methods=["POST"]),
        Route("/api/review", json_endpoint(lambda _, annotator: page.review_items(annotator))),
        Route("/api/review", review_endpoint, methods=["POST"]),
        Route("/image/{view}/{round:int}/{number:int}", image_endpoint),
    ]
    handlers = dict.fromkeys((InvalidRequest, UserError, OSError), error_response)
    app = Starlette(routes=routes, exception_handlers=handlers)
    return RequestGuard(app, people or {token: ""}, host, cookie, single_use_token)


def _requested_question(page: LabellingPage, request: Request) -> tuple[RoundProgress, Question]:
    """Return the requested question, given by round and number and never by path."""
    number, index = request.path_params["round"], request.path_params["number"] - 1
    if number not in page.store.round_numbers():
        raise InvalidRequest("no such round")
    progress = page.round_progress(number)
    if not 0 <= index < len(progress.question_round.questions):
        raise InvalidRequest("no such question")
    return progress, progress.question_round.questions[index]
