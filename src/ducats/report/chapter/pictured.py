"""Figures of `ducats figure` on the page, each with a title and a caption."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ducats import figures
from ducats.errors import UserError
from ducats.report.kinds import IMAGES
from ducats.report.read import Run

POINTS = 600  # t-SNE points, few enough to write a page in seconds


@dataclass(frozen=True)
class Drawn:
    """A figure on the page.

    Args:
        name: its name in `ducats figure`.
        about: caption.
        svg: SVG text; empty if it cannot be drawn.
        missing: the reason why it cannot be drawn, as a sentence.
    """

    name: str
    title: str
    about: str
    svg: str = ""
    missing: str = ""


def width(svg: str) -> float:
    """Return the width of a figure in points, at which its text has the intended size."""
    found = re.search(r'viewBox="0 0 ([0-9.]+) ', svg)
    return float(found.group(1)) if found else 0.0


UNCERTAINTIES = Drawn(
    "uncertainties",
    "Two uncertainties",
    "Each point is a sample without a label. U_dis is high for samples unlike the training images, U_data "
    "for samples between classes.",
)
TWO_ROUNDS = (
    " DUC keeps the samples with the highest U_dis (beyond the dashed line), then selects those with the "
    "highest U_data."
)
HISTOGRAM = Drawn(
    "histogram",
    "Selected classes",
    "Labels of each class, round by round, next to the model's predictions for the pool. They show whether "
    "rare classes are selected.",
)
FEATURES = Drawn(
    "features",
    "Selected samples in feature space",
    "Features of each sample, projected to two dimensions. Selected samples in one cluster are redundant.",
)
PIXELS = Drawn(
    "pixels",
    "Selected pixels",
    "Selected pixels on some images of the pool, round by round.",
)
PAPER = (
    Drawn(
        "entropies",
        "Entropy and expected entropy",
        "Entropy of the prediction against expected entropy of each sample. Off the diagonal, the model is "
        "uncertain because the sample is unlike the training images, not because it is between classes.",
    ),
    Drawn(
        "simplex",
        "Predicted Dirichlet distributions of three samples",
        "Each corner is a class. Bright regions are the class probabilities that the model considers likely. "
        "A small spot means low uncertainty about them, a wide region high uncertainty.",
    ),
    Drawn(
        "u_dis",
        "U_dis of source and target",
        "Distribution of U_dis over source and target, before the first labels and at the end. The closer "
        "the two are, the better the model has adapted to the target.",
    ),
    Drawn(
        "tsne",
        "t-SNE of source and target",
        "t-SNE places samples with similar features close to each other. Distances between clusters mean "
        "little.",
    ),
)
ACROSS = (
    Drawn("budget", "Score and budget", "Score over the number of labels, from runs with different budgets."),
    Drawn("kappa", "Score and kappa", "Score over kappa: the query keeps kappa times the budget first."),
    Drawn("beta_lambda", "Score and loss weights", "Score over beta and lambda, the weights of the losses."),
)


def of_rounds(run: Run, key: str) -> tuple[Drawn, ...]:
    """Return the figures about the samples that a run selected."""
    query = run.config.get("query")
    name = query.get("name") if isinstance(query, Mapping) else run.method
    more = TWO_ROUNDS if name == "duc" and run.kind == IMAGES else ""
    doubts = replace(UNCERTAINTIES, about=UNCERTAINTIES.about + more)
    wanted = (doubts, HISTOGRAM, FEATURES) if run.kind == IMAGES else (PIXELS, doubts, HISTOGRAM)
    return _drawn(wanted, [run], key)


def of_the_paper(run: Run, key: str) -> tuple[Drawn, ...]:
    """Return the paper's figures about one run."""
    return _drawn(PAPER, [run], key)


def of_all(runs: Sequence[Run], key: str) -> tuple[Drawn, ...]:
    """Return the paper's figures about several runs, without those that cannot be drawn."""
    return tuple(one for one in _drawn(ACROSS, runs, key) if one.svg)


def _drawn(wanted: Sequence[Drawn], runs: Sequence[Run], key: str) -> tuple[Drawn, ...]:
    found: list[Drawn] = []
    for one in wanted:
        try:
            svg = figures.draw(one.name, runs, prefix=key, points=POINTS)
        except UserError as error:
            missing = _plain(error, runs)
            # The same reason, e.g. missing snapshots, is shown once for all figures.
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
