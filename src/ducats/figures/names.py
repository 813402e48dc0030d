"""Names and descriptions of the figures; read for `--help`, so it imports nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """Description of a figure.

    Args:
        line: what the figure shows.
        wants: the runs it needs.
        takes: supported options: ``round``, ``images``.
        thoughts: whether it is drawn from snapshots of the model's outputs.
    """

    line: str
    wants: str
    takes: tuple[str, ...] = ()
    thoughts: bool = True


NAMES: dict[str, Entry] = {
    "entropies": Entry(
        "entropy of the point estimate against expected entropy of each sample (figure 1a)",
        "one run, or two on the same data (one for the point estimate, one for the Dirichlet model)",
        ("round",),
    ),
    "simplex": Entry(
        "Dirichlet densities of some images over their three most likely classes (figure 1b)",
        "one run",
        ("round", "images"),
    ),
    "u_dis": Entry(
        "log U_dis of source and target, before the first labels and at the end (figure 3a)",
        "one or more runs, one row each",
    ),
    "calibration": Entry(
        "reliability and ECE at the first and last stage, and after temperature scaling (figure 3b)",
        "one or more runs; seeds of a method are pooled",
        thoughts=False,
    ),
    "kappa": Entry(
        "accuracy over kappa (figure 4a)", "runs that differ in query.params.kappa", thoughts=False
    ),
    "beta_lambda": Entry(
        "accuracy over the weights beta and lambda (figure 4b)",
        "runs that differ in objective.params.beta and objective.params.lambda_",
        thoughts=False,
    ),
    "budget": Entry(
        "accuracy over the number of labels, one line per method (appendix)",
        "runs that differ in acquisition.budget",
        thoughts=False,
    ),
    "histogram": Entry("labels by class and round, next to the model's predictions (figure 6)", "one run"),
    "gallery": Entry(
        "first ten images of each round with prediction, label and uncertainties (figure 6)",
        "one classification run",
        ("round",),
    ),
    "pixels": Entry(
        "labelled pixels on images, round by round (figure 7)",
        "one segmentation run",
        ("images",),
        thoughts=False,
    ),
    "tsne": Entry(
        "t-SNE of source and target features at the end, with the labelled samples (figure 8)",
        "one or more runs, one panel each, e.g. with and without L_Udis",
    ),
    "uncertainties": Entry(
        "U_dis against U_data of the candidates in each round, with the threshold of the query",
        "one run",
        ("round",),
    ),
    "features": Entry(
        "selected samples of each round among pool and source, in two principal components",
        "one run",
        ("round",),
    ),
}
