"""Findings of the doctor, and helpers to collect and word them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ducats.errors import UserError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One message: what is wrong, where, and what to do."""

    severity: Severity  # an error means that the run fails or its result is invalid
    what: str


def gather(check: Iterable[Finding], about: str = "the data") -> list[Finding]:
    """Return the findings of a check, including the exception that ended it, if any."""
    found = []
    try:
        for finding in check:
            found.append(finding)  # one by one, to keep the findings before an exception
    except UserError as error:
        found.append(Finding("error", str(error)))
    except Exception as error:  # user code may raise anything
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        found.append(Finding("error", f"{about} could not be checked ({said}); fix this error"))
    return found


def some(names: Sequence[str], most: int = 10) -> str:
    """Join names for a message and count those beyond ``most``.

    >>> some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def quoted(names: Iterable[str], most: int = 10) -> str:
    """Join quoted names for a message.

    >>> quoted(["desk lamp", "TV"])
    "'desk lamp', 'TV'"
    """
    return some([repr(name) for name in names], most)


def images(number: int) -> str:
    """Format a number of images.

    >>> images(1), images(2)
    ('1 image', '2 images')
    """
    return f"{number} image{'' if number == 1 else 's'}"
