"""Hyperparameter search: run, score and rank trials. Resumable."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ducats import config as configs
from ducats.config import Config, query_epochs
from ducats.dev import Normalise
from ducats.errors import UserError
from ducats.factory import check_components, with_resolved_precision
from ducats.files import write_text_atomically
from ducats.tune.scores import ByBought, ByDev, Judge, Loss, Problem, buy_validation, problem_of
from ducats.tune.space import Choices, combinations, points, settings_of, usual_choices
from ducats.tune.trials import Launch, Trial, as_process, make_trials, words

By = Literal["dev", "target_labels"]
USUAL_LOSS: Mapping[By, Loss] = {"dev": "nll", "target_labels": "error"}
SHARE = 0.2  # fraction of the source held out for DEV if the config has none


@dataclass(frozen=True)
class Outcome:
    """Result of a trial."""

    name: str  # name of the run folder
    settings: Mapping[str, Any]
    risk: float
    deviation: float
    parts: Mapping[str, float]
    degenerate: bool
    labels: int  # number acquired by the run


@dataclass(frozen=True)
class Tuned:
    """Result of a search."""

    says: str  # description of the risk
    outcomes: Sequence[Outcome]  # best first
    failed: Mapping[str, str]  # error message by the trial's settings
    combinations: int  # size of the whole grid
    labels: Mapping[str, int]  # distinct labels acquired by all trials, and those for validation
    warnings: Sequence[str]
    best: Path  # config of the best trial, for `ducats run -c`


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
    """Search hyperparameters, rank the trials by target risk, and write the best config.

    Args:
        config: base config of all trials.
        out: output folder, with one run folder per trial, base.yaml, tune.json and best.yaml.
        choices: values of each searched setting; None: those of `usual_choices`.
        by: ``dev`` estimates the risk from held-out source images, ``bought`` from labels of random target
            images, acquired for validation.
        trials: maximum number of combinations, sampled at random.
        loss: error rate or mean negative log-likelihood. None: the latter for DEV, because a good model makes
            no errors on the source, which leaves nothing to weight.
        normalise: normalisation of DEV's weights.
        validation: number of validation labels, for ``bought``.
        launch: runs a trial to its end.
        say: called with a line of text after each trial.
    """
    if config.task.name != "classification":
        raise UserError(
            "`ducats tune` supports only classification; for segmentation, compare runs with `ducats report`"
        )
    config, loss = with_resolved_precision(config), loss or USUAL_LOSS[by]
    choices = choices or usual_choices(config)
    share = config.evaluation.source_holdout_fraction or (SHARE if by == "dev" else 0.0)
    write_text_atomically(out / "base.yaml", configs.to_yaml(config))
    planned = make_trials(
        out / "base.yaml",
        points(choices, trials, config.seed),
        out,
        [f"evaluation.source_holdout_fraction={share}"],
    )
    for trial in planned:
        check_components(trial.config, is_resumable=trial.home.begun)
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
    labels = {"trials": _distinct(planned), "validation": validation if by == "target_labels" else 0}
    if not outcomes:
        _write(out / "tune.json", criterion, list(known.values()), failed, {"labels": labels})
        raise UserError(f"all {len(planned)} trials failed; first error: {next(iter(failed.values()))}")
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
    best = configs.load_config([out / "base.yaml"], settings_of(outcomes[0].settings))
    write_text_atomically(found.best, configs.to_yaml(best))
    more = {key: getattr(found, key) for key in ("says", "combinations", "labels", "warnings")}
    _write(out / "tune.json", criterion, outcomes, failed, more)
    return found


def _outcome(trial: Trial, judge: Judge, known: Mapping[str, Outcome], launch: Launch) -> Outcome:
    """Run and score a trial, unless that is already done."""
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
    """Raise if the trials would query human annotators: each trial needs labels of its own."""
    people = config.oracle.name == "human" or (config.oracle.name == "auto" and problem.shift.truth is None)
    if people and query_epochs(config):
        raise UserError(
            "every trial acquires its own labels, which annotators cannot provide; tune with --rounds 0, and "
            "set the number of rounds when you run best.yaml"
        )


def _says(by: By, loss: Loss, share: float, validation: int) -> str:
    what = "error rate" if loss == "error" else "mean negative log-likelihood"
    if by == "dev":
        return (
            f"{what} on the target, estimated by deep embedded validation from {100 * share:g} % of the "
            "source, held out from all trials; no target labels used"
        )
    return (
        f"{what} on {validation} random target images, labelled for validation, except those that a trial "
        "labelled itself"
    )


def warnings_of(outcomes: Sequence[Outcome], by: By) -> list[str]:
    """Return warnings about the reliability of the ranking; ``outcomes`` are sorted, best first."""
    found, best = [], outcomes[0]
    weak = sum(one.degenerate for one in outcomes)
    if weak:
        found.append(
            f"DEV is unreliable for {weak} of {len(outcomes)} trials"
            f"{', including the best' if best.degenerate else ''}: a few source images carry all the weight "
            "(effective sample size below 5 %), because source and target are too easy to separate; use "
            "--estimator target_labels (reruns the trials, on the full source) or --weight-normalisation standardize"
        )
    if by == "dev" and best.parts["source"] == 0:
        found.append(
            "no held-out source image is misclassified, so the risk is uninformative; use --loss nll"
        )
    # The standard error of a best trial without any errors is 0.
    near = sum(one.risk - best.risk <= max(one.deviation, best.deviation) for one in outcomes[1:])
    if near:
        remedy = (
            "increase evaluation.source_holdout_fraction" if by == "dev" else "increase --validation-labels"
        )
        found.append(
            f"{near} other trial{'s are' if near > 1 else ' is'} within one standard error of the best, so "
            f"their order is not significant; {remedy} to separate them"
        )
    return found


def _distinct(planned: Sequence[Trial]) -> int:
    """Count the distinct labels acquired by all trials, including failed ones."""
    begun = [trial.home for trial in planned if (trial.home.folder / "pool.json").exists()]
    return len({entry.key for home in begun for entry in home.bought().entries()})


def _scored(path: Path, criterion: Mapping[str, Any]) -> dict[str, Outcome]:
    """Load the results of an earlier call with the same criterion."""
    if not path.exists():
        return {}
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        if before["criterion"] != criterion:
            return {}
        return {one["name"]: Outcome(**one) for one in before["trials"]}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is corrupt; remove it to score the trials again") from None


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
