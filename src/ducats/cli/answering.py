"""The command about people's answers: what came in. No torch."""

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

SHOWN = 20  # disputes


@app.command
def answers(run: Path, *, as_csv: Annotated[bool, Parameter(name="--csv", negative=())] = False) -> int:
    """Say what people answered: how far each round is, who did what, where they differ.

    Args:
        run: The run's folder.
        as_csv: Print every answer that was received instead, those that do not count, too.
    """
    desk = Desk(run / "questions")
    if not desk.rounds() and any(desk.folder.glob("round-*/masks")):
        raise UserError(
            f"the questions in {desk.folder} are answered by label PNGs alone, and those are no answers in "
            f"words: `ducats labels {run}` prints what was bought"
        )
    if not desk.rounds():
        raise UserError(
            f"{run} has no questions to people: give the folder of a run that waits for answers, or did"
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
    table = Table("round", "asked", "settled", "void", "PNG", "open", "disputed", "refused", "taken")
    for one in summary.rounds(desk):
        numbers = (one.round, one.asked, one.settled, one.void, one.elsewhere, one.open, one.disputed)
        taken = {"": "not yet", "settled": "yes", "seconds": "yes, time was spent"}[one.taken]
        table.add_row(*map(str, numbers), _counts(one.refused), taken)
    console.print(table)
    if stray := summary.unplaced(desk):
        console.print(f"answers to no question of this run: {_counts(stray)}", soft_wrap=True)
    for one in summary.rounds(desk):
        if one.new:
            names = escape(", ".join(f"{word} ({count})" for word, count in sorted(one.new.items())))
            console.print(
                f"round {one.round}: names that are no class, kept as void: {names}", soft_wrap=True
            )


def _print_persons(desk: Desk) -> None:
    table = Table("who", "answers", "void", "unsure", "median seconds", "minutes", "agree with the label")
    for one in summary.persons(desk):
        agree = f"{one.agreed} of {one.compared}" if one.compared else "–"
        seconds = "–" if one.median_seconds is None else f"{one.median_seconds:.1f}"
        minutes = "–" if one.median_seconds is None else f"{one.seconds / 60:.1f}"
        said = map(str, (one.answers, one.void, one.unsure))
        table.add_row(escape(one.who or "nobody said who"), *said, seconds, minutes, agree)
    console.print(table if table.rows else "nobody answered yet")


def _print_disputes(desk: Desk) -> None:
    found = summary.disputes(desk)
    if not found:
        return
    console.print(f"{len(found)} question{'' if len(found) == 1 else 's'} with different answers:")
    for one in found[:SHOWN]:
        said = ", ".join(f"{vote.who or 'somebody'}: {vote.word}" for vote in one.votes)
        none = "label by PNG" if one.elsewhere else "no label yet"
        label = none if one.accepted is None else f"label {one.accepted}"
        console.print(
            f"  round {one.round}, {one.question.id} ({said}), {label}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if len(found) > SHOWN:
        console.print(f"  and {len(found) - SHOWN} more: see --csv")


def _counts(counts: Mapping[str, int]) -> str:
    """What there is, and how often; a dash if nothing is.

    >>> _counts({"late": 2, "foreign": 1}), _counts({})
    ('2 late, 1 foreign', '–')
    """
    return escape(", ".join(f"{count} {reason}" for reason, count in counts.items())) or "–"
