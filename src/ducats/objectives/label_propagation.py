"""Label propagation (Zhou et al., NeurIPS 2003): acquired labels pseudo-label similar images of the pool."""

import inspect
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from ducats.acquisition.queries.distances import nearest_neighbours
from ducats.data.domain import UNLABELLED
from ducats.dirichlet import expected_probability
from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    FullPass,
    RefreshContext,
    features_of,
    require_feature_width,
)
from ducats.objectives.certainty_sampling import most_certain_per_class
from ducats.utils.errors import UserError

SOLVER_TOLERANCE = 1e-6  # of the scores, relative to the labels
CLASSES_PER_CHUNK = 64  # classes that are propagated at once
ESTIMATE_AFTER_SECONDS = 5.0  # of the neighbour search, before its time is estimated
LONG_WAIT_SECONDS = 60.0  # estimated times above this are announced


class LabelPropagation(AuxiliaryModule):
    """Pseudo-label the images that label propagation is most certain of, balanced over the classes.

    Before each round but the first, and after each epoch that follows the last round, the pseudo-labels are
    replaced by new ones. With a rate of zero it does nothing and has no state.

    Args:
        propagation_rate: fraction of the pool that is pseudo-labelled for each completed round; 0 disables
            label propagation.
        propagation_neighbours: number of nearest neighbours of an image in the graph.
        propagation_alpha: weight of the neighbours; the rest is the weight of the image's own label or
            prediction.
        propagation_prior: weight of the prediction of an unlabelled image; acquired labels have weight 1.
        propagation_max: maximum fraction of the pool that is pseudo-labelled.
    """

    labels: Tensor
    shardable = True

    def __init__(
        self,
        context: AuxiliaryContext,
        *,
        propagation_rate: float = 0.0,
        propagation_neighbours: int = 10,
        propagation_alpha: float = 0.9,
        propagation_prior: float = 0.2,
        propagation_max: float = 0.5,
    ) -> None:
        super().__init__()
        if not 0 <= propagation_rate <= 1 or not 0 <= propagation_max <= 1:
            raise ValueError(
                "fractions of the pool must be between 0 and 1, not "
                f"propagation_rate={propagation_rate}, propagation_max={propagation_max}"
            )
        if propagation_neighbours < 1 or int(propagation_neighbours) != propagation_neighbours:
            raise ValueError(
                "objective.params.propagation_neighbours must be an integer of at least 1, "
                f"not {propagation_neighbours}"
            )
        if not 0 < propagation_alpha < 1:
            raise ValueError(
                "objective.params.propagation_alpha must be between 0 and 1, both excluded, "
                f"not {propagation_alpha}"
            )
        if not 0 <= propagation_prior <= 1:
            raise ValueError(
                f"objective.params.propagation_prior must be between 0 and 1, not {propagation_prior}"
            )
        if propagation_rate and context.per_pixel:
            raise UserError(
                "label propagation labels whole images, not pixels; set objective.params.propagation_rate=0"
            )
        self.rate, self.max_fraction = propagation_rate, propagation_max
        self.neighbours = int(propagation_neighbours)
        self.alpha, self.prior = propagation_alpha, propagation_prior
        if propagation_rate:
            require_feature_width(context, "label propagation")
            self.register_buffer("labels", torch.full((context.pool_size,), UNLABELLED))

    def is_due(self, context: RefreshContext) -> bool:
        """Return True before each round but the first, and between the epochs after the last."""
        if not self.rate or not context.rounds_done:
            return False
        return context.next_round > 0 or context.rounds_done == context.rounds

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        """Replace the pseudo-labels by those of the images that propagation is most certain of."""
        assert full_pass.pool_labels is not None
        known = full_pass.pool_labels.cpu().long()
        labels = torch.full_like(known, UNLABELLED)
        if bool((known >= 0).any()):
            scores = self._scores(full_pass, known)
            (highest, predicted), total = scores.max(1), scores.sum(1)
            certainty = highest / total
            # Without a prior, there are no scores where no label is connected.
            open_ = ((known == UNLABELLED) & (total > 0)).nonzero().squeeze(1)
            count = round(min(self.rate * context.rounds_done, self.max_fraction) * len(known))
            chosen = open_[most_certain_per_class(-certainty[open_], predicted[open_], count)]
            labels[chosen] = predicted[chosen]
        self.labels.copy_(labels)

    def pseudo_labels(self) -> Tensor | None:
        """Return the pseudo-labels; None if the rate is zero."""
        return self.labels if self.rate else None

    def _scores(self, full_pass: FullPass, known: Tensor) -> Tensor:
        """Propagate over the pool; the features stay on the device of the model."""
        p = features = torch.zeros(0)
        for index, output in full_pass.pool():
            batch = features_of(output).flatten(1)
            if not len(features):
                p = torch.zeros(len(known), output.z.shape[1])
                features = torch.zeros(len(known), batch.shape[1], device=batch.device)
            p[index.cpu()] = expected_probability(output.z).float().cpu()
            features[index.to(features.device)] = batch.float()
        return propagate_labels(
            features, p, known, neighbours=self.neighbours, alpha=self.alpha, prior=self.prior
        )


