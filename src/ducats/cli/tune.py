"""The command `ducats tune`, a hyperparameter search."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from ducats.cli.base import app, console, print_line, print_warning
from ducats.config.options import RunOptions, default_run_folder
from ducats.report.table import make_table, to_terminal
from ducats.utils.errors import UserError

if TYPE_CHECKING:
    from ducats.sweep.tune import TuningResult

_DETAIL_COLUMNS = {  # columns for details of a score: title, factor, digits
    "source_risk": ("source risk", 1, 4),
    "uncorrected_risk": ("uncorrected risk", 1, 4),
    "effective_fraction": ("effective sample %", 100, 1),
    "domain_accuracy": ("domain accuracy %", 100, 1),
    "low": ("95 %: from", 1, 4),
    "high": ("to", 1, 4),
    "images": ("images", 1, 0),
}


@app.command
def tune(
    *,
    options: RunOptions = RunOptions(),  # noqa: B008 - never changed
    grid: Annotated[list[str] | None, Parameter(negative=())] = None,
    estimator: Literal["dev", "target_labels", "audit"] | None = None,
    trials: int = 20,
    loss: Literal["error", "nll"] | None = None,
    weight_normalisation: Literal["none", "max", "standardize"] | None = None,
    validation_labels: int | None = None,
    out: Path | None = None,
) -> int:
    """Search hyperparameters by an estimate of the target risk, without using test labels.

    Each trial is a run in its own folder. Run the same command again to resume. The best config is written to
    best.yaml, for `ducats run -c`, and all trials to tune.json, best first.

    Args:
        options: Options of `ducats run`, the base config of all trials.
        grid: A setting with its choices, e.g. objective.params.beta=0.1,0.5,1. Repeatable. Default: the
            parameters of objective and query that have a search grid; with DUC beta, lambda and kappa, with
            the values of the paper.
        estimator: dev: deep embedded validation on a held-out fraction of the source
            (evaluation.source_holdout_fraction, default 0.2); target_labels: labels of random target images;
            audit: audit labels of the trials (--audit, or --start-from a run that has some). Default: dev, or
            audit if there is no source.
        trials: Number of combinations to try, sampled at random.
        loss: Loss to estimate: error rate (default for target_labels and audit) or mean negative
            log-likelihood (default for dev, since a good model makes no errors on the source).
        weight_normalisation: dev: normalisation of the importance weights; default: none.
        validation_labels: target_labels: number of validation labels, in addition to those of the trials;
            default: 50.
        out: Output folder; default: runs/tune-DATA-METHOD-DIGEST.
    """
    if weight_normalisation is not None and estimator not in (None, "dev"):
        raise UserError("--weight-normalisation needs --estimator dev")
    if validation_labels is not None and estimator != "target_labels":
        raise UserError("--validation-labels needs --estimator target_labels")
    if options.new_classes:
        raise UserError("--new-classes is for `ducats run`: trials with different classes cannot be compared")
    config = options.load()
    from ducats.sweep import tune as search
    from ducats.sweep.tune.trials import parse_grid

    folder = out or Path("runs") / f"tune-{default_run_folder(config).name}"
    result = search.tune(
        config,
        folder,
        grid=parse_grid(grid) if grid else None,
        estimator=estimator,
        max_trials=trials,
        loss=loss,
        weight_normalisation=weight_normalisation or "none",
        validation_labels=50 if validation_labels is None else validation_labels,
        on_message=print_line,
    )
    console.print(trials_table(result))
    tried = len(result.results) + len(result.failed)
    print_line(f"risk: {result.risk_description}")
    print_line(
        f"{tried} of {result.n_combinations} combinations tried; {result.label_counts['trials']} distinct "
        f"target labels acquired by the trials, {result.label_counts['validation']} for validation"
    )
    for warning in result.warnings:
        print_warning(warning)
    print_line(
        f"best settings in {result.best_config}: `ducats run -c {shlex.quote(str(result.best_config))}`"
    )
    return 0


def trials_table(tuning_result: "TuningResult", max_rows: int = 20) -> Table:
    """Return a table of the best trials, best first; tune.json has all of them."""
    best = tuning_result.results[0]
    columns = {name: column for name, column in _DETAIL_COLUMNS.items() if name in best.details}
    titles = [key.rsplit(".", 1)[-1] for key in best.settings]
    titles += ["risk", *(title for title, _, _ in columns.values())]
    rows = [
        [
            *map(str, result.settings.values()),
            f"{result.risk:.4f} ± {result.standard_error:.4f}{' !' if result.is_degenerate else ''}",
            *(f"{factor * result.details[name]:.{digits}f}" for name, (_, factor, digits) in columns.items()),
        ]
        for result in tuning_result.results[:max_rows]
    ]
    return to_terminal(make_table(titles, rows, n_text_columns=len(best.settings)))
