"""From a name to a part: found in a mapping or in a user's own module, its knobs checked before any use."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ducats.errors import UserError
from ducats.objectives import Training
from ducats.queries import Strategy

T = TypeVar("T")


class Named(Protocol):
    """A part as a config has it."""

    @property
    def name(self) -> str:
        """Of the part."""

    @property
    def knobs(self) -> Mapping[str, Any]:
        """Its keyword arguments."""


def look_up(kind: str, table: Mapping[str, T], name: str) -> T:
    """Find ``name``, or say what there is; ``package.module:attribute`` finds a user's own."""
    if name in table:
        return table[name]
    if ":" not in name:
        raise UserError(
            f"no {kind} {name!r}; there are: {', '.join(table)}, or your own as package.module:name"
        )
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a file beside the user is found, as `python -m` would
    try:
        home = importlib.import_module(module.removesuffix(".py").replace("/", "."))
    except Exception as error:  # whatever a user's module may raise when it is imported
        raise UserError(
            f"no {kind} {name!r}: {type(error).__name__}: {error}; "
            "is its folder the current one, or on PYTHONPATH?"
        ) from error
    found = getattr(home, attribute, None)
    if found is None:
        near = difflib.get_close_matches(attribute, dir(home), n=1)
        raise UserError(f"{module} has no {attribute!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if not callable(found) and not isinstance(found, Strategy | Training):
        raise UserError(f"the {kind} {name!r} is not callable but a {type(found).__name__}: name a function")
    return found  # type: ignore[no-any-return]


def bind(
    kind: str, name: str, function: Callable[..., T], given: int, knobs: Mapping[str, Any]
) -> Callable[..., T]:
    """Bind knobs to a part, after checking them against its signature: a slip fails now, not hours later.

    Args:
        kind: for the message.
        name: for the message.
        function: the part.
        given: how many positional arguments its caller will pass.
        knobs: keyword arguments by name.
    """
    check_knobs(kind, name, inspect.signature(function), given, knobs)
    return partial(function, **knobs)


def check_knobs(
    kind: str, name: str, signature: inspect.Signature, given: int, knobs: Mapping[str, Any]
) -> None:
    """Refuse knobs that a part does not have; see ``bind``."""
    try:
        signature.bind_partial(*[None] * given, **knobs)
    except TypeError:
        known = [p.name for p in list(signature.parameters.values())[given:]]
        wrong = sorted(knobs.keys() - known)
        if not wrong:
            raise UserError(f"the {kind} {name!r} must take {given} argument(s) and keyword knobs") from None
        raise UserError(
            f"the {kind} {name!r} has no knob {', '.join(map(repr, wrong))}; "
            f"it has: {', '.join(known) if known else 'none'}"
        ) from None


def build(kind: str, part: Named, make: Callable[[], T]) -> T:
    """Build a part; a knob of a wrong kind or size is one sentence."""
    try:
        return make()
    except UserError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(
            f"the {kind} {part.name!r} cannot work with knobs {part.knobs}: {type(error).__name__}: {error}"
        ) from error
