"""Parse JSON into dataclasses, with the types of their fields checked."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")


def parse_json(kind: Callable[..., _T], text: str | bytes) -> _T:
    """Return an instance of a dataclass from a JSON object.

    Raises:
        ValueError: the text is not JSON, a field is missing, or a value has another type.
    """
    instance: _T = _adapter(kind).validate_json(text, strict=True)
    return instance


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # imported late, to keep `--help` fast

    return TypeAdapter(kind)
