"""Criteria: scores of an image or pixel, computed from its log alpha, that queries select by.

A query names the criteria that it reads, and each becomes a column of its samples. A unit of several pixels
has one value as well; each criterion defines how pixels are aggregated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ducats import dirichlet
from ducats.acquisition.neighbourhoods import window_impurity
from ducats.utils.errors import UserError

MODEL_COLUMNS = ("z", "features")  # columns that the model returns, not criteria


class ProbeColumn(NamedTuple):
    """Column of a probe, a small network trained alongside the model."""

    description: str
    example_shape: tuple[int, ...] = ()  # of one row, for two classes


PROBE_COLUMNS: Mapping[str, ProbeColumn] = MappingProxyType(
    {
        "domain": ProbeColumn("probability of the source domain, from a discriminator: (R,)"),
        "critic": ProbeColumn("score of a Wasserstein critic, higher for unlabelled target images: (R,)"),
        "committee": ProbeColumn(
            "class probabilities of each member of a committee of classifiers: (R, members, C)", (2, 2)
        ),
    }
)

# Columns of whole images in segmentation.
IMAGE_COLUMNS: Mapping[str, str] = MappingProxyType(
    {"descriptor": "mean features of each class predicted in an image: (R, C * D)"}
)


@dataclass(frozen=True)
class Criterion:
    """A value per position, and its aggregation over several positions."""

    fn: Callable[[Tensor], Tensor]  # log alpha (N, C, ...) -> (N, ...)
    # mean; log_mean: log of the mean of exponentials; impurity: entropy of the predicted classes' histogram
    reduction: Literal["mean", "log_mean", "impurity"] = "mean"
    needs_neighbours: bool = False  # whether `fn` reads neighbours and needs whole maps (N, C, H, W)

    @property
    def per_pixel(self) -> bool:
        """Whether it is undefined for an image that is a single row."""
        return self.needs_neighbours or self.reduction == "impurity"


def probability_margin(z: Tensor) -> Tensor:
    """Return the gap between the two highest class probabilities.

    >>> import torch
    >>> probability_margin(torch.tensor([[0.6, 0.3, 0.1]]).log())
    tensor([0.3000])
    """
    probability = dirichlet.expected_probability(z)
    top, winner = probability.max(1, keepdim=True)
    return (top - probability.scatter(1, winner, 0.0).amax(1, keepdim=True)).squeeze(1)


def max_probability(z: Tensor) -> Tensor:
    """Return the highest class probability."""
    return dirichlet.expected_probability(z).amax(1)


def predicted_class(z: Tensor) -> Tensor:
    """Return the most probable class."""
    return z.argmax(1)


def free_energy(z: Tensor) -> Tensor:
    """EADA's free energy ``F = -log sum exp(-E)`` with energies ``E = -z``: high if no class fits."""
    return -z.logsumexp(1)


def energy_gap(z: Tensor) -> Tensor:
    """EADA's min-versus-second-min: lowest energy minus second lowest; near zero if two classes fit."""
    top = z.topk(2, dim=1).values
    return top[:, 1] - top[:, 0]


def epistemic_variance(z: Tensor) -> Tensor:
    """EUQ: class variance due to lack of evidence, ``mean_c p_c (1 - p_c) / (S + 1)``."""
    p, total = dirichlet.expected_probability(z), z.logsumexp(1, keepdim=True)
    return (p * (1 - p) * torch.sigmoid(-total)).mean(1)


def aleatoric_variance(z: Tensor) -> Tensor:
    """EUQ: class variance that evidence does not reduce, ``mean_c p_c (1 - p_c) S / (S + 1)``."""
    p, total = dirichlet.expected_probability(z), z.logsumexp(1, keepdim=True)
    return (p * (1 - p) * torch.sigmoid(total)).mean(1)


def published_u_dis(z: Tensor, *, epsilon: float) -> Tensor:
    """U_dis as in the published code: negative where evidence is large, and noisy near there."""
    probability = dirichlet.expected_probability(z)
    return -(probability * (probability + epsilon).log()).sum(1) - dirichlet.data_uncertainty(z)


