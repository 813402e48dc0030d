"""The command `ducats tune`, a hyperparameter search."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ducats.cli.base import app, console
from ducats.errors import UserError
from ducats.options import Settings, folder_of


@app.command
def tune(
    *,
    settings: Settings = Settings(),  # noqa: B008 - never changed
    over: Annotated[list[str] | None, Parameter(negative=())] = None,
    by: Literal["dev", "bought"] = "dev",
    trials: int = 20,
    loss: Literal["error", "nll"] | None = None,
    normalise: Literal["none", "max", "standardize"] | None = None,
    validation: int | None = None,
    out: Path | None = None,
) -> int:
    """Search hyperparameters by an estimate of the target risk, without using test labels.

    Each trial is a run in its own folder. Run the same command again to resume. The best config is written to
    best.yaml, for `ducats run -c`, and all trials to tune.json, best first.

    Args:
        settings: Options of `ducats run`, the base config of all trials.
        over: A setting with its choices, e.g. objective.knobs.beta=0.1,0.5,1. Repeatable. Default: beta,
            lambda and kappa of DUC with the values of the paper.
        by: dev: deep embedded validation on a held-out fraction of the source (evaluation.source_share,
            default 0.2); bought: labels of random target images.
        trials: Number of combinations to try, sampled at random.
        loss: Loss to estimate: error rate (default for bought) or mean negative log-likelihood (default for
            dev, since a good model makes no errors on the source).
        normalise: dev: normalisation of the importance weights; default: none.
        validation: bought: number of validation labels, in addition to those of the trials; default: 50.
        out: Output folder; default: runs/tune-DATA-METHOD-DIGEST.
    """
    if normalise is not None and by != "dev":
        raise UserError("--normalise needs --by dev")
    if validation is not None and by != "bought":
        raise UserError("--validation needs --by bought")
    config = settings.load()
    from ducats import tune as search
    from ducats.tune.space import parse

    folder = out or Path("runs") / f"tune-{folder_of(config).name}"
    found = search.tune(
        config,
        folder,
        choices=parse(over) if over else None,
        by=by,
        trials=trials,
        loss=loss,
        normalise=normalise or "none",
        validation=50 if validation is None else validation,
        say=lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True),
    )
    console.print(search.table(found))
    tried = len(found.outcomes) + len(found.failed)
    lines = [
        f"risk: {found.says}",
        f"{tried} of {found.combinations} combinations tried; {found.labels['trials']} distinct target "
        f"labels acquired by the trials, {found.labels['validation']} for validation",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"best settings in {found.best}: `ducats run -c {found.best}`", soft_wrap=True)
    return 0
