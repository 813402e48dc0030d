"""Gain of a run over its first stage and over random selection, with confidence intervals."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from ducats.report.provenance import flatten_config
from ducats.report.run_kinds import CLASSIFICATION
from ducats.report.run_reader import Run, finite_number
from ducats.runfolder.records import Record

NORMAL_QUANTILE_975 = 1.959964  # 97.5% quantile of the standard normal distribution
RANDOM_QUERY = "random"  # name of the query and of the method with random selection


@dataclass(frozen=True)
class ConfidenceInterval:
    """A 95% confidence interval of a score difference, and its basis in words."""

    low: float
    high: float
    basis: str


@dataclass(frozen=True)
class Gain:
    """A run's score before the first labels and after the last.

    Args:
        before: in [0, 1].
        after: in [0, 1].
        labels: number of labels acquired in between.
        interval: interval of the difference; None if estimating it takes more seeds.
    """

    before: float
    after: float
    labels: int
    interval: ConfidenceInterval | None

    @property
    def difference(self) -> float:
        """``after - before``, in [-1, 1]."""
        return self.after - self.before


@dataclass(frozen=True)
class RandomComparison:
    """Comparison of a run's method with a random-selection method on the same data, at equal label counts.

    Args:
        method: name of the random-selection method.
        difference: score of the run's method minus that of ``method``, averaged over the pairs.
        n_pairs: number of pairs of runs with the same seed.
        interval: interval of the difference; None if estimating it takes more seeds.
        same_training: whether both have the same settings except for the query.
    """

    method: str
    difference: float
    n_pairs: int
    interval: ConfidenceInterval | None
    same_training: bool


def compute_gain(run: Run) -> Gain | None:
    """Compute the gain of a run; None if fewer than two stages were evaluated."""
    key = run.kind.headline_metric
    evaluated_stages = [stage for stage in run.stages if finite_number(stage, key) is not None]
    if len(evaluated_stages) < 2:
        return None
    first, last = evaluated_stages[0], evaluated_stages[-1]
    labels = int(last["labels"] - first["labels"])
    return Gain(float(first[key]), float(last[key]), labels, _agresti_caffo_interval(run, first, last))


def compare_with_random(run: Run, others: Sequence[Run]) -> list[RandomComparison]:
    """Compare a run with each random-selection method; methods with the same training come last.

    With two or more shared seeds, the interval is that of the mean paired difference. Otherwise it is the
    interval of two proportions of correct predictions, which does not cover the variance over seeds.
    """
    if run.result is None or run.result["labels"] == 0 or selects_at_random(run):
        return []
    labels = run.result["labels"]
    random_records: dict[str, dict[int, Record]] = {}
    first_run_by_method: dict[str, Run] = {}
    for other in others:
        if other.method != run.method and selects_at_random(other) and has_same_data(run, other):
            record = _stage_with_labels(other, labels)
            if record is not None:
                random_records.setdefault(other.method, {}).setdefault(other.seed, record)
                first_run_by_method.setdefault(other.method, other)
    own_records = {run.seed: run.result}
    for sibling in others:
        is_sibling = sibling.method == run.method and flatten_config(sibling.config) == flatten_config(
            run.config
        )
        if (
            is_sibling
            and has_same_data(run, sibling)
            and (record := _stage_with_labels(sibling, labels)) is not None
        ):
            own_records.setdefault(sibling.seed, record)
    comparisons = [
        _compare(
            run,
            own_records,
            method,
            method_records,
            same_training=_settings_without_query(first_run_by_method[method])
            == _settings_without_query(run),
        )
        for method, method_records in random_records.items()
    ]
    return sorted(comparisons, key=lambda comparison: comparison.same_training)


def selects_at_random(run: Run) -> bool:
    """Return whether the run selects samples at random."""
    query = run.config.get("query")
    return (query.get("name") if isinstance(query, dict) else run.method) == RANDOM_QUERY


def has_same_data(run: Run, other: Run) -> bool:
    """Return whether both runs have the same source, pool and test set, as far as recorded."""
    if run.kind != other.kind:
        return False
    if run.data and other.data:
        return run.data == other.data
    return run.config.get("data") == other.config.get("data")


def _compare(
    run: Run,
    own_records: dict[int, Record],
    method: str,
    other_records: dict[int, Record],
    *,
    same_training: bool,
) -> RandomComparison:
    key = run.kind.headline_metric
    shared_seeds = sorted(own_records.keys() & other_records.keys())
    if len(shared_seeds) > 1:
        differences = [own_records[seed][key] - other_records[seed][key] for seed in shared_seeds]
        return RandomComparison(
            method,
            statistics.fmean(differences),
            len(shared_seeds),
            _paired_t_interval(differences),
            same_training,
        )
    own = own_records[run.seed]
    other = other_records.get(run.seed, other_records[min(other_records)])
    return RandomComparison(
        method,
        own[key] - other[key],
        len(shared_seeds),
        _agresti_caffo_interval(run, other, own),
        same_training,
    )


def _paired_t_interval(differences: Sequence[float]) -> ConfidenceInterval:
    n_seeds = len(differences)
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    half_width = float(stdtrit(n_seeds - 1, 0.975)) * deviation / math.sqrt(n_seeds)
    return ConfidenceInterval(mean - half_width, mean + half_width, f"over {n_seeds} shared seeds")


def _agresti_caffo_interval(run: Run, first: Record, last: Record) -> ConfidenceInterval | None:
    """Return the Agresti-Caffo interval; None for segmentation, where pixels are not independent."""
    counts = [finite_number(record, "images") or 0 for record in (first, last)]
    if run.kind != CLASSIFICATION or not all(counts):
        return None
    pairs = list(zip((first, last), counts, strict=True))
    proportions = [(record["accuracy"] * count + 1) / (count + 2) for record, count in pairs]
    variance = sum(p * (1 - p) / (count + 2) for p, count in zip(proportions, counts, strict=True))
    middle, half_width = proportions[1] - proportions[0], NORMAL_QUANTILE_975 * math.sqrt(variance)
    counts_text = " and ".join(f"{count:,.0f}" for count in dict.fromkeys(counts))
    return ConfidenceInterval(
        middle - half_width, middle + half_width, f"from {counts_text} evaluated images"
    )


def _stage_with_labels(run: Run, labels: int) -> Record | None:
    """Return the latest evaluated stage with ``labels`` labels."""
    key = run.kind.headline_metric
    evaluated_stages = [
        stage for stage in run.stages if stage["labels"] == labels and finite_number(stage, key) is not None
    ]
    return evaluated_stages[-1] if evaluated_stages else None


def _settings_without_query(run: Run) -> dict[str, str]:
    return {
        key: value for key, value in flatten_config(run.config).items() if key.partition(".")[0] != "query"
    }
