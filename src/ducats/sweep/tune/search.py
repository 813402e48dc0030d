"""Hyperparameter search: run, score and rank trials. Resumable."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ducats import config as configs
from ducats.config import Config, query_epochs
from ducats.config.schema import has_source
from ducats.evaluation.model_selection import WeightNormalisation
from ducats.ledger import load_ledger
from ducats.run.factory import check_config, resolve_for_machine
from ducats.sweep.tune.scorers import (
    AuditScorer,
    DevScorer,
    TargetLabelScorer,
    TrialScorer,
    TuningData,
    TuningLoss,
    acquire_validation_labels,
    load_tuning_data,
)
from ducats.sweep.tune.trials import (
    SearchGrid,
    Trial,
    TrialLauncher,
    count_combinations,
    default_grid,
    format_grid_point,
    make_trials,
    run_in_subprocess,
    sample_grid_points,
    to_settings,
)
from ducats.utils.errors import UserError
from ducats.utils.files import write_text_atomically

RiskEstimator = Literal["dev", "target_labels", "audit"]
DEFAULT_LOSS: Mapping[RiskEstimator, TuningLoss] = {"dev": "nll", "target_labels": "error", "audit": "error"}
_SAMPLE_SIZE_SETTINGS: Mapping[RiskEstimator, str] = {
    "dev": "evaluation.source_holdout_fraction",
    "target_labels": "--validation-labels",
    "audit": "--audit",
}
DEFAULT_SOURCE_HOLDOUT = 0.2  # fraction of the source held out for DEV if the config has none


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial."""

    name: str  # name of the run folder
    settings: Mapping[str, Any]
    risk: float
    standard_error: float
    details: Mapping[str, float]
    is_degenerate: bool
    n_labels: int  # number acquired by the run


@dataclass(frozen=True)
class TuningResult:
    """Result of a search."""

    risk_description: str  # description of the risk
    results: Sequence[TrialResult]  # best first
    failed: Mapping[str, str]  # error message by the trial's settings
    n_combinations: int  # size of the whole grid
    label_counts: Mapping[str, int]  # distinct labels acquired by all trials, and those for validation
    warnings: Sequence[str]
    best_config: Path  # config of the best trial, for `ducats run -c`


def tune(
    config: Config,
    out: Path,
    *,
    grid: SearchGrid | None = None,
    estimator: RiskEstimator | None = None,
    max_trials: int = 20,
    loss: TuningLoss | None = None,
    weight_normalisation: WeightNormalisation = "none",
    validation_labels: int = 50,
    launcher: TrialLauncher = run_in_subprocess,
    on_message: Callable[[str], None] = lambda _: None,
) -> TuningResult:
    """Search hyperparameters, rank the trials by target risk, and write the best config.

    Args:
        out: output folder, with one run folder per trial, base.yaml, tune.json and best.yaml.
        grid: values of each searched setting; None: those of `default_grid`.
        estimator: ``dev`` estimates the risk from held-out source images, ``target_labels`` from labels of
            random target images, acquired for validation, ``audit`` from the audit labels of the trials.
            None: ``dev``, or ``audit`` if there is no source.
        max_trials: maximum number of combinations, sampled at random.
        loss: error rate or mean negative log-likelihood. None: the latter for DEV, because a good model makes
            no errors on the source, which leaves nothing to weight.
        validation_labels: number of validation labels, for ``target_labels``.
        launcher: runs a trial to its end.
        on_message: called with a line of text after each trial.
    """
    if config.task.name != "classification":
        raise UserError(
            "`ducats tune` supports only classification; for segmentation, compare runs with `ducats report`"
        )
    config = resolve_for_machine(config)
    estimator = estimator or ("dev" if has_source(config) else "audit")
    loss = loss or DEFAULT_LOSS[estimator]
    grid = grid or default_grid(config)
    source_holdout = config.evaluation.source_holdout_fraction or (
        DEFAULT_SOURCE_HOLDOUT if estimator == "dev" else 0.0
    )
    write_text_atomically(out / "base.yaml", configs.to_yaml(config))
    planned_trials = make_trials(
        out / "base.yaml",
        sample_grid_points(grid, max_trials, config.seed),
        out,
        [f"evaluation.source_holdout_fraction={source_holdout}"],
    )
    for trial in planned_trials:
        check_config(trial.config, is_resumable=trial.run_folder.is_resumable)
    tuning_data = load_tuning_data(planned_trials[0].config)
    _check_no_human_oracle(config, tuning_data)
    criterion: dict[str, Any] = {"estimator": estimator, "loss": loss}
    if estimator == "dev":
        scorer: TrialScorer = DevScorer(tuning_data, loss, weight_normalisation)
        criterion["weight_normalisation"] = weight_normalisation
        criterion["source_holdout_fraction"] = source_holdout
    elif estimator == "audit":
        scorer = AuditScorer(tuning_data, loss, len(planned_trials))
        criterion["trials"] = len(planned_trials)  # that the intervals hold for
    else:
        folder = out / f"validation-{validation_labels}"
        scorer = TargetLabelScorer(
            tuning_data, loss, acquire_validation_labels(config, tuning_data, validation_labels, folder)
        )
        criterion |= {"validation_labels": validation_labels}
    earlier_results = _load_results(out / "tune.json", criterion)
    results: list[TrialResult] = []
    failed: dict[str, str] = {}
    for number, trial in enumerate(planned_trials, start=1):
        point = format_grid_point(trial.point)
        name = f"{number} of {len(planned_trials)}: {point}"
        try:
            result = _run_and_score(trial, scorer, earlier_results, launcher)
        except UserError as error:
            failed[point] = str(error)
            on_message(f"{name}: failed: {error}")
            continue
        on_message(f"{name}: risk {result.risk:.4f}")
        results.append(result)
        earlier_results[trial.name] = result
        _write_results(out / "tune.json", criterion, list(earlier_results.values()), failed, {})
    label_counts = {
        "trials": _count_distinct_labels(planned_trials),
        "validation": validation_labels if estimator == "target_labels" else 0,
    }
    if not results:
        summary = {"label_counts": label_counts}
        _write_results(out / "tune.json", criterion, list(earlier_results.values()), failed, summary)
        raise UserError(
            f"all {len(planned_trials)} trials failed; first error: {next(iter(failed.values()))}"
        )
    results.sort(key=lambda result: result.risk)
    tuning_result = TuningResult(
        risk_description=_describe_risk(
            estimator, loss, source_holdout, validation_labels, len(planned_trials)
        ),
        results=results,
        failed=failed,
        n_combinations=count_combinations(grid),
        label_counts=label_counts,
        warnings=ranking_warnings(results, estimator),
        best_config=out / "best.yaml",
    )
    best = configs.load_config([out / "base.yaml"], to_settings(results[0].settings))
    write_text_atomically(tuning_result.best_config, configs.to_yaml(best))
    keys = ("risk_description", "n_combinations", "label_counts", "warnings")
    summary = {key: getattr(tuning_result, key) for key in keys}
    _write_results(out / "tune.json", criterion, results, failed, summary)
    return tuning_result


