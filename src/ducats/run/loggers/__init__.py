"""Loggers: send a run's metrics to TensorBoard, trackio, W&B or a custom logger.

A logger is any object with the methods of ``Logger``. Each record of metrics.jsonl is logged once.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module

from ducats.run.loggers.dispatcher import Logger, LoggerDispatcher, LoggerFactory, extract_scalars
from ducats.run.loggers.tensorboard import TensorBoard
from ducats.run.loggers.tracker import Tracker
from ducats.utils.errors import UserError
from ducats.utils.registry import resolve

LOGGERS: Mapping[str, LoggerFactory] = {
    "tensorboard": TensorBoard,
    "trackio": lambda _: Tracker("trackio", by_id=False),  # local unless it is configured otherwise
    "wandb": lambda _: Tracker("wandb", by_id=True),
}
PIP_PACKAGES = {"tensorboard": "'ducats[tensorboard]'", "trackio": "'ducats[trackio]'", "wandb": "wandb"}

__all__ = [
    "LOGGERS",
    "Logger",
    "LoggerDispatcher",
    "LoggerFactory",
    "TensorBoard",
    "extract_scalars",
    "find_loggers",
]


def find_loggers(names: Sequence[str]) -> dict[str, LoggerFactory]:
    """Look up the loggers of ``engine.loggers``; raise UserError if one is unknown or not installed.

    Args:
        names: built-in names, or ``package.module:function``; the function takes the run folder.
    """
    factories: dict[str, LoggerFactory] = {}
    for name in names:
        factories[name] = resolve("logger", LOGGERS, name)
        if name in PIP_PACKAGES:
            try:
                import_module(name)
            except ImportError as error:
                raise UserError(
                    f"engine.loggers names {name!r}, which cannot be imported ({error}): "
                    f"pip install {PIP_PACKAGES[name]}, or remove it"
                ) from None
    return factories