def propagate_labels(
    features: Tensor, p: Tensor, known: Tensor, *, neighbours: int, alpha: float, prior: float
) -> Tensor:
    """Compute the scores ``F = (1 - alpha) (I - alpha S)^-1 Y`` of all images and classes, ``(N, C)``.

    ``S`` is `neighbour_graph`. A row of ``Y`` is one-hot for an acquired label, ``prior * p`` without one,
    and zero for an image that has no class.

    Args:
        features: ``(N, D)``; the neighbours are searched on their device.
        p: predicted probabilities, ``(N, C)``.
        known: acquired labels, UNLABELLED or VOID, ``(N,)``.
        neighbours: number of nearest neighbours in the graph.
    """
    graph = neighbour_graph(features, neighbours)
    y = torch.where((known == UNLABELLED)[:, None], prior * p, 0.0)
    labelled = (known >= 0).nonzero().squeeze(1)
    y[labelled, known[labelled]] = 1.0
    for part in y.split(CLASSES_PER_CHUNK, 1):  # in place: there may be many images and classes
        part.copy_(torch.from_numpy(solve(graph, np.ascontiguousarray(part), alpha)))
    return y


def neighbour_graph(features: Tensor, neighbours: int) -> sparse.csr_array:
    """Return the normalised graph of nearest neighbours, ``D^-1/2 W D^-1/2``, in float32.

    ``W`` has the cubed cosine of the features where one image is among the nearest neighbours of the other;
    negative cosines count as zero. ``D`` are the row sums. An image without edges has a row of zeros.
    """
    n, started, announced = len(features), time.monotonic(), False
    columns, weights, n_done = [], [], 0
    every_image = torch.arange(n, device=features.device)
    for indices, cosine in nearest_neighbours(F.normalize(features.float()), every_image, neighbours):
        columns.append(indices.cpu().numpy())
        weights.append(cosine.clamp(min=0).cpu().numpy().astype(np.float64) ** 3)
        n_done += len(indices)
        elapsed = time.monotonic() - started
        if not announced and elapsed >= ESTIMATE_AFTER_SECONDS:
            announced = True
            _announce(n, elapsed * n / n_done)
    column, weight = np.concatenate(columns), np.concatenate(weights)
    first = np.arange(n + 1) * column.shape[1]
    graph = sparse.csr_array((weight.reshape(-1), column.reshape(-1), first), shape=(n, n))
    graph.eliminate_zeros()
    graph = graph.maximum(graph.T).tocsr()
    degree = graph.sum(1)
    scale = np.divide(1.0, np.sqrt(degree), out=np.zeros(n), where=degree > 0)
    graph.data *= np.repeat(scale, np.diff(graph.indptr)) * scale[graph.indices]
    return graph.astype(np.float32)


def solve(graph: sparse.csr_array, y: npt.NDArray[np.float32], alpha: float) -> npt.NDArray[np.float32]:
    """Solve ``(I - alpha S) F = (1 - alpha) Y`` by the Chebyshev semi-iterative method.

    The eigenvalues of ``S`` are between -1 and 1, so the number of iterations for `SOLVER_TOLERANCE` is
    known: 32 for an alpha of 0.9.
    """
    rate = alpha / (1 + math.sqrt(1 - alpha**2))  # of the error, per iteration
    iterations = math.ceil(math.log(SOLVER_TOLERANCE / 2) / math.log(rate))
    constant = np.float32(1 - alpha) * y
    previous, omega = y, 2.0
    scores: npt.NDArray[np.float32] = np.float32(alpha) * (graph @ y) + constant
    for _ in range(iterations - 1):
        omega = 1 / (1 - alpha**2 * omega / 4)
        update = graph @ scores
        update *= np.float32(alpha)
        update += constant
        update -= previous
        update *= np.float32(omega)
        update += previous
        previous, scores = scores, update
    return scores


def with_label_propagation(build: Callable[..., AuxiliaryModule]) -> Callable[..., AuxiliaryModule]:
    """Add the parameters of `LabelPropagation` to a builder of certainty sampling, which it replaces.

    Setting both rates is an error, unless one is zero.
    """
    own, added = (list(inspect.signature(f).parameters.values()) for f in (build, LabelPropagation))

    def build_either(context: AuxiliaryContext, **params: Any) -> AuxiliaryModule:
        builder: Callable[..., AuxiliaryModule] = build
        if params.get("propagation_rate"):
            builder = LabelPropagation
            if params.get("certainty_rate"):
                raise UserError(
                    "certainty sampling and label propagation would both label the pool; set "
                    "objective.params.certainty_rate=0 or objective.params.propagation_rate=0"
                )
        accepted = inspect.signature(builder).parameters
        return builder(context, **{name: value for name, value in params.items() if name in accepted})

    build_either.__signature__ = inspect.Signature([*own, *added[1:]])  # type: ignore[attr-defined]
    return build_either


def _announce(n_images: int, seconds: float) -> None:
    """Warn before a long wait."""
    if seconds > LONG_WAIT_SECONDS:
        warnings.warn(
            f"label propagation compares {n_images:,} images with each other, which takes about "
            f"{math.ceil(seconds / 60)} minutes before each further round and after each epoch that follows "
            "the last; to train without it, set objective.params.propagation_rate=0",
            stacklevel=2,
        )
