"""Exponential moving average (EMA) of the weights: evaluated, queried with, and saved at the end of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from lightning_fabric import Fabric
from timm.utils import ModelEmaV3  # type: ignore[attr-defined] # not marked as exported
from torch import nn

from ducats.training.sharding import is_sharded
from ducats.utils.errors import UserError


def make_ema(network: nn.Module, decay: float | None, fabric: Fabric) -> ModelEmaV3 | None:
    """Return the moving average of a network's weights and buffers; None if there is no decay.

    The decay grows from 0 to its value, because the first weights of a head are random.
    """
    if decay is None:
        return None
    if is_sharded(fabric):
        raise UserError(
            "train.ema_decay cannot be combined with engine.strategy=fsdp; set train.ema_decay=null, or use "
            "engine.strategy=ddp"
        )
    return ModelEmaV3(network, decay=decay, use_warmup=True)


@contextmanager
def averaged_weights(network: nn.Module, ema: ModelEmaV3 | None) -> Iterator[None]:
    """Give a network the averaged weights within the context; does nothing without an average.

    Tensors swap their memory, so that a captured CUDA graph finds the weights where they were.
    """
    if ema is not None:
        _swap(network, ema.module)
    try:
        yield
    finally:
        if ema is not None:
            _swap(network, ema.module)


def _swap(network: nn.Module, other: nn.Module) -> None:
    both = (chain(module.parameters(), module.buffers()) for module in (network, other))
    for mine, theirs in zip(*both, strict=True):
        mine.data, theirs.data = theirs.data, mine.data
