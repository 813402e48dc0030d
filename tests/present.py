"""Values that a test knows to exist."""

from typing import TypeVar

_T = TypeVar("_T")


def present(value: _T | None) -> _T:
    """Return the value, which is not None."""
    assert value is not None
    return value
