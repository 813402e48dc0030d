"""The search: run each trial, score it, rank; what is done already is not done again."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ducats import config as configs
from ducats.assemble import check_names, settled
from ducats.config import Config, ask_epochs
from ducats.dev import Normalise
from ducats.errors import UserError
from ducats.files import write_text_atomically
from ducats.tune.scores import ByBought, ByDev, Judge, Loss, Problem, buy_validation, problem_of
from ducats.tune.space import Choices, combinations, points, settings_of, usual_choices
from ducats.tune.trials import Launch, Trial, as_process, make_trials, words

By = Literal["dev", "bought"]
USUAL_LOSS: Mapping[By, Loss] = {"dev": "nll", "bought": "error"}
SHARE = 0.2  # of the source, held out for DEV where the config holds none out


@dataclass(frozen=True)
class Outcome:
    """A trial that was run and scored."""

    name: str  # of its folder
    settings: Mapping[str, Any]
    risk: float
    deviation: float
    parts: Mapping[str, float]
    degenerate: bool
    labels: int  # that its run bought


@dataclass(frozen=True)
class Tuned:
    """What a search found."""

    says: str  # what the risk is
    outcomes: Sequence[Outcome]  # best first
    failed: Mapping[str, str]  # by the trial's settings: why
    combinations: int  # of the whole grid
    labels: Mapping[str, int]  # distinct ones that all trials bought, and those bought for validation
    warnings: Sequence[str]
    best: Path  # the winner's config, for `ducats run -c`


def tune(
    config: Config,
    out: Path,
    *,
    choices: Choices | None = None,
    by: By = "dev",
    trials: int = 20,
    loss: Loss | None = None,
    normalise: Normalise = "none",
    validation: int = 50,
    launch: Launch = as_process,
    say: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Search settings, rank the trials by their risk on the target, and write down the best.

    Args:
        config: what is searched from.
        out: a folder for each trial's run, and base.yaml, tune.json, best.yaml.
        choices: of each searched setting; DUC's usual ones by default.
        by: ``dev`` estimates the risk from a held-out share of the source, ``bought`` from labels of random
            target images, bought for this.
        trials: combinations to try, drawn at random.
        loss: the share of errors, or the mean negative log-likelihood, which is the default for DEV: a good
            model makes no errors on the source, and weights of nothing rank nothing.
        normalise: of DEV's weights.
        validation: labels to buy where they decide.
        launch: brings a trial's run to its end.
        say: told of each trial.
    """
    if config.task.name != "classification":
        raise UserError(
            "`ducats tune` is for classification: of segmentation, compare a few runs with `ducats report`"
        )
    config, loss = settled(config), loss or USUAL_LOSS[by]
    choices = choices or usual_choices(config)
    share = config.evaluation.source_share or (SHARE if by == "dev" else 0.0)
    write_text_atomically(out / "base.yaml", configs.to_yaml(config))
    planned = make_trials(
        out / "base.yaml",
        points(choices, trials, config.seed),
        out,
        [f"evaluation.source_share={share}"],
    )
    for trial in planned:
        check_names(trial.config, begun=trial.home.begun)
    problem = problem_of(planned[0].config)
    _refuse_people(config, problem)
    criterion: dict[str, Any] = {"by": by, "loss": loss}
    if by == "dev":
        judge: Judge = ByDev(problem, loss, normalise)
        criterion |= {"normalise": normalise, "source_share": share}
    else:
        folder = out / f"validation-{validation}"
        judge = ByBought(problem, loss, buy_validation(config, problem, validation, folder))
        criterion |= {"validation": validation}
    known = _scored(out / "tune.json", criterion)
    outcomes: list[Outcome] = []
    failed: dict[str, str] = {}
    for number, trial in enumerate(planned, start=1):
        try:
            outcome = _outcome(trial, judge, known, launch)
        except UserError as error:
            failed[words(trial.point)] = str(error)
            say(f"{number} of {len(planned)}: {words(trial.point)}: failed: {error}")
            continue
        say(f"{number} of {len(planned)}: {words(trial.point)}: risk {outcome.risk:.4f}")
        outcomes.append(outcome)
        known[trial.name] = outcome
        _write(out / "tune.json", criterion, list(known.values()), failed, {})
    labels = {"trials": _distinct(planned), "validation": validation if by == "bought" else 0}
    if not outcomes:
        _write(out / "tune.json", criterion, list(known.values()), failed, {"labels": labels})
        raise UserError(f"all {len(planned)} trials failed, the first with: {next(iter(failed.values()))}")
    outcomes.sort(key=lambda one: one.risk)
    found = Tuned(
        says=_says(by, loss, share, validation),
        outcomes=outcomes,
        failed=failed,
        combinations=combinations(choices),
        labels=labels,
        warnings=warnings_of(outcomes, by),
        best=out / "best.yaml",
    )
    best = configs.load([out / "base.yaml"], settings_of(outcomes[0].settings))
    write_text_atomically(found.best, configs.to_yaml(best))
    more = {key: getattr(found, key) for key in ("says", "combinations", "labels", "warnings")}
    _write(out / "tune.json", criterion, outcomes, failed, more)
    return found


