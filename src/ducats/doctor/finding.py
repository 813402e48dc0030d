"""What the doctor says: one sentence each, of three degrees."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ducats.errors import UserError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One sentence: what, where, and what to do."""

    severity: Severity  # error: the run fails or its result is void; warning: doubtful; note: worth knowing
    what: str


def gather(check: Iterable[Finding], about: str = "the data") -> list[Finding]:
    """What a check finds, and, if bad input ends it early, that too."""
    found = []
    try:
        for finding in check:
            found.append(finding)  # one by one: what was found before an error stays found
    except UserError as error:
        found.append(Finding("error", str(error)))
    except Exception as error:  # a user's own part may raise anything
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        found.append(Finding("error", f"{about} could not be checked ({said}); mend what this names"))
    return found


def some(names: Sequence[str], most: int = 10) -> str:
    """Names for a sentence, the rest counted.

    >>> some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def quoted(names: Iterable[str], most: int = 10) -> str:
    """Names of classes for a sentence.

    >>> quoted(["desk lamp", "TV"])
    "'desk lamp', 'TV'"
    """
    return some([repr(name) for name in names], most)


def images(number: int) -> str:
    """A number of images in words.

    >>> images(1), images(2)
    ('1 image', '2 images')
    """
    return f"{number} image{'' if number == 1 else 's'}"
