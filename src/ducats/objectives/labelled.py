"""Losses on labelled data of the source and the target."""

from collections.abc import Mapping

from ducats.objectives.batch import Batch, ForwardFn, Losses, is_labelled
from ducats.objectives.reduction import Formula, masked_means


def labelled_losses(
    model: ForwardFn,
    batch: Batch,
    formula: Formula,
    weights: Mapping[str, float],
    *,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Compute weighted means over labelled positions, as ``source/NAME`` and ``labelled/NAME``.

    Args:
        formula: from log alpha and labels to one value per position for each name.
        weights: weights by name, in the order of the values; zero skips a term.
        source: weight of the terms on the source.
        target: weight of the terms on the labelled target.
    """
    losses: Losses = {}
    streams = (
        ("source", batch.source, source),
        # Labelled pixels; whole labelled images are a separate stream.
        ("labelled", batch.target if batch.has_target_labels else None, target),
        ("labelled", batch.labelled, target),
    )
    for stream, data, stream_weight in streams:
        if data is None or not stream_weight:
            continue
        values = masked_means(model(data.images), formula, data.labels, is_labelled)
        for (name, weight), value in zip(weights.items(), values, strict=True):
            if weight:
                key, loss = f"{stream}/{name}", stream_weight * weight * value
                losses[key] = losses[key] + loss if key in losses else loss
    return losses
