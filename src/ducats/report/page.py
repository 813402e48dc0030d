"""The HTML page of a report: one self-contained file, in light or dark mode."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ducats.files import write_text_atomically
from ducats.report import provenance
from ducats.report.allowance import GALLERY, LIMIT, inlined, inlined_size, shown_of_each, weight
from ducats.report.chapter import FULL, chapter, chosen
from ducats.report.chapter.alike import ALIKE, NEAR
from ducats.report.chapter.pictured import width
from ducats.report.classes import percent
from ducats.report.comparison import comparison
from ducats.report.contents import contents
from ducats.report.overview import overview
from ducats.report.read import Broken, Run
from ducats.report.tables import by_kind, methods
from ducats.report.tasks import arrow, columns_of, place_of
from ducats.report.words import Headline

TITLE = "ducats report"


def write_page(runs: Sequence[Run], out: Path, title: str = TITLE, broken: Sequence[Broken] = ()) -> Path:
    """Write the page about the runs to ``out`` and return its path. The output is deterministic.

    The folders in ``broken``, which could not be read, are listed with the reason.
    """
    environment = Environment(
        loader=PackageLoader("ducats.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"arrow": arrow, "tiny": tiny, "width": width}
    parts, spent = _parts(runs, broken)
    rounds = [round for part in parts for one in part["chapters"] for round in one.why.rounds]
    galleries = [[pick.picture for pick in round.picks] for round in rounds]
    pairs = [pick.picture for round in rounds for first, second, _ in round.pairs for pick in (first, second)]
    text = environment.get_template("page.html").render(
        title=title,
        parts=parts,
        broken=broken,
        percent=percent,
        inlined=inlined,
        shown=shown_of_each(galleries, LIMIT - spent - inlined_size(pairs)),
        most=GALLERY[0],
        alike=ALIKE,
        near=NEAR,
    )
    write_text_atomically(out, text)
    return out


def tiny(value: float) -> str:
    """Format an uncertainty compactly, with two or three significant digits.

    >>> tiny(0.25), tiny(3), tiny(0.00001234)
    ('0.250', '3.00', '1.2e-05')
    """
    return f"{value:#.3g}" if value >= 0.001 else f"{value:.1e}"


def _parts(runs: Sequence[Run], broken: Sequence[Broken]) -> tuple[list[dict[str, Any]], int]:
    """Return the template context of each kind of run, and the bytes that all figures take."""
    parts = [_about(group, broken) for group in by_kind(runs)]
    if len(parts) > 1 and not any(part["compared"] and part["compared"]["several"] for part in parts):
        parts[0]["cautions"].insert(0, provenance.cautions(runs)[0])  # the warning about several kinds
    spent = sum(map(weight, parts))
    for part in parts:
        spent = _add_chapters(part, spent)
        part["contents"] = contents(part)
    return parts, spent


def _about(runs: Sequence[Run], broken: Sequence[Broken]) -> dict[str, Any]:
    """Return the template context of runs of one kind."""
    compared = comparison(runs, broken, key=runs[0].kind.prefix) if len(runs) > 1 else None
    if not compared or not compared["several"]:
        return overview(runs) | {"compared": compared}
    first = {"headline": Headline(compared["headline"]), "looks": compared["looks"]}
    return overview(runs, mixed=True) | {"compared": compared} | first


def _add_chapters(part: dict[str, Any], spent: int) -> int:
    """Add run sections while they fit the size limit; the first is always added. Return the bytes used."""
    every: Sequence[Run] = part["every"]
    wanted, columns = chosen(every), columns_of(every)
    for place, run in enumerate(wanted, start=1):
        short = place > 1 and len(every) > FULL
        key, task = f"{part['key']}run-{place}-", place_of(run, columns)
        made = chapter(run, every, key, part["looks"], task=task, short=short)
        heavy = weight(made.figures)
        if part["chapters"] and spent + heavy > LIMIT:
            break
        part["chapters"].append(made)
        spent += heavy
    part["without_chapter"] = len(every) - len(part["chapters"])
    part["more_methods"] = len(part["chapters"]) < len(methods(every))
    if part["alone"]:
        part["headline"] = Headline(part["chapters"][0].worth.sentence, part["chapters"][0].worth.remarks)
    return spent
