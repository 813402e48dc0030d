"""The command `ducats answers`. Imports no torch."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from ducats.annotation import VOID_WORD, AnnotationStore, Answer, QuestionRound, summary
from ducats.annotation.answer import AnswerKind
from ducats.annotation.csv_answers import check_csv_answers
from ducats.cli.base import app, console, login_name, print_csv, print_line, print_warning
from ducats.runfolder.question_names import ANSWER_TABLES, MASKS
from ducats.runfolder.rounds import rounds_in
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

if TYPE_CHECKING:
    from ducats.runfolder.amendments import Correction
    from ducats.runfolder.run_folder import RunFolder

MAX_QUESTIONS_SHOWN = 20
CLOSED_TEXTS = {  # by reason
    "": "not yet",
    "settled": "yes",
    "time_limit": "yes, time used up",
    "stopped": "yes, session ended",
}


@app.command
def answers(
    run: Path,
    *,
    as_csv: Annotated[bool, Parameter(name="--csv", negative=())] = False,
    amend: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    annotator: str | None = None,
    suspicious: float | None = None,
    review: Annotated[bool, Parameter(negative=())] = False,
    check: Annotated[list[Path] | None, Parameter(negative=(), consume_multiple=True)] = None,
) -> int:
    """Summarise the annotators' answers: progress of each round, activity per annotator, disagreements.

    Args:
        run: Run folder.
        as_csv: Print all received answers as CSV instead, including rejected ones.
        amend: Correct labels that the run has taken: KEY CLASS for one, KEY FILE.png for the pixels of an
            image, FILE.csv for several (columns as in answers.csv). The next round trains on them.
        annotator: With --amend: name of the person who corrects; default: the login name.
        suspicious: List only the answers that contradict a prediction with at least this probability; the
            summary lists those above 0.8.
        review: List the answers worth a second look, the most suspicious first, with the reasons: the model
            was sure of another class, people differ, or those who answered are often wrong.
        check: Print all mistakes in CSV files of answers to the open round, with their lines; exit code 1 if
            there are any. The files are not imported.
    """
    from ducats.runfolder.run_folder import RunFolder

    run_folder = RunFolder(run)
    run_folder.check_format()
    store = AnnotationStore(run_folder.questions_path)
    if amend is not None:
        return _amend(run_folder, amend, login_name() if annotator is None else annotator)
    if check is not None:
        return _check(store, check)
    if not store.round_numbers() and run_folder.load_amendments(with_merges=False):
        _print_amendments(run_folder)
        return 0
    if not store.round_numbers() and rounds_in(store.folder, f"*/{MASKS}"):
        raise UserError(
            f"the questions in {store.folder} are answered by label PNGs only, so there are no answers to "
            f"list; use `ducats labels {shlex.quote(str(run))}` to print the labels"
        )
    if not store.round_numbers():
        raise UserError(
            f"{run} has no questions for annotators; give the folder of a run with the oracle 'human'"
        )
    if as_csv:
        _print_answers([*store.answers(), *_amended_answers(run_folder)])
        return 0
    if suspicious is not None:
        _print_suspicious(run_folder, suspicious)
        return 0
    if review:
        _print_review(run_folder)
        return 0
    _print_rounds(store)
    _print_annotators(store)
    _print_disputes(store)
    _print_suspicious(run_folder)
    _print_amendments(run_folder)
    return 0


def _check(store: AnnotationStore, paths: Sequence[Path]) -> int:
    """Print all mistakes in CSV files; return the exit code."""
    question_round = store.open_round()
    if question_round is None:
        raise UserError(f"{store.folder.parent} has no open round whose answers could be checked")
    if not paths:
        raise UserError("--check needs a CSV file, e.g. answers.csv")
    return 1 if _print_problems(store, question_round, paths) else 0


def _print_problems(store: AnnotationStore, question_round: QuestionRound, paths: Iterable[Path]) -> int:
    """Print all mistakes in CSV files; return their number."""
    n_problems = 0
    for path in paths:
        found = check_csv_answers(path, store, question_round.rules.round)
        for problem in found.problems:
            print_line(problem, "red")
        n_problems += len(found.problems)
        mistakes = pluralise(len(found.problems), "mistake") if found.problems else "no mistakes"
        answered = f"{found.answered} of {found.questions} questions of round {question_round.rules.round}"
        print_line(f"{path}: {mistakes}, {answered} answered")
    return n_problems


def _amend(run_folder: "RunFolder", arguments: Sequence[str], annotator: str) -> int:
    """Correct labels and print what changed."""
    from ducats.annotation.amend import LabelAmender, read_new_labels
    from ducats.annotation.amend import NewLabel as New

    amender = LabelAmender(run_folder, annotator)
    match [*arguments]:
        case [table] if Path(table).suffix.lower() == ".csv":
            per_pixel = run_folder.load_pool().sizes is not None
            result = amender.amend(
                read_new_labels(Path(table), per_pixel=per_pixel), channel=Path(table).name
            )
        case [key, value] if Path(value).suffix.lower() == ".png" and Path(value).exists():
            result = amender.amend_by_png(key, Path(value))
        case [key, word]:
            result = amender.amend([New(key, word)])
        case _:
            raise UserError(
                "--amend needs KEY CLASS, KEY FILE.png, or FILE.csv with the columns key and label"
            )
    for one in result.corrections:
        print_line(_describe_correction(one))
    if result.unchanged:
        verb = "has" if len(result.unchanged) == 1 else "have"
        print_line(f"{pluralise(len(result.unchanged), 'question')} already {verb} that label, as amended")
    if any(one.runs for one in result.corrections):
        print_line(_consequence(run_folder))
    return 0


def _print_suspicious(run_folder: "RunFolder", min_probability: float | None = None) -> None:
    """List suspicious answers: above a probability all of them, else the first above the default."""
    from ducats.annotation.suspicious import CONFIDENT, suspicious_answers

    threshold = CONFIDENT if min_probability is None else min_probability
    if not 0 <= threshold <= 1:
        raise UserError(f"--suspicious must be a probability from 0 to 1, not {threshold:g}")
    found = suspicious_answers(run_folder, threshold, on_corrupt_snapshot=print_warning)
    if not found and min_probability is None:
        return
    number = pluralise(len(found), "suspicious answer")
    print_line(f"{number}: the model was at least {100 * threshold:.0f} % sure of another class")
    shown = found if min_probability is not None else found[:MAX_QUESTIONS_SHOWN]
    for one in shown:
        print_line(f"  round {one.round}, {one.question.id}: {one.label}, but {one.description}")
    folder = shlex.quote(str(run_folder.path))
    if len(found) > len(shown):
        n_more = len(found) - len(shown)
        print_line(f"  and {n_more} more; list all with `ducats answers {folder} --suspicious 0.8`")
    if found:
        print_line(f"  to correct or to confirm a label: `ducats answers {folder} --amend KEY CLASS`")


def _print_review(run_folder: "RunFolder") -> None:
    """List the answers worth a second look, and how to correct or confirm them."""
    from ducats.annotation.review import list_for_review

    found = list_for_review(run_folder, on_corrupt_snapshot=print_warning)
    number = pluralise(len(found), "answer") if found else "no answers"
    print_line(f"{number} worth a second look{', the most suspicious first' if len(found) > 1 else ''}")
    for one in found:
        state = "" if one.is_closed else " (open)"
        label = "no label yet" if one.status.word is None else one.status.word
        print_line(f"  round {one.round}{state}, {one.question.id}: {label}; {'; '.join(one.reasons())}")
    folder = shlex.quote(str(run_folder.path))
    if any(one.is_closed for one in found):
        print_line(f"  to correct or to confirm a label: `ducats answers {folder} --amend KEY CLASS`")
    if found:
        print_line(f"  to see the images and answer in the browser: `ducats label {folder}`, then press r")


def _describe_correction(correction: "Correction") -> str:
    if not correction.runs:
        return f"round {correction.round}, {correction.question}: {correction.new} confirmed"
    pixels = f" ({pluralise(correction.n_labels, 'pixel')})" if correction.n_labels > 1 else ""
    return f"round {correction.round}, {correction.question}: {correction.old} → {correction.new}{pixels}"


def _consequence(run_folder: "RunFolder") -> str:
    """Return what a correction changes, depending on how far the run is."""
    from ducats.report.watch.reader import RunWatcher

    state = RunWatcher().read_state(run_folder.path)
    readers = "reports, `ducats labels` and `ducats picks` use the corrected labels"
    if state.phase == "finished":
        return f"the run is finished and its model is not trained again; {readers}"
    if state.n_rounds is not None and state.n_labelled_rounds >= state.n_rounds:
        return f"the run has taken its last round, so it does not train on the correction; {readers}"
    return f"the run trains on it after round {state.n_labelled_rounds + 1}; {readers} from now on"


def _print_amendments(run_folder: "RunFolder") -> None:
    amendments = run_folder.load_amendments(with_merges=False)
    runs = [one.runs for amendment in amendments for one in amendment.corrections]
    if not runs:
        return
    n_corrected = sum(map(bool, runs))
    confirmed = f", {len(runs) - n_corrected} confirmed" if len(runs) > n_corrected else ""
    print_line(f"{pluralise(n_corrected, 'correction')}{confirmed}:")
    for amendment in amendments:
        source = f", from {amendment.channel}" if amendment.channel else ""
        for correction in amendment.corrections:
            by = summary.annotator_name(amendment.annotator)
            print_line(f"  {_describe_correction(correction)}, by {by}, {amendment.made_at}{source}")


def _amended_answers(run_folder: "RunFolder") -> Iterator[Answer]:
    """Return the corrections as answers."""
    for amendment in run_folder.load_amendments(with_merges=False):
        for one in amendment.corrections:
            kind: AnswerKind = "void" if one.new == VOID_WORD else "class"
            yield Answer(
                *(one.question, one.new, kind, amendment.annotator, amendment.made_at),
                channel=f"amend {amendment.channel}".strip(),
                round=one.round,
            )


def _print_answers(answers: Iterable[Answer]) -> None:
    rows = (["" if value is None else value for value in asdict(one).values()] for one in answers)
    print_csv(chain([[field.name for field in fields(Answer)]], rows))


def _print_rounds(store: AnnotationStore) -> None:
    titles = ("round", "questions", "settled", "void", "PNG", "open", "disputed", "rejected", "closed")
    table = Table(*titles, box=SIMPLE, pad_edge=False)  # without lines, the titles fit into 80 columns
    for tally in summary.summarise_rounds(store):
        numbers = (tally.round, tally.questions, tally.settled, tally.void, tally.answered_by_png)
        closed = CLOSED_TEXTS[tally.closed_reason]
        counts = map(str, (*numbers, tally.open, tally.disputed))
        table.add_row(*counts, escape(_counts(tally.rejected)), closed)
    console.print(table)
    if stray := summary.count_unassigned(store):
        print_line(f"answers that match no question of this run: {_counts(stray)}")
    if any(tally.rejected.get("late") for tally in summary.summarise_rounds(store)):
        folder = shlex.quote(str(store.folder.parent))
        print_line(
            f"late answers change nothing; to correct a label: `ducats answers {folder} --amend KEY CLASS`"
        )
    if (question_round := store.open_round()) is not None:
        _print_problems(store, question_round, sorted(question_round.folder.glob(ANSWER_TABLES)))
    for tally in summary.summarise_rounds(store):
        if tally.new_classes:
            names = ", ".join(f"{word} ({count})" for word, count in sorted(tally.new_classes.items()))
            print_line(f"round {tally.round}: unknown class names, stored as void: {names}")


def _print_annotators(store: AnnotationStore) -> None:
    from ducats.report.annotators import annotator_table, describe_annotation
    from ducats.report.table import to_terminal

    annotators, channels = summary.summarise_annotators(store), summary.summarise_channels(store)
    if annotators:
        quality = summary.annotator_quality(store)
        console.print(to_terminal(annotator_table(annotators)))
        if quality.agreement is not None:
            errors = ", ".join(f"{name} {rate}" for name, rate in quality.errors.items())
            print_line(f"{quality.agreement}; estimated share of wrong answers to these: {errors}")
    print_line(describe_annotation(annotators, channels) or "no answers yet")


def _print_disputes(store: AnnotationStore) -> None:
    found = summary.list_disputes(store)
    if not found:
        return
    print_line(f"{pluralise(len(found), 'question')} with conflicting answers:")
    for dispute in found[:MAX_QUESTIONS_SHOWN]:
        votes_text = ", ".join(
            f"{summary.annotator_name(vote.annotator)}: {vote.word}" for vote in dispute.votes
        )
        no_label = "labelled by PNG" if dispute.answered_by_png else "no label yet"
        label = no_label if dispute.label is None else f"label {dispute.label}"
        print_line(f"  round {dispute.round}, {dispute.question.id} ({votes_text}), {label}")
    if len(found) > MAX_QUESTIONS_SHOWN:
        print_line(f"  and {len(found) - MAX_QUESTIONS_SHOWN} more; use --csv to list all")


def _counts(counts: Mapping[str, int]) -> str:
    """Format counts by reason, or a dash if there are none.

    >>> _counts({"late": 2, "malformed": 1}), _counts({})
    ('2 late, 1 malformed', '–')
    """
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "–"
