"""Label propagation (Zhou et al., NeurIPS 2003) over the pool: acquired labels label similar images."""

import math

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

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

SIMILARITIES_PER_CHUNK = 2**24
TOLERANCE = 1e-3


class LabelPropagation(AuxiliaryModule):
    """Pseudo-label the images that propagation is most certain of."""

    labels: Tensor
    shardable = True

    def __init__(
        self,
        context: AuxiliaryContext,
        *,
        rate: float,
        max_fraction: float = 0.5,
        neighbours: int = 10,
        alpha: float = 0.9,
        prior: float = 0.2,
        every_epoch: bool = False,
    ) -> None:
        super().__init__()
        self.rate, self.max_fraction = rate, max_fraction
        self.neighbours, self.alpha, self.prior, self.every_epoch = neighbours, alpha, prior, every_epoch
        if rate and context.per_pixel:
            raise UserError("label propagation labels whole images, not pixels; set objective.params.propagation_rate=0")
        if rate:
            require_feature_width(context, "label propagation")
            self.register_buffer("labels", torch.full((context.pool_size,), UNLABELLED))

    def is_due(self, context: RefreshContext) -> bool:
        """Before each round but the first, and between the epochs after the last."""
        if not self.rate or not context.rounds_done:
            return False
        return self.every_epoch or context.next_round > 0 or context.rounds_done == context.rounds

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        assert full_pass.pool_labels is not None
        outputs = [
            (index.cpu(), expected_probability(o.z).float().cpu(), features_of(o).flatten(1).float())
            for index, o in full_pass.pool()
        ]
        index, p, features = (torch.cat(column) for column in zip(*outputs, strict=True))
        order = index.argsort()
        p, features, known = p[order], features[order.to(features.device)], full_pass.pool_labels.cpu()
        scores = propagate_labels(features, p, known, self.neighbours, self.alpha, self.prior)
        certainty, predicted = (scores / scores.sum(1, keepdim=True).clamp(min=1e-12)).max(1)
        open_ = (known == UNLABELLED).nonzero().squeeze(1)
        count = round(min(self.rate * context.rounds_done, self.max_fraction) * len(known))
        chosen = open_[most_certain_per_class(-certainty[open_], predicted[open_], count)]
        labels = torch.full((len(known),), UNLABELLED)
        labels[chosen] = predicted[chosen]
        self.labels.copy_(labels)

    def pseudo_labels(self) -> Tensor | None:
        return self.labels if self.rate else None


def propagate_labels(features: Tensor, p: Tensor, known: Tensor, neighbours: int, alpha: float, prior: float) -> Tensor:
    directions = F.normalize(features.double() if len(features) < 5000 else features)
    n = len(directions)
    neighbours = min(neighbours, n - 1)
    size = max(1, SIMILARITIES_PER_CHUNK // n)
    values, indices = [], []
    for start in range(0, n, size):
        block = directions[start : start + size] @ directions.T
        rows = torch.arange(len(block), device=block.device)
        block[rows, rows + start] = -1.0
        top = block.topk(neighbours, 1)
        values.append(top.values.clamp(min=0).cpu())
        indices.append(top.indices.cpu())
    weight = (torch.cat(values).double() ** 3).numpy().reshape(-1)
    column = torch.cat(indices).numpy().reshape(-1)
    row = np.repeat(np.arange(n), neighbours)
    graph = sparse.csr_matrix((weight, (row, column)), shape=(n, n))
    graph = graph.maximum(graph.T)
    degree = np.asarray(graph.sum(1)).ravel()
    scale = sparse.diags_array(1 / np.sqrt(np.maximum(degree, 1e-9)))
    graph = (scale @ graph @ scale).tocsr()
    start_scores = prior * p.double()
    bought = known >= 0
    start_scores[bought] = F.one_hot(known[bought].long(), p.shape[1]).double()
    y = start_scores.numpy()
    scores = y.copy()
    for _ in range(math.ceil(math.log(TOLERANCE) / math.log(alpha))):
        scores = alpha * (graph @ scores) + (1 - alpha) * y
    return torch.from_numpy(scores)
