"""What is kept of a pool while it streams by, and how the picks are chosen of what was kept."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ducats import queries
from ducats.config import Config
from ducats.criteria import columns_of
from ducats.errors import UserError
from ducats.queries.two_round import two_round_needs
from ducats.randomness import draw_per_address, fork
from ducats.rows import Rows, Slate, ask
from ducats.selection import Scored, merge, two_rounds

KAPPA = 10.0  # times the budget are kept for a second look, by default
LUCK = "luck"  # a drawn number instead of a criterion

# By which column each is ranked; a minus where the lowest come first.
RANKED: Mapping[str, str] = {
    "u_dis": "u_dis",
    "u_data": "u_data",
    "entropy": "entropy",
    "margin": "-margin",
    "least_confident": "-confidence",
    "random": LUCK,
}
CLUSTERED = ("spread", "clue", "badge", "coreset")  # they look at what the last layer sees
QUERIES = ("duc", *RANKED, *CLUSTERED)


@dataclass(frozen=True)
class Plan:
    """A query as a stream can be asked it."""

    query: str
    budget: int  # labels
    keep: int  # rows that each part keeps, and that are left when all parts are merged
    first: str  # the column whose highest are kept
    second: str | None = None  # DUC's second round
    knobs: Mapping[str, Any] = field(default_factory=dict)  # of a query that clusters

    @property
    def features(self) -> bool:
        """Whether what is kept needs its features."""
        return self.query in CLUSTERED


def make_plan(
    config: Config, query: str, budget: int, *, kappa: float | None = None, pool: int | None = None
) -> Plan:
    """What to keep for a query, with the run's knobs if it is the run's own query, or else the defaults.

    Args:
        config: of the run.
        query: one of ``QUERIES``.
        budget: labels to spend.
        kappa: how many times the budget pass the first round (`duc`), are clustered (`spread`), or are
            candidates at all (`clue`, `badge`, `coreset`); None: as the knobs say, or 10.
        pool: samples in all, if known; where the run's `duc` has a share, it is one of these.
    """
    if query not in QUERIES:
        raise UserError(f"--query {query} cannot be asked of a stream; there are: {', '.join(QUERIES)}")
    if kappa is not None and (not 1 <= kappa < math.inf or query in RANKED):
        raise UserError(
            f"--kappa {kappa:g} does not go with --query {query}: leave it out"
            if query in RANKED
            else f"--kappa must be a number of at least 1, not {kappa:g}: the first round feeds the second"
        )
    if query in RANKED:
        return Plan(query, budget, budget, RANKED[query])
    knobs = dict(config.query.knobs) if config.query.name == query else {}
    times = kappa if kappa is not None else float(knobs.get("kappa", KAPPA))
    if query == "duc":
        return _duc(knobs, budget, times, pool)
    keep, first = max(math.ceil(times * budget - 1e-9), budget), "entropy"
    if query == "spread":
        knobs["kappa"], first = times, knobs.get("candidates", "entropy")
        first = "-margin" if first == "margin" else first
    if queries.QUERIES[query].bound(knobs).source:
        raise UserError(
            f"the run's query {query!r} looks at the source's images, which are not in a pool: score with "
            "another --query"
        )
    return Plan(query, budget, keep, first, knobs=knobs)


def own_query(config: Config) -> str:
    """A run's own query, if a stream can be asked it; DUC's, if not."""
    return config.query.name if config.query.name in QUERIES else "duc"


def needs_the_pools_size(config: Config, query: str) -> bool:
    """Whether a plan depends on how many samples there are, whatever the budget."""
    return query == "duc" == config.query.name and config.query.knobs.get("share") is not None


def _duc(knobs: Mapping[str, Any], budget: int, kappa: float, pool: int | None) -> Plan:
    distribution, data = two_round_needs(knobs)
    in_turn = (distribution, data) if knobs.get("order", "dis_data") == "dis_data" else (data, distribution)
    share = knobs.get("share")
    wanted = kappa * budget
    if share is not None:
        if pool is None:
            raise ValueError("a share of a pool whose size is not known")
        wanted = kappa * share * pool
    return Plan("duc", budget, max(math.ceil(wanted - 1e-9), budget), *in_turn)


def scores(plan: Plan, z: Tensor, number: Tensor, seed: int) -> dict[str, Tensor]:
    """The columns ``first`` and, if there is one, ``second``: ``(N,)`` each, high where a label is worth it.

    Args:
        plan: names them.
        z: log alpha, ``(N, C)``.
        number: places in the pool, ``(N,)``.
        seed: for the luck of `random`, which depends on the place alone.
    """
    columns = {"first": _score(plan.first, z, number, seed)}
    if plan.second is not None:
        columns["second"] = _score(plan.second, z, number, seed)
    return columns


def _score(name: str, z: Tensor, number: Tensor, seed: int) -> Tensor:
    if name == LUCK:
        return draw_per_address(fork(seed, "score", "random"), number, torch.zeros_like(number))
    plain = name.removeprefix("-")
    column = columns_of(z, None, (plain,))[plain]
    return column if plain == name else -column


def choose(plan: Plan, kept: Scored, known: Scored, seed: int) -> Scored:
    """The picks, in order, of what all parts kept.

    Args:
        plan: the query.
        kept: the ``plan.keep`` best of the pool, or all if there are fewer.
        known: rows whose labels were bought, with their features, if the query looks at those.
        seed: the query's randomness.
    """
    if plan.second is not None:
        return two_rounds(kept, "first", "second", plan.keep, min(plan.budget, plan.keep))
    if not plan.features:
        return merge([kept], "first", plan.budget)
    kept, known = (some[np.argsort(some.key, kind="stable")] for some in (kept, known))
    strategy = queries.QUERIES[plan.query].bound(plan.knobs)
    # Addresses are places in the order of keys: so ties go to the lower key here, too.
    candidates, labelled = _rows(kept, strategy.needs, 0), _rows(known, strategy.needs, len(kept))
    generator = fork(seed, "score", plan.query)
    slate = Slate(candidates, labelled, min(plan.budget, len(kept)), generator)
    return kept[ask(strategy.query, slate).numpy()]


def _rows(some: Scored, needs: tuple[str, ...], start: int) -> Rows:
    image = torch.arange(start, start + len(some))
    columns = {}
    if len(some):
        z, features = (torch.from_numpy(some.columns[name]) for name in ("z", "features"))
        columns = columns_of(z, features, needs)
    return Rows(image, torch.zeros_like(image), columns)
