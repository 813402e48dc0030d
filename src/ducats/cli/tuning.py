"""The command that searches settings."""

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
    """Search settings by an estimate of the risk on the target; no test label is looked at.

    Each trial is a run in a folder of its own, and the same command goes on after a kill. The winner's config
    is written to best.yaml, for `ducats run -c`, and all trials, best first, to tune.json.

    Args:
        settings: what is searched from; the same options as `ducats run`.
        over: A setting with its choices, e.g. objective.knobs.beta=0.1,0.5,1. May be repeated. By default
            DUC's beta, lambda and kappa, over the paper's values.
        by: dev: deep embedded validation, from a share of the source that is not trained on
            (evaluation.source_share, by default 0.2); bought: from labels of random target images.
        trials: Combinations to try, drawn at random.
        loss: What is estimated: the share of errors (the default for bought), or the mean negative
            log-likelihood (for dev: a good model makes no errors on the source).
        normalise: DEV: what is done to the weights; by default none.
        validation: Labels to buy for --by bought, besides those that trials buy; by default 50.
        out: The folder of the search, by default runs/tune-DATA-METHOD-DIGEST.
    """
    if normalise is not None and by != "dev":
        raise UserError("--normalise is for --by dev: labels that were bought have no weights")
    if validation is not None and by != "bought":
        raise UserError("--validation is for --by bought: deep embedded validation buys no labels")
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
        f"labels were bought by the trials, {found.labels['validation']} for validation",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for warning in found.warnings:
        console.print(f"beware: {warning}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"best settings in {found.best}: `ducats run -c {found.best}`", soft_wrap=True)
    return 0
