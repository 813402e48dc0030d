"""Resolve a component by name, from a registry or a user's module, and check its parameters."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ducats.utils.errors import UserError

_T = TypeVar("_T")


class NamedComponent(Protocol):
    """A component in a config: a name and keyword arguments."""

    @property
    def name(self) -> str:
        """Registered name, or ``package.module:attribute``."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Keyword arguments of the component."""


def resolve(
    kind: str, registry: Mapping[str, _T], name: str, as_spec: Callable[[Any], _T] | None = None
) -> _T:
    """Return the registry entry ``name``, or import ``package.module:attribute``.

    Args:
        as_spec: wraps an imported function, and returns an imported spec unchanged; None: entries are
            functions.
    """
    if name in registry:
        return registry[name]
    if ":" not in name:
        near = difflib.get_close_matches(name, registry, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(
            f"no {kind} {name!r}{hint}; choose from: {', '.join(registry)}, or use your own as "
            "package.module:name"
        )
    found = import_attribute(kind, name)
    entry: _T = found if as_spec is None else as_spec(found)
    is_spec = as_spec is not None and entry is found
    if not callable(found) and not is_spec:
        raise UserError(f"the {kind} {name!r} must be callable, not {type(found).__name__}")
    return entry


def import_attribute(kind: str, path: str) -> Any:
    """Import ``package.module:attribute``; the module may be in the current folder."""
    module, _, attribute = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # as `python -m` does
    try:
        imported = importlib.import_module(module.removesuffix(".py").replace("/", "."))
    except Exception as error:  # importing user code may raise anything
        raise UserError(
            f"no {kind} {path!r}: {type(error).__name__}: {error}; "
            "check that its folder is the current one or on PYTHONPATH"
        ) from error
    found = getattr(imported, attribute, None)
    if found is None:
        near = difflib.get_close_matches(attribute, dir(imported), n=1)
        raise UserError(f"{module} has no {attribute!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return found


def bind_params(
    kind: str, name: str, function: Callable[..., _T], n_positional: int, params: Mapping[str, Any]
) -> Callable[..., _T]:
    """Bind keyword arguments to a function after checking them against its signature.

    Args:
        n_positional: number of positional arguments with which the result will be called.
    """
    check_params(kind, name, inspect.signature(function), n_positional, params)
    return partial(function, **params)


def check_params(
    kind: str, name: str, signature: inspect.Signature, n_positional: int, params: Mapping[str, Any]
) -> None:
    """Raise if the signature does not accept the keyword arguments; see ``bind_params``."""
    try:
        signature.bind_partial(*[None] * n_positional, **params)
    except TypeError:
        known = [p.name for p in list(signature.parameters.values())[n_positional:]]
        unknown = sorted(params.keys() - known)
        if not unknown:
            raise UserError(
                f"the {kind} {name!r} must take {n_positional} positional argument(s) and keyword parameters"
            ) from None
        raise UserError(
            f"the {kind} {name!r} has no parameter {', '.join(map(repr, unknown))}; "
            f"it has: {', '.join(known) if known else 'none'}"
        ) from None


def build_component(kind: str, component: NamedComponent, factory: Callable[[], _T]) -> _T:
    """Build a component; turn errors about its parameters into a ``UserError``."""
    try:
        return factory()
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise UserError(
            f"the {kind} {component.name!r} does not accept the parameters {component.params}: "
            f"{type(error).__name__}: {error}"
        ) from error


def defining_package(fn: Callable[..., Any]) -> str:
    """Return the top-level package that contains the code of a function, of a partial or of a callable.

    >>> defining_package(partial(resolve, "query"))
    'ducats'
    """
    while isinstance(fn, partial):
        fn = fn.func
    # The module of the code itself: `functools.wraps` copies `__module__` from the wrapped function.
    module: str = getattr(fn, "__globals__", {}).get("__name__", type(fn).__module__)
    return module.split(".")[0]
