"""Measure a model on labelled images that it never trained on."""

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.data.views import View, look
from ducats.domain import Domain
from ducats.engine.processes import add_up, share_of
from ducats.errors import UserError
from ducats.metrics import Tally
from ducats.randomness import fork
from ducats.rows import Output


def say(model: nn.Module, images: Tensor) -> Output:
    """What a model says, if it still says anything: a training that diverged ends here at the latest."""
    output: Output = model(images)
    if not bool(output.z.isfinite().all()):
        raise UserError(
            "the model's logits are no longer finite: the training diverged; lower train.lr (a new run, in a "
            "new folder), or bound the evidence with model.evidence=exp_clamped"
        )
    return output


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
        output = say(model, fabric.to_device(shown))
        tally.update(output.z.cpu().double().log_softmax(1), test.labels[index])
    return Tally(**{name: add_up(tensor, fabric) for name, tensor in tally.tensors().items()})