def _outcome(trial: Trial, judge: Judge, known: Mapping[str, Outcome], launch: Launch) -> Outcome:
    """Run a trial and score it, unless that was done."""
    if not trial.home.finished:
        launch(trial)
    elif trial.name in known:
        return known[trial.name]
    score = judge(trial)
    return Outcome(
        trial.name,
        trial.point,
        score.risk,
        score.deviation,
        score.parts,
        score.degenerate,
        len(trial.home.bought()),
    )


def _refuse_people(config: Config, problem: Problem) -> None:
    """Each trial would ask people about images of its own."""
    people = config.oracle.name == "people" or (config.oracle.name == "auto" and problem.shift.truth is None)
    if people and ask_epochs(config):
        raise UserError(
            "every trial buys labels of its own, and people would have to answer them all: tune without "
            "questions, --rounds 0, and give the number of rounds again when best.yaml is run"
        )


def _says(by: By, loss: Loss, share: float, validation: int) -> str:
    what = "share of errors" if loss == "error" else "mean negative log-likelihood"
    if by == "dev":
        return (
            f"{what} on the target, estimated by deep embedded validation from {100 * share:g} % of the "
            "source, which no trial was trained on; no target label decides"
        )
    return (
        f"{what} on {validation} random target images, bought for this, without those that a trial bought "
        "itself"
    )


def warnings_of(outcomes: Sequence[Outcome], by: By) -> list[str]:
    """What a reader must know before believing the order."""
    found, best = [], outcomes[0]
    weak = sum(one.degenerate for one in outcomes)
    if weak:
        found.append(
            f"in {weak} of {len(outcomes)} trials{', the best among them,' if best.degenerate else ''} a "
            "handful of source images carries all the weight (effective sample below 5 %), so that DEV says "
            "little: source and target are too easily told apart; use --by bought (it runs trials anew, on "
            "all of the source), or --normalise standardize"
        )
    if by == "dev" and best.parts["source"] == 0:
        found.append("no held-out source image is misclassified, so the risk says nothing: use --loss nll")
    # A best without any error has no deviation of its own.
    near = sum(one.risk - best.risk <= max(one.deviation, best.deviation) for one in outcomes[1:])
    if near:
        remedy = "raise evaluation.source_share" if by == "dev" else "raise --validation"
        found.append(
            f"{near} other trial{'s are' if near > 1 else ' is'} within one standard error of the best: "
            f"the order among them is chance; {remedy} to tell them apart"
        )
    return found


def _distinct(planned: Sequence[Trial]) -> int:
    """Labels that an annotator would have had to give for all trials together, also for those that failed."""
    begun = [trial.home for trial in planned if (trial.home.folder / "pool.json").exists()]
    return len({entry.key for home in begun for entry in home.bought().entries()})


def _scored(path: Path, criterion: Mapping[str, Any]) -> dict[str, Outcome]:
    """Outcomes of an earlier call by the same criterion."""
    if not path.exists():
        return {}
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        if before["criterion"] != criterion:
            return {}
        return {one["name"]: Outcome(**one) for one in before["trials"]}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} was spoilt: remove it, and the trials are scored anew") from None


def _write(
    path: Path,
    criterion: Mapping[str, Any],
    outcomes: Sequence[Outcome],
    failed: Mapping[str, str],
    more: Mapping[str, Any],
) -> None:
    ranked = [asdict(one) for one in sorted(outcomes, key=lambda one: one.risk)]
    text = {"criterion": criterion, **more, "trials": ranked, "failed": failed}
    write_text_atomically(path, json.dumps(text, indent=1) + "\n")
