"""Domain-adversarial training (Ganin et al., 2016), as used by AADA (Su et al., WACV 2020)."""

from torch import Tensor

from ducats.dirichlet import entropy as entropy_of
from ducats.domain import UNLABELLED
from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.companion import reverse_gradient
from ducats.objectives.means import means
from ducats.objectives.softmax import softmax
from ducats.objectives.witnesses import Discriminator, target_images


def adversarial(
    model: Forward,
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
    ours, theirs = model(batch.source.images), model(images)
    assert ours.features is not None
    assert theirs.features is not None
    losses["domain/nll"] = discriminator.loss(
        reverse_gradient(ours.features, domain), reverse_gradient(theirs.features, domain)
    )
    if entropy and batch.target is not None:
        (mean,) = means(theirs, _entropy, batch.target.labels, _unlabelled)
        losses["unlabelled/entropy"] = entropy * mean
    elif entropy:
        losses["unlabelled/entropy"] = entropy * entropy_of(theirs.z).mean()
    return losses


def _entropy(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (entropy_of(z),)


def _unlabelled(labels: Tensor) -> Tensor:
    return labels == UNLABELLED
