"""Findings of the doctor, and helpers to collect and word them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ducats.utils.errors import UserError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One message: what is wrong, where, and what to do."""

    severity: Severity  # an error means that the run fails or its result is invalid
    message: str


def collect_findings(check: Iterable[Finding], about: str = "the data") -> list[Finding]:
    """Return the findings of a check, including the exception that ended it, if any."""
    findings = []
    try:
        for finding in check:
            findings.append(finding)  # one by one, to keep the findings before an exception
    except UserError as error:
        findings.append(Finding("error", str(error)))
    except Exception as error:  # user code may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        findings.append(Finding("error", f"{about} could not be checked ({reason}); fix this error"))
    return findings


def join_names(names: Sequence[str], max_names: int = 10) -> str:
    """Join names for a message and count those beyond ``max_names``.

    >>> join_names(["a", "b", "c"], max_names=2)
    'a, b and 1 more'
    """
    rest = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + rest


def join_quoted(names: Iterable[str], max_names: int = 10) -> str:
    """Join quoted names for a message.

    >>> join_quoted(["desk lamp", "TV"])
    "'desk lamp', 'TV'"
    """
    return join_names([repr(name) for name in names], max_names)


def count_images(count: int) -> str:
    """Format a number of images.

    >>> count_images(1), count_images(2)
    ('1 image', '2 images')
    """
    return f"{count} image{'' if count == 1 else 's'}"
