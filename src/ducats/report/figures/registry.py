"""The figures by name. Read for `--help`, so a figure's code is imported only to draw it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ducats.utils.registry import import_attribute, resolve

if TYPE_CHECKING:
    from ducats.report.figures.base import FigureOptions, PreparedFigure
    from ducats.report.figures.runs import RunSequence

    FigureFn = Callable[[RunSequence, FigureOptions], PreparedFigure]


@dataclass(frozen=True)
class FigureSpec:
    """A figure and its properties."""

    prepare: "str | FigureFn"  # function that prepares the figure, or its `package.module:function`
    summary: str = ""  # what the figure shows
    needed_runs: str = "one or more runs"  # the runs it needs
    options: tuple[str, ...] = ()  # supported options: `round`, `images`
    uses_snapshots: bool = True  # whether it is drawn from snapshots of the model's outputs

    def load(self) -> "FigureFn":
        """Return the function that prepares the figure."""
        prepare: FigureFn = (
            import_attribute("figure", self.prepare) if isinstance(self.prepare, str) else self.prepare
        )
        return prepare


FIGURES: Mapping[str, FigureSpec] = {
    "entropies": FigureSpec(
        "ducats.report.figures.entropies:prepare_entropies",
        "entropy of the point estimate against expected entropy of each sample (figure 1a)",
        "one run, or two on the same data (one for the point estimate, one for the Dirichlet model)",
        ("round",),
    ),
    "simplex": FigureSpec(
        "ducats.report.figures.simplex:prepare_simplex",
        "Dirichlet densities of some images over their three most likely classes (figure 1b)",
        "one run",
        ("round", "images"),
    ),
    "u_dis": FigureSpec(
        "ducats.report.figures.u_dis:prepare_u_dis",
        "log U_dis of source and target, before the first labels and at the end (figure 3a)",
        "one or more runs, one row each",
    ),
    "calibration": FigureSpec(
        "ducats.report.figures.calibration:prepare_calibration",
        "reliability and ECE at the first and last stage, and after temperature scaling (figure 3b)",
        "one or more runs; seeds of a method are pooled",
        uses_snapshots=False,
    ),
    "kappa": FigureSpec(
        "ducats.report.figures.score_by_setting:prepare_kappa",
        "accuracy over kappa (figure 4a)",
        "runs that differ in query.params.kappa",
        uses_snapshots=False,
    ),
    "beta_lambda": FigureSpec(
        "ducats.report.figures.score_by_setting:prepare_beta_lambda",
        "accuracy over the weights beta and lambda (figure 4b)",
        "runs that differ in objective.params.beta and objective.params.lambda_",
        uses_snapshots=False,
    ),
    "budget": FigureSpec(
        "ducats.report.figures.score_by_setting:prepare_budget",
        "accuracy over the number of labels, one line per method (appendix)",
        "runs that differ in acquisition.budget",
        uses_snapshots=False,
    ),
    "histogram": FigureSpec(
        "ducats.report.figures.histogram:prepare_histogram",
        "labels by class and round, next to the model's predictions (figure 6)",
        "one run",
    ),
    "gallery": FigureSpec(
        "ducats.report.figures.gallery:prepare_gallery",
        "first ten images of each round with prediction, label and uncertainties (figure 6)",
        "one classification run",
        ("round",),
    ),
    "pixels": FigureSpec(
        "ducats.report.figures.pixels:prepare_pixels",
        "labelled pixels on images, round by round (figure 7)",
        "one segmentation run",
        ("images",),
        uses_snapshots=False,
    ),
    "tsne": FigureSpec(
        "ducats.report.figures.tsne:prepare_tsne",
        "t-SNE of source and target features at the end, with the labelled samples (figure 8)",
        "one or more runs, one panel each, e.g. with and without L_Udis",
    ),
    "uncertainties": FigureSpec(
        "ducats.report.figures.uncertainties:prepare_uncertainties",
        "U_dis against U_data of the candidates in each round, with the threshold of the query",
        "one run",
        ("round",),
    ),
    "features": FigureSpec(
        "ducats.report.figures.features:prepare_features",
        "selected samples of each round among pool and source, in two principal components",
        "one run",
        ("round",),
    ),
}


def resolve_figure(name: str) -> FigureSpec:
    """Return a figure by its name in `FIGURES`, or a user's own as ``package.module:attribute``."""
    return resolve("figure", FIGURES, name, as_figure_spec)


def as_figure_spec(figure: "FigureFn | FigureSpec") -> FigureSpec:
    """Wrap a plain function, described by its docstring; return a `FigureSpec` unchanged."""
    if isinstance(figure, FigureSpec):
        return figure
    summary = (figure.__doc__ or "").strip().partition("\n")[0].removesuffix(".")
    return FigureSpec(figure, summary, options=("round", "images"))
