"""What a run's labels brought, against none and against random ones, and how sure that is."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from ducats.records import Record
from ducats.report.kinds import IMAGES
from ducats.report.provenance import flat
from ducats.report.read import Run, number

NORMAL = 1.959964  # 95% of a normal distribution lie within so many deviations
RANDOM = "random"  # the query, and the method, that picks blindly


@dataclass(frozen=True)
class Band:
    """A 95% interval of a difference of scores; by what it is known, in words."""

    low: float
    high: float
    by: str


@dataclass(frozen=True)
class Gain:
    """A run's score before the first labels and after the last.

    Args:
        before: a share, 0 … 1.
        after: likewise.
        labels: bought in between.
        band: of the difference; none where only more seeds could tell.
    """

    before: float
    after: float
    labels: int
    band: Band | None

    @property
    def points(self) -> float:
        """The difference, a share."""
        return self.after - self.before


@dataclass(frozen=True)
class Against:
    """A run's method against labels picked at random: the same data, as many labels.

    Args:
        method: the other's name.
        difference: of the scores, ours less theirs; a mean where there are several pairs.
        pairs: of runs with the same seed.
        band: of the difference; none where only more seeds could tell.
        alike: whether both train alike, so that nothing but the choice of labels differs.
    """

    method: str
    difference: float
    pairs: int
    band: Band | None
    alike: bool


def gain(run: Run) -> Gain | None:
    """What the run's labels brought; none if it was not measured before the first and after the last."""
    key = run.kind.headline
    measured = [stage for stage in run.stages if number(stage, key) is not None]
    if len(measured) < 2:
        return None
    first, last = measured[0], measured[-1]
    labels = int(last["labels"] - first["labels"])
    return Gain(float(first[key]), float(last[key]), labels, _by_test_set(run, first, last))


def against_random(run: Run, others: Sequence[Run]) -> list[Against]:
    """Compare a run with those that picked at random, method by method, those that train alike last.

    With two seeds or more that both methods have, the band is that of the mean difference; else it is that of
    two counts of right answers, and says nothing about what another seed would change.
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
    """Whether its query is blind."""
    query = run.config.get("query")
    return (query.get("name") if isinstance(query, dict) else run.method) == RANDOM


def same_data(run: Run, other: Run) -> bool:
    """Whether both had the same source, pool and test set, as far as anybody wrote that down."""
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
    return Band(mean - reach, mean + reach, f"over the {many} seeds that both have")


def _by_test_set(run: Run, first: Record, last: Record) -> Band | None:
    """By the number of test images: Agresti and Caffo's interval; pixels of an image are not independent."""
    counts = [number(record, "images") or 0 for record in (first, last)]
    if run.kind != IMAGES or not all(counts):
        return None
    pairs = list(zip((first, last), counts, strict=True))
    shares = [(record["accuracy"] * count + 1) / (count + 2) for record, count in pairs]
    variance = sum(p * (1 - p) / (count + 2) for p, count in zip(shares, counts, strict=True))
    middle, reach = shares[1] - shares[0], NORMAL * math.sqrt(variance)
    many = " and ".join(f"{count:,.0f}" for count in dict.fromkeys(counts))
    return Band(middle - reach, middle + reach, f"by the {many} images it was measured on")


def _at(run: Run, labels: int) -> Record | None:
    """The newest stage with so many labels, if it was measured."""
    key = run.kind.headline
    known = [stage for stage in run.stages if stage["labels"] == labels and number(stage, key) is not None]
    return known[-1] if known else None


def _all_but_query(run: Run) -> dict[str, str]:
    return {key: value for key, value in flat(run.config).items() if key.partition(".")[0] != "query"}