def _run_and_score(
    trial: Trial, scorer: TrialScorer, earlier_results: Mapping[str, TrialResult], launcher: TrialLauncher
) -> TrialResult:
    """Run and score a trial, unless that is already done."""
    if not trial.run_folder.finished:
        launcher(trial)
    elif trial.name in earlier_results:
        return earlier_results[trial.name]
    score, n_labels = scorer(trial), len(load_ledger(trial.run_folder))
    return TrialResult(name=trial.name, settings=trial.point, n_labels=n_labels, **vars(score))


def _check_no_human_oracle(config: Config, tuning_data: TuningData) -> None:
    """Raise if the trials would query human annotators: each trial needs labels of its own."""
    is_human = config.oracle.name == "human" or (
        config.oracle.name == "auto" and tuning_data.data.ground_truth is None
    )
    n_known = 0 if config.acquisition.start_from is None else 1  # rounds whose labels are known
    if is_human and len(query_epochs(config)) > n_known:
        raise UserError(
            "every trial acquires its own labels, which annotators cannot provide; tune with --rounds 0, and "
            "set the number of rounds when you run best.yaml"
        )


def _describe_risk(
    estimator: RiskEstimator, loss: TuningLoss, source_holdout: float, validation_labels: int, n_trials: int
) -> str:
    loss_name = "error rate" if loss == "error" else "mean negative log-likelihood"
    if estimator == "dev":
        return (
            f"{loss_name} on the target, estimated by deep embedded validation from "
            f"{100 * source_holdout:g} % of the source, held out from all trials; no target labels used"
        )
    if estimator == "audit":
        intervals = f"; the intervals hold for all {n_trials} trials together" if loss == "error" else ""
        return f"{loss_name} on the audit labels of a trial, which it was not trained on{intervals}"
    return (
        f"{loss_name} on {validation_labels} random target images, labelled for validation, except those "
        "that a trial labelled itself"
    )


def ranking_warnings(results: Sequence[TrialResult], estimator: RiskEstimator) -> list[str]:
    """Return warnings about the reliability of the ranking; ``results`` are sorted, best first."""
    warnings, best = [], results[0]
    n_degenerate = sum(result.is_degenerate for result in results)
    if n_degenerate:
        warnings.append(
            f"DEV is unreliable for {n_degenerate} of {len(results)} trials"
            f"{', including the best' if best.is_degenerate else ''}: a few source images carry all the "
            "weight (effective sample size below 5 %), because source and target are too easy to separate; "
            "use --estimator target_labels (reruns the trials, on the full source) or --weight-normalisation "
            "standardize"
        )
    if estimator == "dev" and best.details["source_risk"] == 0:
        warnings.append(
            "no held-out source image is misclassified, so the risk is uninformative; use --loss nll"
        )
    # The standard error of a best trial without any errors is 0.
    n_near = sum(
        result.risk - best.risk <= max(result.standard_error, best.standard_error) for result in results[1:]
    )
    if n_near:
        setting = _SAMPLE_SIZE_SETTINGS[estimator]
        warnings.append(
            f"{n_near} other trial{'s are' if n_near > 1 else ' is'} within one standard error of the best, "
            f"so their order is not significant; increase {setting} to separate them"
        )
    return warnings


def _count_distinct_labels(planned_trials: Sequence[Trial]) -> int:
    """Count the distinct labels acquired by all trials, including failed ones."""
    run_folders = [trial.run_folder for trial in planned_trials if trial.run_folder.pool_path.exists()]
    return len({entry.key for run_folder in run_folders for entry in load_ledger(run_folder).entries()})


def _load_results(path: Path, criterion: Mapping[str, Any]) -> dict[str, TrialResult]:
    """Load the results of an earlier call with the same criterion."""
    if not path.exists():
        return {}
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["criterion"] != criterion:
            return {}
        return {result["name"]: TrialResult(**result) for result in saved["trials"]}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is corrupt; remove it to score the trials again") from None


def _write_results(
    path: Path,
    criterion: Mapping[str, Any],
    results: Sequence[TrialResult],
    failed: Mapping[str, str],
    summary: Mapping[str, Any],
) -> None:
    ranked = [asdict(result) for result in sorted(results, key=lambda result: result.risk)]
    text = {"criterion": criterion, **summary, "trials": ranked, "failed": failed}
    write_text_atomically(path, json.dumps(text, indent=1) + "\n")
