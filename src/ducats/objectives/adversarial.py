"""Domain-adversarial training (Ganin et al., 2016), as used by AADA (Su et al., WACV 2020)."""

from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.dirichlet import entropy as entropy_of
from ducats.objectives.auxiliary import ObjectiveSpec, reverse_gradient
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.objectives.probes import Discriminator, target_images
from ducats.objectives.reduction import masked_means
from ducats.objectives.softmax import softmax


def adversarial(
    model: ForwardFn,
    batch: Batch,
    discriminator: Discriminator,
    *,
    domain: float = 0.1,
    entropy: float = 0.01,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labelled data; domain-adversarial loss and entropy on unlabelled target data.

    The discriminator learns to separate the domains. Its gradient with respect to the features is reversed.

    Args:
        domain: weight of the reversed gradient.
        entropy: weight of the entropy of unlabelled target data.
        source: weight of the cross-entropy on the source.
        target: weight of the cross-entropy on the labelled target.
    """
    losses = softmax(model, batch, source=source, target=target)
    images = target_images(batch)
    if images is None:
        return losses
    source_output, target_output = model(batch.source.images), model(images)
    assert source_output.features is not None
    assert target_output.features is not None
    losses["domain/nll"] = discriminator.loss(
        reverse_gradient(source_output.features, domain), reverse_gradient(target_output.features, domain)
    )
    if entropy and batch.target is not None:
        (mean,) = masked_means(target_output, _entropy, batch.target.labels, _is_unlabelled)
        losses["unlabelled/entropy"] = entropy * mean
    elif entropy:
        losses["unlabelled/entropy"] = entropy * entropy_of(target_output.z).mean()
    return losses


def _entropy(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (entropy_of(z),)


def _is_unlabelled(labels: Tensor) -> Tensor:
    return labels == UNLABELLED


ADVERSARIAL_SPEC = ObjectiveSpec(adversarial, Discriminator)
