"""A query and all that the rest of the program must know about it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from ducats.acquisition.criteria import IMAGE_COLUMNS, MODEL_COLUMNS, PROBE_COLUMNS, get_criterion
from ducats.acquisition.samples import QueryContext

QueryFn = Callable[[QueryContext], Tensor]
UNCERTAINTIES = ("u_dis", "u_data")
RANDOM_COLUMN = "random"  # column of uniform random numbers, which only a stream can be ranked by


@dataclass(frozen=True)
class StreamingRule:
    """How `ducats score` selects from a stream: it keeps the samples that rank highest by a column.

    Of these, ``rank`` selects the first, ``two_rounds`` ranks them again by a second column, and
    ``shortlist`` calls the query. A leading minus ranks the lowest values of a column first.
    """

    kind: Literal["rank", "two_rounds", "shortlist"]
    columns: tuple[str, ...]  # one, or two for ``two_rounds``; with default parameters
    columns_fn: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None  # if they depend on parameters
    kappa: float = 10.0  # default number of samples kept, as a multiple of the budget; not for ``rank``

    def columns_for(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the columns for these parameters of the query."""
        return self.columns if self.columns_fn is None else self.columns_fn(params)


@dataclass(frozen=True)
class QuerySpec:
    """A query and its properties.

    The columns are ``z`` (log alpha), ``features`` (the input of the last layer), the criteria of
    `acquisition.criteria` (``entropy``, ``margin``, ``u_dis``, ...), and the outputs of probes, which are
    small networks trained alongside the model: ``domain``, ``critic``, ``committee``.
    """

    fn: Callable[..., Tensor]
    needs: tuple[str, ...] = MODEL_COLUMNS  # with default parameters
    needs_fn: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None  # if they depend on parameters
    source_needs: tuple[str, ...] = ()  # columns of `context.source`; whole images only
    source_needs_fn: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None  # likewise
    needs_head: bool = False  # whether it reads `context.head`, the weights of the last layer
    features_optional: bool = False  # whether it works without ``features`` if the model returns none
    streaming: StreamingRule | None = StreamingRule("shortlist", ("entropy",))  # None: no `ducats score`
    clusters: bool = False  # whether it runs k-means with one cluster per label
    explained_by: tuple[str, ...] = ()  # the `UNCERTAINTIES` that explain a pick to annotators
    reason: str = ""  # otherwise a sentence that explains it, about "this {unit}"; empty: the summary
    search_grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # parameters for `ducats tune`

    def bind(self, params: Mapping[str, Any]) -> "QuerySpec":
        """Return a copy with the parameters bound and the columns resolved."""
        needs = self.needs if self.needs_fn is None else self.needs_fn(params)
        source_needs = self.source_needs if self.source_needs_fn is None else self.source_needs_fn(params)
        fn = partial(self.fn, **params)
        return replace(
            self, fn=fn, needs=needs, needs_fn=None, source_needs=source_needs, source_needs_fn=None
        )

    def for_model(self, *, has_features: bool) -> "QuerySpec":
        """Return the query without optional features if the model returns none."""
        if has_features or not self.features_optional:
            return self
        return replace(self, needs=tuple(name for name in self.needs if name != "features"))

    @property
    def per_pixel(self) -> bool:
        """Whether the query needs per-pixel outputs, so that it works in segmentation only."""
        criteria_names = [name for name in self.needs if name not in (*MODEL_COLUMNS, *PROBE_COLUMNS)]
        return any(name in IMAGE_COLUMNS or get_criterion(name).per_pixel for name in criteria_names)

    @property
    def streaming_rule(self) -> StreamingRule | None:
        """The rule of `ducats score`, which has only the model; None if the query cannot be streamed."""
        needs_more = self.source_needs or self.needs_head or self.per_pixel
        return None if needs_more or set(self.needs) & set(PROBE_COLUMNS) else self.streaming

    @property
    def summary(self) -> str:
        """First line of the query's docstring."""
        return (self.fn.__doc__ or "no description").strip().splitlines()[0]

    @property
    def params_text(self) -> str:
        """Parameters and their defaults, as ``name=default, ...``."""
        parameters = list(inspect.signature(self.fn).parameters.values())[1:]
        return ", ".join(f"{param.name}={param.default}" for param in parameters)


def as_query_spec(query: QueryFn | QuerySpec) -> QuerySpec:
    """Wrap a plain function, which gets all columns of the model; return a `QuerySpec` unchanged."""
    return query if isinstance(query, QuerySpec) else QuerySpec(query, features_optional=True)
