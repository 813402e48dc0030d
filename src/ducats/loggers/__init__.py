"""Loggers: where a run's numbers go besides its own folder, while it works.

A logger is anything with three methods. The run's JSON lines stay the one truth: what a logger is told is
read from there, once.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module

from ducats.errors import UserError
from ducats.loggers.protocol import Logger, Maker
from ducats.loggers.telling import KEPT, Logs, values_of
from ducats.loggers.tensorboard import TensorBoard
from ducats.loggers.tracker import trackio, wandb
from ducats.lookup import look_up

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
    """The loggers that ``engine.loggers`` names; one that is not there, or not installed, is refused.

    Args:
        names: of built-in ones, or ``package.module:function``, which takes the run's folder.
    """
    makers: dict[str, Maker] = {}
    for name in names:
        makers[name] = look_up("logger", LOGGERS, name)
        if name in INSTALLED_BY:
            try:
                import_module(name)
            except ImportError as error:
                raise UserError(
                    f"engine.loggers names {name!r}, which cannot be imported ({error}): "
                    f"pip install {INSTALLED_BY[name]}, or leave it out"
                ) from None
    return makers
