"""Names and descriptions of the figures; read for `--help`, so it imports nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FigureInfo:
    """Description of a figure.

    Args:
        summary: what the figure shows.
        needed_runs: the runs it needs.
        options: supported options: ``round``, ``images``.
        uses_snapshots: whether it is drawn from snapshots of the model's outputs.
    """

    summary: str
    needed_runs: str
    options: tuple[str, ...] = ()
    uses_snapshots: bool = True


FIGURE_INFO: dict[str, FigureInfo] = {
    "entropies": FigureInfo(
        "entropy of the point estimate against expected entropy of each sample (figure 1a)",
        "one run, or two on the same data (one for the point estimate, one for the Dirichlet model)",
        ("round",),
    ),
    "simplex": FigureInfo(
        "Dirichlet densities of some images over their three most likely classes (figure 1b)",
        "one run",
        ("round", "images"),
    ),
    "u_dis": FigureInfo(
        "log U_dis of source and target, before the first labels and at the end (figure 3a)",
        "one or more runs, one row each",
    ),
    "calibration": FigureInfo(
        "reliability and ECE at the first and last stage, and after temperature scaling (figure 3b)",
        "one or more runs; seeds of a method are pooled",
        uses_snapshots=False,
    ),
    "kappa": FigureInfo(
        "accuracy over kappa (figure 4a)", "runs that differ in query.params.kappa", uses_snapshots=False
    ),
    "beta_lambda": FigureInfo(
        "accuracy over the weights beta and lambda (figure 4b)",
        "runs that differ in objective.params.beta and objective.params.lambda_",
        uses_snapshots=False,
    ),
    "budget": FigureInfo(
        "accuracy over the number of labels, one line per method (appendix)",
        "runs that differ in acquisition.budget",
        uses_snapshots=False,
    ),
    "histogram": FigureInfo(
        "labels by class and round, next to the model's predictions (figure 6)", "one run"
    ),
    "gallery": FigureInfo(
        "first ten images of each round with prediction, label and uncertainties (figure 6)",
        "one classification run",
        ("round",),
    ),
    "pixels": FigureInfo(
        "labelled pixels on images, round by round (figure 7)",
        "one segmentation run",
        ("images",),
        uses_snapshots=False,
    ),
    "tsne": FigureInfo(
        "t-SNE of source and target features at the end, with the labelled samples (figure 8)",
        "one or more runs, one panel each, e.g. with and without L_Udis",
    ),
    "uncertainties": FigureInfo(
        "U_dis against U_data of the candidates in each round, with the threshold of the query",
        "one run",
        ("round",),
    ),
    "features": FigureInfo(
        "selected samples of each round among pool and source, in two principal components",
        "one run",
        ("round",),
    ),
}
