"""Domain-adversarial training (Ganin et al., 2016), as used by AADA (Su et al., WACV 2020)."""

from ducats.dirichlet import entropy as entropy_of
from ducats.objectives.auxiliary import ObjectiveSpec, features_of, reverse_gradient
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.objectives.probes import Discriminator, target_images
from ducats.objectives.reduction import unlabelled_means
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
    """
    losses = softmax(model, batch, source=source, target=target)
    images = target_images(batch)
    if images is None:
        return losses
    source_output, target_output = model(batch.source.images), model(images)
    losses["domain/nll"] = discriminator.loss(
        *(reverse_gradient(features_of(output), domain) for output in (source_output, target_output))
    )
    if entropy:
        entropies = unlabelled_means(lambda _: target_output, batch, lambda z: (entropy_of(z),))
        assert entropies is not None
        losses["unlabelled/entropy"] = entropy * entropies[0]
    return losses


ADVERSARIAL_SPEC = ObjectiveSpec(adversarial, Discriminator)
