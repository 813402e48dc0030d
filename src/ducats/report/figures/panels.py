"""Figures of `ducats figure` on the page, each with a title and a caption."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ducats.report import figures
from ducats.report.figures.run_settings import has_duc_query
from ducats.report.run_kinds import CLASSIFICATION
from ducats.report.run_reader import Run
from ducats.utils.errors import UserError

TSNE_POINTS = 600  # t-SNE points, few enough to write a page in seconds


@dataclass(frozen=True)
class FigurePanel:
    """A figure on the page."""

    name: str  # its name in `ducats figure`
    title: str
    caption: str
    svg: str = ""  # SVG text; empty if it cannot be drawn
    reason_missing: str = ""  # the reason why it cannot be drawn, as a sentence


def svg_width(svg: str) -> float:
    """Return the width of a figure in points, at which its text has the intended size."""
    found = re.search(r'viewBox="0 0 ([0-9.]+) ', svg)
    return float(found.group(1)) if found else 0.0


UNCERTAINTIES_PANEL = FigurePanel(
    "uncertainties",
    "Two uncertainties",
    "Each point is a sample without a label. U_dis is high for samples unlike the training images, U_data "
    "for samples between classes.",
)
DUC_CAPTION = (
    " DUC keeps the samples with the highest U_dis (beyond the dashed line), then selects those with the "
    "highest U_data."
)
HISTOGRAM_PANEL = FigurePanel(
    "histogram",
    "Selected classes",
    "Labels of each class, round by round, next to the model's predictions for the pool. They show whether "
    "rare classes are selected.",
)
FEATURES_PANEL = FigurePanel(
    "features",
    "Selected samples in feature space",
    "Features of each sample, projected to two dimensions. Selected samples in one cluster are redundant.",
)
PIXELS_PANEL = FigurePanel(
    "pixels",
    "Selected pixels",
    "Selected pixels on some images of the pool, round by round.",
)
PAPER_PANELS = (
    FigurePanel(
        "entropies",
        "Entropy and expected entropy",
        "Entropy of the prediction against expected entropy of each sample. Off the diagonal, the model is "
        "uncertain because the sample is unlike the training images, not because it is between classes.",
    ),
    FigurePanel(
        "simplex",
        "Predicted Dirichlet distributions of three samples",
        "Each corner is a class. Bright regions are the class probabilities that the model considers likely. "
        "A small spot means low uncertainty about them, a wide region high uncertainty.",
    ),
    FigurePanel(
        "u_dis",
        "U_dis of source and target",
        "Distribution of U_dis over source and target, before the first labels and at the end. The closer "
        "the two are, the better the model has adapted to the target.",
    ),
    FigurePanel(
        "tsne",
        "t-SNE of source and target",
        "t-SNE places samples with similar features close to each other. Distances between clusters mean "
        "little.",
    ),
)
MULTI_RUN_PANELS = (
    FigurePanel(
        "budget", "Score and budget", "Score over the number of labels, from runs with different budgets."
    ),
    FigurePanel(
        "kappa", "Score and kappa", "Score over kappa: the query keeps kappa times the budget first."
    ),
    FigurePanel(
        "beta_lambda", "Score and loss weights", "Score over beta and lambda, the weights of the losses."
    ),
)


def draw_round_panels(run: Run, id_prefix: str) -> tuple[FigurePanel, ...]:
    """Return the figures about the samples that a run selected."""
    duc_caption = DUC_CAPTION if has_duc_query(run) and run.kind == CLASSIFICATION else ""
    uncertainties_panel = replace(UNCERTAINTIES_PANEL, caption=UNCERTAINTIES_PANEL.caption + duc_caption)
    panels = (
        (uncertainties_panel, HISTOGRAM_PANEL, FEATURES_PANEL)
        if run.kind == CLASSIFICATION
        else (PIXELS_PANEL, uncertainties_panel, HISTOGRAM_PANEL)
    )
    return _draw_panels(panels, [run], id_prefix)


def draw_paper_panels(run: Run, id_prefix: str) -> tuple[FigurePanel, ...]:
    """Return the paper's figures about one run."""
    return _draw_panels(PAPER_PANELS, [run], id_prefix)


def draw_multi_run_panels(runs: Sequence[Run], id_prefix: str) -> tuple[FigurePanel, ...]:
    """Return the paper's figures about several runs, without those that cannot be drawn."""
    return tuple(panel for panel in _draw_panels(MULTI_RUN_PANELS, runs, id_prefix) if panel.svg)


def draw_requested_panels(names: Sequence[str], runs: Sequence[Run]) -> tuple[FigurePanel, ...]:
    """Return the figures that were requested by name, over all runs."""
    specs = {name: figures.resolve_figure(name) for name in names}
    panels = [FigurePanel(name, figures.figure_id(name), spec.summary) for name, spec in specs.items()]
    return _draw_panels(panels, runs, "figure-")


def _draw_panels(
    panels: Sequence[FigurePanel], runs: Sequence[Run], id_prefix: str
) -> tuple[FigurePanel, ...]:
    drawn_panels: list[FigurePanel] = []
    for panel in panels:
        try:
            svg = figures.draw_svg(panel.name, runs, id_prefix=id_prefix, max_points=TSNE_POINTS)
        except UserError as error:
            reason = _reason_without_paths(error, runs)
            # The same reason, e.g. missing snapshots, is shown once for all figures.
            if reason not in [other.reason_missing for other in drawn_panels]:
                drawn_panels.append(replace(panel, reason_missing=reason))
        else:
            drawn_panels.append(replace(panel, svg=svg))
    return tuple(drawn_panels)


def _reason_without_paths(error: UserError, runs: Sequence[Run]) -> str:
    text = str(error)
    for run in runs:
        text = text.replace(str(run.folder), run.name)
    return f"Not drawn: {text}."
