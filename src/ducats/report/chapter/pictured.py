"""The figures of `ducats figure` as a page shows them: each with a name and what it is good for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ducats import figures
from ducats.errors import UserError
from ducats.report.kinds import IMAGES
from ducats.report.read import Run

POINTS = 600  # of t-SNE, so that a page is made in seconds


@dataclass(frozen=True)
class Drawn:
    """A figure on the page.

    Args:
        name: what `ducats figure` calls it.
        title: above it.
        about: what to look for.
        svg: itself; empty if it cannot be drawn.
        missing: why not, in a sentence.
    """

    name: str
    title: str
    about: str
    svg: str = ""
    missing: str = ""


def width(svg: str) -> float:
    """Of a figure in points, as it was drawn: so wide its letters have the right size."""
    found = re.search(r'viewBox="0 0 ([0-9.]+) ', svg)
    return float(found.group(1)) if found else 0.0


UNCERTAINTIES = Drawn(
    "uncertainties",
    "Two kinds of doubt",
    "A point is a sample that had no label yet. U_dis says how foreign it is to the model, U_data how "
    "ambiguous it looks.",
)
TWO_ROUNDS = (
    " DUC keeps the most foreign ones (beyond the dashed line) and asks for the most ambiguous of these."
)
HISTOGRAM = Drawn(
    "histogram",
    "Which classes were bought",
    "Labels of each class, round by round, beside what the model takes the pool for: are rare classes asked "
    "for?",
)
FEATURES = Drawn(
    "features",
    "Where the picks lie",
    "Each sample where the model puts it, flattened to two dimensions. Picks in one heap repeat each other.",
)
PIXELS = Drawn(
    "pixels",
    "Which pixels were bought",
    "Picked pixels over some images of the pool, round by round.",
)
PAPER = (
    Drawn(
        "entropies",
        "One number of doubt is not enough",
        "Entropy of the prediction against expected entropy, sample by sample: where points lie off "
        "the diagonal, the model is unsure because it has not seen the like, and not because the sample is "
        "ambiguous.",
    ),
    Drawn(
        "simplex",
        "What the model believes of three samples",
        "A corner is a class; where it is bright the model expects the class probabilities to be. A sharp "
        "spot: it is sure of them. A wide glow: it does not know.",
    ),
    Drawn(
        "u_dis",
        "How foreign the target is",
        "How U_dis is spread over source and target, before the first labels and at the end. The closer both "
        "lie, the better the model is at home in the target.",
    ),
    Drawn(
        "tsne",
        "Source and target in one map",
        "t-SNE puts samples that the model sees alike close to each other. Distances between heaps mean "
        "little.",
    ),
)
ACROSS = (
    Drawn("budget", "What a larger budget buys", "The score over labels bought, of runs with other budgets."),
    Drawn("kappa", "How many pass the first round", "The score over kappa."),
    Drawn("beta_lambda", "How much the two uncertainties weigh", "The score over beta and lambda."),
)


def of_rounds(run: Run, key: str) -> tuple[Drawn, ...]:
    """What shows why a run picked what it picked."""
    query = run.config.get("query")
    name = query.get("name") if isinstance(query, Mapping) else run.method
    more = TWO_ROUNDS if name == "duc" and run.kind == IMAGES else ""
    doubts = replace(UNCERTAINTIES, about=UNCERTAINTIES.about + more)
    wanted = (doubts, HISTOGRAM, FEATURES) if run.kind == IMAGES else (PIXELS, doubts, HISTOGRAM)
    return _drawn(wanted, [run], key)


def of_the_paper(run: Run, key: str) -> tuple[Drawn, ...]:
    """The paper's figures about one run."""
    return _drawn(PAPER, [run], key)


def of_all(runs: Sequence[Run], key: str) -> tuple[Drawn, ...]:
    """The paper's figures about several runs, as far as these runs differ in what they show."""
    return tuple(one for one in _drawn(ACROSS, runs, key) if one.svg)


def _drawn(wanted: Sequence[Drawn], runs: Sequence[Run], key: str) -> tuple[Drawn, ...]:
    found: list[Drawn] = []
    for one in wanted:
        try:
            svg = figures.draw(one.name, runs, prefix=key, points=POINTS)
        except UserError as error:
            missing = _plain(error, runs)
            # Where there are no snapshots, one sentence says so for all figures.
            if missing not in [other.missing for other in found]:
                found.append(replace(one, missing=missing))
        else:
            found.append(replace(one, svg=svg))
    return tuple(found)


def _plain(error: UserError, runs: Sequence[Run]) -> str:
    text = str(error)
    for run in runs:
        text = text.replace(str(run.folder), run.name)
    return f"Not drawn: {text}."
