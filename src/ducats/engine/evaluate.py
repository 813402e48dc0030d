"""Measure a model on labelled images that it never trained on."""

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.data.views import View
from ducats.domain import Domain
from ducats.engine.forward import luck_of, outputs
from ducats.engine.processes import add_up, share_of
from ducats.metrics import Tally
from ducats.randomness import fork


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    test: Domain,
    *,
    view: View,
    batch_size: int,
    fabric: Fabric,
    only: Tensor | None = None,
) -> Tally:
    """Tally a test set, over all processes; bounded memory.

    Args:
        model: images to ``Output``.
        test: labelled images.
        view: how to look at each image.
        batch_size: images in a batch.
        fabric: device and processes.
        only: indices of the images that count; all by default.
    """
    tally = Tally.empty(len(test.classes))
    counted = torch.arange(len(test)) if only is None else only
    luck = luck_of(test.images, view, fork(0, "test"))
    batches = share_of(counted.split(batch_size), fabric)
    for index, said in outputs(
        model, test.images, batches, view=view, luck=luck, needs=("z",), fabric=fabric
    ):
        tally.update(said["z"].double().log_softmax(1), test.labels[index])
    return Tally(**{name: add_up(tensor, fabric) for name, tensor in tally.tensors().items()})