def local_impurity(z: Tensor, *, radius: int) -> Tensor:
    """Impurity of the predicted classes in the window around each pixel: ``(N, C, H, W) -> (N, H, W)``."""
    return window_impurity(predicted_class(z), z.shape[1], radius)


CRITERIA: Mapping[str, Criterion] = MappingProxyType(
    {
        "entropy": Criterion(dirichlet.entropy),
        "margin": Criterion(probability_margin),
        "confidence": Criterion(max_probability),
        # The logarithm, because in float32 the value itself underflows where evidence is large.
        "u_dis": Criterion(dirichlet.log_distribution_uncertainty, reduction="log_mean"),
        "u_data": Criterion(dirichlet.data_uncertainty),
        "free_energy": Criterion(free_energy),
        "energy_gap": Criterion(energy_gap),
        "epistemic_variance": Criterion(epistemic_variance),
        "aleatoric_variance": Criterion(aleatoric_variance),
        "impurity": Criterion(predicted_class, reduction="impurity"),  # of the unit that is labelled
    }
)

# Criteria with a parameter in their name, NAME@NUMBER.
PARAMETRISED_CRITERIA: Mapping[str, Callable[[str], Criterion]] = MappingProxyType(
    {
        "published_u_dis": lambda text: Criterion(partial(published_u_dis, epsilon=float(text))),
        "impurity": lambda text: Criterion(partial(local_impurity, radius=int(text)), needs_neighbours=True),
    }
)


def get_criterion(name: str) -> Criterion:
    """Return the criterion of a name; raise ``UserError`` if there is none."""
    if name in CRITERIA:
        return CRITERIA[name]
    if name in IMAGE_COLUMNS:
        raise UserError(
            f"the query needs {name!r}, which exists only for whole images in segmentation; set "
            "task.name=segmentation and task.unit=image, or choose another query.name"
        )
    kind, _, number = name.partition("@")
    try:
        return PARAMETRISED_CRITERIA[kind](number)
    except (KeyError, ValueError):
        known = [
            *MODEL_COLUMNS,
            *PROBE_COLUMNS,
            *CRITERIA,
            *(f"{kind}@NUMBER" for kind in PARAMETRISED_CRITERIA),
        ]
        raise UserError(
            f"the query needs the unknown column {name!r}; choose from: {', '.join(known)}"
        ) from None


def compute_columns(
    z: Tensor, features: Tensor | None, needs: Sequence[str], extras: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Compute the columns in ``needs`` for rows that are images.

    Args:
        z: log alpha, ``(N, C)``.
        features: ``(N, D)``, if the model returns them.
        extras: probe columns by name.

    >>> import torch
    >>> compute_columns(torch.zeros(1, 2), None, ("margin", "entropy"))
    {'margin': tensor([0.]), 'entropy': tensor([0.6931])}
    """
    columns = {}
    for name in needs:
        if name == "z":
            columns[name] = z
        elif name == "features":
            columns[name] = require_features(features)
        elif name in PROBE_COLUMNS:
            columns[name] = require_probe(name, extras)
        elif (found := get_criterion(name)).per_pixel:
            raise UserError(
                f"the query needs {name!r}, which is defined for pixels only; choose another "
                "query.name, or set task.name=segmentation"
            )
        else:
            columns[name] = found.fn(z)
    return columns


def require_probe(name: str, extras: Mapping[str, Tensor] | None) -> Tensor:
    """Return a probe's column; raise ``UserError`` if no probe provides it."""
    if extras is None or name not in extras:
        raise UserError(
            f"the query needs {name!r} ({PROBE_COLUMNS[name].description}), but no probe provides it"
        )
    return extras[name]


def require_features(features: Tensor | None) -> Tensor:
    """Return the features; raise ``UserError`` if the model returns none."""
    if features is None:
        raise UserError(
            "the query needs 'features', but the model does not return them; "
            "make its forward return (logits, features)"
        )
    return features
