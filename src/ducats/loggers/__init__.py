"""Loggers: send a run's metrics to TensorBoard, trackio, W&B or a custom logger.

A logger is any object with the methods of ``Logger``. Each record of metrics.jsonl is logged once.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module

from ducats.errors import UserError
from ducats.loggers.protocol import Logger, Maker
from ducats.loggers.telling import KEPT, Logs, values_of
from ducats.loggers.tensorboard import TensorBoard
from ducats.loggers.tracker import trackio, wandb
from ducats.registry import resolve

LOGGERS: Mapping[str, Maker] = {"tensorboard": TensorBoard, "trackio": trackio, "wandb": wandb}
INSTALLED_BY = {"tensorboard": "'ducats[tensorboard]'", "trackio": "'ducats[trackio]'", "wandb": "wandb"}

__all__ = [
    "KEPT",
    "LOGGERS",
    "Logger",
    "Logs",
    "Maker",
    "TensorBoard",
    "find",
    "trackio",
    "values_of",
    "wandb",
]


def find(names: Sequence[str]) -> dict[str, Maker]:
    """Look up the loggers of ``engine.loggers``; raise UserError if one is unknown or not installed.

    Args:
        names: built-in names, or ``package.module:function``; the function takes the run folder.
    """
    makers: dict[str, Maker] = {}
    for name in names:
        makers[name] = resolve("logger", LOGGERS, name)
        if name in INSTALLED_BY:
            try:
                import_module(name)
            except ImportError as error:
                raise UserError(
                    f"engine.loggers names {name!r}, which cannot be imported ({error}): "
                    f"pip install {INSTALLED_BY[name]}, or remove it"
                ) from None
    return makers
