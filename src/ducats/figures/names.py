"""The figures' names, what each shows and what it wants; read for `--help`, so it imports nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A figure in words.

    Args:
        line: what it shows.
        wants: which runs it is drawn from.
        takes: which options it reads: ``round``, ``images``.
        thoughts: whether it shows snapshots, what a model thought.
    """

    line: str
    wants: str
    takes: tuple[str, ...] = ()
    thoughts: bool = True


NAMES: dict[str, Entry] = {
    "entropies": Entry(
        "entropy of the point estimate against expected entropy, sample by sample (figure 1a)",
        "one run; or two on the same data: one for the point estimate, one for the Dirichlet model",
        ("round",),
    ),
    "simplex": Entry(
        "the Dirichlet density of some images over their three likeliest classes (figure 1b)",
        "one run",
        ("round", "images"),
    ),
    "u_dis": Entry(
        "log U_dis on source and target, before the first labels and at the end (figure 3a)",
        "one run or more, a row each",
    ),
    "calibration": Entry(
        "confidence against accuracy, and ECE, before and after; with a temperature beside (figure 3b)",
        "one run or more, seeds of a method pooled",
        thoughts=False,
    ),
    "kappa": Entry(
        "accuracy over kappa (figure 4a)", "runs that differ in query.knobs.kappa", thoughts=False
    ),
    "beta_lambda": Entry(
        "accuracy over the weights beta and lambda (figure 4b)",
        "runs that differ in objective.knobs.beta and objective.knobs.lambda_",
        thoughts=False,
    ),
    "budget": Entry(
        "accuracy over labels bought, a line for each method (appendix)",
        "runs that differ in ask.budget",
        thoughts=False,
    ),
    "histogram": Entry(
        "labels of the picks by class and round, beside the model's guesses (figure 6)", "one run"
    ),
    "gallery": Entry(
        "the first ten picks of each round, with guess, label and both uncertainties (figure 6)",
        "one run about images",
        ("round",),
    ),
    "pixels": Entry(
        "picked pixels over images, round by round (figure 7)",
        "one run about pixels",
        ("images",),
        thoughts=False,
    ),
    "tsne": Entry(
        "t-SNE of source and target features at the end, with what was bought (figure 8)",
        "one run or more, a panel each: with and without L_Udis",
    ),
    "uncertainties": Entry(
        "U_dis against U_data with the cut of the first round and the picks, question by question",
        "one run",
        ("round",),
    ),
    "features": Entry(
        "where the picks lie among pool and source, in two principal components, question by question",
        "one run",
        ("round",),
    ),
}
