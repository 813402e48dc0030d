"""Gain of a run over its first stage and over random selection, with confidence intervals."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from ducats.records import Record
from ducats.report.kinds import IMAGES
from ducats.report.provenance import flat
from ducats.report.read import Run, number

NORMAL = 1.959964  # 97.5% quantile of the standard normal distribution
RANDOM = "random"  # name of the query and of the method with random selection


@dataclass(frozen=True)
class Band:
    """A 95% confidence interval of a score difference, and its basis in words."""

    low: float
    high: float
    by: str


@dataclass(frozen=True)
class Gain:
    """A run's score before the first labels and after the last.

    Args:
        before: in [0, 1].
        after: in [0, 1].
        labels: number of labels acquired in between.
        band: interval of the difference; None if estimating it takes more seeds.
    """

    before: float
    after: float
    labels: int
    band: Band | None

    @property
    def points(self) -> float:
        """``after - before``, in [-1, 1]."""
        return self.after - self.before


@dataclass(frozen=True)
class Against:
    """Comparison of a run's method with a random-selection method on the same data, at equal label counts.

    Args:
        method: name of the random-selection method.
        difference: score of the run's method minus that of ``method``, averaged over the pairs.
        pairs: number of pairs of runs with the same seed.
        band: interval of the difference; None if estimating it takes more seeds.
        alike: whether both have the same settings except for the query.
    """

    method: str
    difference: float
    pairs: int
    band: Band | None
    alike: bool


def gain(run: Run) -> Gain | None:
    """Compute the gain of a run; None if fewer than two stages were evaluated."""
    key = run.kind.headline
    measured = [stage for stage in run.stages if number(stage, key) is not None]
    if len(measured) < 2:
        return None
    first, last = measured[0], measured[-1]
    labels = int(last["labels"] - first["labels"])
    return Gain(float(first[key]), float(last[key]), labels, _by_test_set(run, first, last))


def against_random(run: Run, others: Sequence[Run]) -> list[Against]:
    """Compare a run with each random-selection method; methods with the same training come last.

    With two or more shared seeds, the interval is that of the mean paired difference. Otherwise it is the
    interval of two proportions of correct predictions, which does not cover the variance over seeds.
    """
    if run.result is None or run.result["labels"] == 0 or picks_at_random(run):
        return []
    labels = run.result["labels"]
    found: dict[str, dict[int, Record]] = {}
    methods: dict[str, Run] = {}
    for other in others:
        if other.method != run.method and picks_at_random(other) and same_data(run, other):
            record = _at(other, labels)
            if record is not None:
                found.setdefault(other.method, {}).setdefault(other.seed, record)
                methods.setdefault(other.method, other)
    ours = {run.seed: run.result}
    for mate in others:
        mates = mate.method == run.method and flat(mate.config) == flat(run.config)
        if mates and same_data(run, mate) and (record := _at(mate, labels)) is not None:
            ours.setdefault(mate.seed, record)
    compared = [
        _compare(run, ours, method, theirs, alike=_all_but_query(methods[method]) == _all_but_query(run))
        for method, theirs in found.items()
    ]
    return sorted(compared, key=lambda one: one.alike)


def picks_at_random(run: Run) -> bool:
    """Return whether the run selects samples at random."""
    query = run.config.get("query")
    return (query.get("name") if isinstance(query, dict) else run.method) == RANDOM


def same_data(run: Run, other: Run) -> bool:
    """Return whether both runs have the same source, pool and test set, as far as recorded."""
    if run.kind != other.kind:
        return False
    if run.data and other.data:
        return run.data == other.data
    return run.config.get("data") == other.config.get("data")


def _compare(
    run: Run, ours: dict[int, Record], method: str, theirs: dict[int, Record], *, alike: bool
) -> Against:
    key = run.kind.headline
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) > 1:
        differences = [ours[seed][key] - theirs[seed][key] for seed in shared]
        return Against(method, statistics.fmean(differences), len(shared), _by_seeds(differences), alike)
    mine, other = ours[run.seed], theirs.get(run.seed, theirs[min(theirs)])
    return Against(method, mine[key] - other[key], len(shared), _by_test_set(run, other, mine), alike)


def _by_seeds(differences: Sequence[float]) -> Band:
    many = len(differences)
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    reach = float(stdtrit(many - 1, 0.975)) * deviation / math.sqrt(many)
    return Band(mean - reach, mean + reach, f"over {many} shared seeds")


def _by_test_set(run: Run, first: Record, last: Record) -> Band | None:
    """Return the Agresti-Caffo interval; None for segmentation, where pixels are not independent."""
    counts = [number(record, "images") or 0 for record in (first, last)]
    if run.kind != IMAGES or not all(counts):
        return None
    pairs = list(zip((first, last), counts, strict=True))
    shares = [(record["accuracy"] * count + 1) / (count + 2) for record, count in pairs]
    variance = sum(p * (1 - p) / (count + 2) for p, count in zip(shares, counts, strict=True))
    middle, reach = shares[1] - shares[0], NORMAL * math.sqrt(variance)
    many = " and ".join(f"{count:,.0f}" for count in dict.fromkeys(counts))
    return Band(middle - reach, middle + reach, f"from {many} evaluated images")


def _at(run: Run, labels: int) -> Record | None:
    """Return the latest evaluated stage with ``labels`` labels."""
    key = run.kind.headline
    known = [stage for stage in run.stages if stage["labels"] == labels and number(stage, key) is not None]
    return known[-1] if known else None


def _all_but_query(run: Run) -> dict[str, str]:
    return {key: value for key, value in flat(run.config).items() if key.partition(".")[0] != "query"}
