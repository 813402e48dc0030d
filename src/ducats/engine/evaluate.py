"""Measure a model on labelled images that it never trained on, or predict on images without labels."""

import torch
from lightning_fabric import Fabric
from torch import nn

from ducats.data.views import View, look
from ducats.domain import Domain
from ducats.engine.processes import add_up, share_of
from ducats.metrics import Tally
from ducats.randomness import fork
from ducats.rows import Output


@torch.inference_mode()
def evaluate(model: nn.Module, test: Domain, *, view: View, batch_size: int, fabric: Fabric) -> Tally:
    """Tally a test set, over all processes; bounded memory.

    Args:
        model: images to ``Output``.
        test: held-out labelled images.
        view: how to look at each image.
        batch_size: images in a batch.
        fabric: device and processes.
    """
    model.eval()
    tally = Tally.empty(len(test.classes))
    for number, index in share_of(list(enumerate(torch.arange(len(test)).split(batch_size))), fabric):
        shown = look(test.images.pixels[index], view, fork(0, "test", number))
        output: Output = model(fabric.to_device(shown))
        tally.update(output.z.cpu().double().log_softmax(1), test.labels[index])
    return Tally(**{name: add_up(tensor, fabric) for name, tensor in tally.tensors().items()})
