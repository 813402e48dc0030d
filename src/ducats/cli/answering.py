"""The command `ducats answers`. Imports no torch."""

import csv
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from ducats.answers import Answer, Desk, summary
from ducats.cli.base import app, console
from ducats.errors import UserError

SHOWN = 20  # disputes to print


@app.command
def answers(run: Path, *, as_csv: Annotated[bool, Parameter(name="--csv", negative=())] = False) -> int:
    """Summarise the annotators' answers: progress of each round, activity per annotator, disagreements.

    Args:
        run: Run folder.
        as_csv: Print all received answers as CSV instead, including rejected ones.
    """
    desk = Desk(run / "questions")
    if not desk.rounds() and any(desk.folder.glob("round-*/masks")):
        raise UserError(
            f"the questions in {desk.folder} are answered by label PNGs only, so there are no answers to "
            f"list; use `ducats labels {run}` to print the labels"
        )
    if not desk.rounds():
        raise UserError(
            f"{run} has no questions for annotators; give the folder of a run with the oracle 'people'"
        )
    if as_csv:
        _print_book(desk)
        return 0
    _print_rounds(desk)
    _print_persons(desk)
    _print_disputes(desk)
    return 0


def _print_book(desk: Desk) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([field.name for field in fields(Answer)])
    for answer in desk.answers():
        writer.writerow(["" if value is None else value for value in asdict(answer).values()])


def _print_rounds(desk: Desk) -> None:
    table = Table("round", "questions", "settled", "void", "PNG", "open", "disputed", "rejected", "closed")
    for one in summary.rounds(desk):
        numbers = (one.round, one.asked, one.settled, one.void, one.elsewhere, one.open, one.disputed)
        taken = {"": "not yet", "settled": "yes", "seconds": "yes, time used up"}[one.taken]
        table.add_row(*map(str, numbers), _counts(one.refused), taken)
    console.print(table)
    if stray := summary.unplaced(desk):
        console.print(f"answers that match no question of this run: {_counts(stray)}", soft_wrap=True)
    for one in summary.rounds(desk):
        if one.new:
            names = escape(", ".join(f"{word} ({count})" for word, count in sorted(one.new.items())))
            console.print(f"round {one.round}: unknown class names, stored as void: {names}", soft_wrap=True)


def _print_persons(desk: Desk) -> None:
    table = Table("annotator", "answers", "void", "unsure", "median seconds", "minutes", "agree with label")
    for one in summary.persons(desk):
        agree = f"{one.agreed} of {one.compared}" if one.compared else "–"
        seconds = "–" if one.median_seconds is None else f"{one.median_seconds:.1f}"
        minutes = "–" if one.median_seconds is None else f"{one.seconds / 60:.1f}"
        said = map(str, (one.answers, one.void, one.unsure))
        table.add_row(escape(one.who or "(unknown)"), *said, seconds, minutes, agree)
    console.print(table if table.rows else "no answers yet")


def _print_disputes(desk: Desk) -> None:
    found = summary.disputes(desk)
    if not found:
        return
    console.print(f"{len(found)} question{'' if len(found) == 1 else 's'} with conflicting answers:")
    for one in found[:SHOWN]:
        said = ", ".join(f"{vote.who or '(unknown)'}: {vote.word}" for vote in one.votes)
        none = "labelled by PNG" if one.elsewhere else "no label yet"
        label = none if one.accepted is None else f"label {one.accepted}"
        console.print(
            f"  round {one.round}, {one.question.id} ({said}), {label}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if len(found) > SHOWN:
        console.print(f"  and {len(found) - SHOWN} more; use --csv to list all")


def _counts(counts: Mapping[str, int]) -> str:
    """Format counts by reason, or a dash if there are none.

    >>> _counts({"late": 2, "foreign": 1}), _counts({})
    ('2 late, 1 foreign', '–')
    """
    return escape(", ".join(f"{count} {reason}" for reason, count in counts.items())) or "–"
