"""The command `ducats answers`. Imports no torch."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from ducats.annotation import AnnotationStore, Answer, summary
from ducats.cli.base import app, console, print_csv, print_line
from ducats.runfolder.question_names import MASKS
from ducats.runfolder.rounds import rounds_in
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

MAX_DISPUTES_SHOWN = 20


@app.command
def answers(run: Path, *, as_csv: Annotated[bool, Parameter(name="--csv", negative=())] = False) -> int:
    """Summarise the annotators' answers: progress of each round, activity per annotator, disagreements.

    Args:
        run: Run folder.
        as_csv: Print all received answers as CSV instead, including rejected ones.
    """
    from ducats.runfolder.run_folder import RunFolder

    run_folder = RunFolder(run)
    run_folder.check_format()
    store = AnnotationStore(run_folder.questions_path)
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
        _print_answers(store)
        return 0
    _print_rounds(store)
    _print_annotators(store)
    _print_disputes(store)
    return 0


def _print_answers(store: AnnotationStore) -> None:
    rows = (["" if value is None else value for value in asdict(one).values()] for one in store.answers())
    print_csv(chain([[field.name for field in fields(Answer)]], rows))


def _print_rounds(store: AnnotationStore) -> None:
    titles = ("round", "questions", "settled", "void", "PNG", "open", "disputed", "rejected", "closed")
    table = Table(*titles, box=SIMPLE, pad_edge=False)  # without lines, the titles fit into 80 columns
    for tally in summary.summarise_rounds(store):
        numbers = (tally.round, tally.questions, tally.settled, tally.void, tally.answered_by_png)
        closed = {"": "not yet", "settled": "yes", "time_limit": "yes, time used up"}[tally.closed_reason]
        counts = map(str, (*numbers, tally.open, tally.disputed))
        table.add_row(*counts, escape(_counts(tally.rejected)), closed)
    console.print(table)
    if stray := summary.count_unassigned(store):
        print_line(f"answers that match no question of this run: {_counts(stray)}")
    for tally in summary.summarise_rounds(store):
        if tally.new_classes:
            names = ", ".join(f"{word} ({count})" for word, count in sorted(tally.new_classes.items()))
            print_line(f"round {tally.round}: unknown class names, stored as void: {names}")


def _print_annotators(store: AnnotationStore) -> None:
    table = Table("annotator", "answers", "void", "unsure", "median seconds", "minutes", "agree with label")
    for annotator in summary.summarise_annotators(store):
        agree = f"{annotator.agreed} of {annotator.compared}" if annotator.compared else "–"
        seconds = "–" if annotator.median_seconds is None else f"{annotator.median_seconds:.1f}"
        minutes = "–" if annotator.median_seconds is None else f"{annotator.seconds / 60:.1f}"
        counts = map(str, (annotator.answers, annotator.void, annotator.unsure))
        table.add_row(escape(annotator.annotator or "(unknown)"), *counts, seconds, minutes, agree)
    console.print(table if table.rows else "no answers yet")


def _print_disputes(store: AnnotationStore) -> None:
    found = summary.list_disputes(store)
    if not found:
        return
    print_line(f"{pluralise(len(found), 'question')} with conflicting answers:")
    for dispute in found[:MAX_DISPUTES_SHOWN]:
        votes_text = ", ".join(f"{vote.annotator or '(unknown)'}: {vote.word}" for vote in dispute.votes)
        no_label = "labelled by PNG" if dispute.answered_by_png else "no label yet"
        label = no_label if dispute.label is None else f"label {dispute.label}"
        print_line(f"  round {dispute.round}, {dispute.question.id} ({votes_text}), {label}")
    if len(found) > MAX_DISPUTES_SHOWN:
        print_line(f"  and {len(found) - MAX_DISPUTES_SHOWN} more; use --csv to list all")


def _counts(counts: Mapping[str, int]) -> str:
    """Format counts by reason, or a dash if there are none.

    >>> _counts({"late": 2, "malformed": 1}), _counts({})
    ('2 late, 1 malformed', '–')
    """
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "–"
