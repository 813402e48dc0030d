"""Losses where labels are known: on the source and on what was bought of the target."""

from collections.abc import Mapping

from ducats.objectives.batch import Batch, Forward, Losses, known
from ducats.objectives.means import Formula, means


def over_labelled(
    model: Forward,
    batch: Batch,
    formula: Formula,
    weights: Mapping[str, float],
    *,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Weighted means of a formula's values over positions with a label: ``source/NAME``, ``labelled/NAME``.

    Args:
        model: images to log alpha.
        batch: the step's data.
        formula: from log alpha and labels to one value per position for each name.
        weights: by name, in the order of the values; zero leaves a term out.
        source: weight of the source's terms.
        target: weight of the labelled target's terms.
    """
    losses: Losses = {}
    streams = (
        ("source", batch.source, source),
        # Where pixels are bought; whole images are others than these.
        ("labelled", batch.target if batch.bought else None, target),
        ("labelled", batch.labelled, target),
    )
    for stream, part, share in streams:
        if part is None or not share:
            continue
        values = means(model(part.images), formula, part.labels, known)
        for (name, weight), value in zip(weights.items(), values, strict=True):
            if weight:
                key, loss = f"{stream}/{name}", share * weight * value
                losses[key] = losses[key] + loss if key in losses else loss
    return losses
