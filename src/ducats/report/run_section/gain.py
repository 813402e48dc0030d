"""Gain of a run over its first stage and over random selection, with confidence intervals."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from ducats.report.provenance import flatten_config
from ducats.report.run_kinds import CLASSIFICATION
from ducats.report.run_reader import Run
from ducats.runfolder.records import Record, finite_number

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
    """A run's score before the first labels and after the last."""

    before: float
    after: float
    labels: int  # number of labels acquired in between
    interval: ConfidenceInterval | None  # interval of the difference; None if estimating it takes more seeds

    @property
    def difference(self) -> float:
        """``after - before``, in [-1, 1]."""
        return self.after - self.before


@dataclass(frozen=True)
class RandomComparison:
    """Comparison of a run's method with a random-selection method on the same data, at equal label counts."""

    method: str  # name of the random-selection method
    difference: float  # score of the run's method minus that of `method`, averaged over the pairs
    n_pairs: int  # number of pairs of runs with the same seed
    interval: ConfidenceInterval | None  # interval of the difference; None if estimating it takes more seeds
    same_training: bool  # whether both have the same settings except for the query


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
    own_records = {run.seed: run.result}
    for other in others:
        record = _stage_with_labels(other, labels) if has_same_data(run, other) else None
        if record is None:
            continue
        if other.method != run.method and selects_at_random(other):
            random_records.setdefault(other.method, {}).setdefault(other.seed, record)
            first_run_by_method.setdefault(other.method, other)
        elif other.method == run.method and flatten_config(other.config) == flatten_config(run.config):
            own_records.setdefault(other.seed, record)
    own_settings = _settings_without_query(run)
    comparisons = []
    for method, method_records in random_records.items():
        same_training = _settings_without_query(first_run_by_method[method]) == own_settings
        comparisons.append(_compare(run, own_records, method, method_records, same_training))
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
    same_training: bool,
) -> RandomComparison:
    key = run.kind.headline_metric
    shared_seeds = sorted(own_records.keys() & other_records.keys())
    if len(shared_seeds) > 1:
        differences = [own_records[seed][key] - other_records[seed][key] for seed in shared_seeds]
        mean, interval = statistics.fmean(differences), _paired_t_interval(differences)
        return RandomComparison(method, mean, len(shared_seeds), interval, same_training)
    own = own_records[run.seed]
    other = other_records.get(run.seed, other_records[min(other_records)])
    single_interval = _agresti_caffo_interval(run, other, own)
    return RandomComparison(method, own[key] - other[key], len(shared_seeds), single_interval, same_training)


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
    before, after = (shrunk_proportion(r["accuracy"], n) for r, n in zip((first, last), counts, strict=True))
    middle, half_width = after[0] - before[0], NORMAL_QUANTILE_975 * math.sqrt(before[1] + after[1])
    basis = f"from {' and '.join(f'{count:,.0f}' for count in dict.fromkeys(counts))} evaluated images"
    return ConfidenceInterval(middle - half_width, middle + half_width, basis)


def shrunk_proportion(share: float, count: float) -> tuple[float, float]:
    """Return a proportion with one success and one failure added (Agresti and Caffo), and its variance."""
    shrunk = (share * count + 1) / (count + 2)
    return shrunk, shrunk * (1 - shrunk) / (count + 2)


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
