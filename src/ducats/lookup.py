"""Resolve a component by name, from a registry or a user's module, and check its parameters."""

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
    """A component in a config: a name and keyword arguments."""

    @property
    def name(self) -> str:
        """Registered name, or ``package.module:attribute``."""

    @property
    def knobs(self) -> Mapping[str, Any]:
        """Keyword arguments of the component."""


def look_up(kind: str, table: Mapping[str, T], name: str) -> T:
    """Return the registry entry ``name``, or import ``package.module:attribute``."""
    if name in table:
        return table[name]
    if ":" not in name:
        raise UserError(
            f"no {kind} {name!r}; choose from: {', '.join(table)}, or use your own as package.module:name"
        )
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # as `python -m` does
    try:
        home = importlib.import_module(module.removesuffix(".py").replace("/", "."))
    except Exception as error:  # importing user code may raise anything
        raise UserError(
            f"no {kind} {name!r}: {type(error).__name__}: {error}; "
            "check that its folder is the current one or on PYTHONPATH"
        ) from error
    found = getattr(home, attribute, None)
    if found is None:
        near = difflib.get_close_matches(attribute, dir(home), n=1)
        raise UserError(f"{module} has no {attribute!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if not callable(found) and not isinstance(found, Strategy | Training):
        raise UserError(f"the {kind} {name!r} must be callable, not {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def bind(
    kind: str, name: str, function: Callable[..., T], given: int, knobs: Mapping[str, Any]
) -> Callable[..., T]:
    """Bind keyword arguments to a function after checking them against its signature.

    Args:
        kind: kind of component, for error messages.
        name: name of the component, for error messages.
        function: the component.
        given: number of positional arguments that the caller passes.
        knobs: keyword arguments.
    """
    check_knobs(kind, name, inspect.signature(function), given, knobs)
    return partial(function, **knobs)


def check_knobs(
    kind: str, name: str, signature: inspect.Signature, given: int, knobs: Mapping[str, Any]
) -> None:
    """Raise if the signature does not accept the keyword arguments; see ``bind``."""
    try:
        signature.bind_partial(*[None] * given, **knobs)
    except TypeError:
        known = [p.name for p in list(signature.parameters.values())[given:]]
        wrong = sorted(knobs.keys() - known)
        if not wrong:
            raise UserError(
                f"the {kind} {name!r} must take {given} positional argument(s) and keyword parameters"
            ) from None
        raise UserError(
            f"the {kind} {name!r} has no parameter {', '.join(map(repr, wrong))}; "
            f"it has: {', '.join(known) if known else 'none'}"
        ) from None


def build(kind: str, part: Named, make: Callable[[], T]) -> T:
    """Build a component; turn errors about its parameters into a ``UserError``."""
    try:
        return make()
    except UserError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(
            f"the {kind} {part.name!r} does not accept the parameters {part.knobs}: {type(error).__name__}: "
            f"{error}"
        ) from error
