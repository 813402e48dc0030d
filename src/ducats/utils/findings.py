"""Checks and their findings: a run raises the first error, ``ducats doctor`` reports all findings."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ducats.utils.errors import UserError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One message: what is wrong, where, and what to do."""

    severity: Severity  # an error means that the run fails or its result is invalid
    message: str


# A check returns its findings; one that can find only a single error may raise it as a `UserError` instead.
Check = Callable[[], Iterable[Finding] | None]


def raise_first_error(*checks: Check) -> None:
    """Run the checks up to the first error, and raise it as a ``UserError``."""
    for check in checks:
        for finding in check() or ():
            if finding.severity == "error":
                raise UserError(finding.message)


def collect_findings(*checks: Check, about: str = "the data") -> list[Finding]:
    """Run all checks and return their findings, including the exceptions that ended them.

    Args:
        about: what is checked, for the message about an unexpected exception.
    """
    findings = []
    for check in checks:
        try:
            for finding in check() or ():
                findings.append(finding)  # one by one, to keep the findings before an exception
        except UserError as error:
            findings.append(Finding("error", str(error)))
        except Exception as error:  # user code may raise anything
            reason = describe_exception(error)
            findings.append(Finding("error", f"{about} could not be checked ({reason}); fix this error"))
    return findings


def describe_exception(error: Exception) -> str:
    """Describe an exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


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


def pluralise(count: float, noun: str, number: str = "") -> str:
    """Format a number of things; ``number`` is the count as text if it is not shown plainly.

    >>> pluralise(1, "image"), pluralise(2, "image"), pluralise(2, "class"), pluralise(1200, "pixel", "1,200")
    ('1 image', '2 images', '2 classes', '1,200 pixels')
    """
    return f"{number or count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def count_images(count: int) -> str:
    """Format a number of images."""
    return pluralise(count, "image")


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> [format_duration(s) for s in (4.2, 59.7, 90, 5400, 200000)]
    ['4 s', '60 s', '1.5 min', '1.5 h', '2.3 days']
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    for size, name, limit in ((60, "min", 3600), (3600, "h", 2 * 86400)):
        if seconds < limit:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds / 86400:.1f} days"
