"""Class names that a user gives, with their checks."""

from collections.abc import Sequence
from pathlib import Path

from ducats.utils.errors import UserError

RESERVED_CLASS_NAMES = ("void", "unsure", "skip")  # have a meaning of their own in answers


def check_class_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the given class names; raise if they cannot be told apart, or are fewer than two."""
    if len(names) < 2:
        raise UserError(
            f"{'only one class is' if names else 'no classes are'} given; give at least two, for example "
            '--classes "cat, dog"'
        )
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not name.strip() or name != name.strip():
            raise UserError(f"{name!r} is not the name of a class; give a text without spaces around it")
        if name.lower() in RESERVED_CLASS_NAMES:
            raise UserError(
                f"a class cannot be named {name!r}, which is an answer of its own; choose another name"
            )
        if name.lower() in seen:
            raise UserError(
                f"the classes {seen[name.lower()]!r} and {name!r} cannot be told apart; rename or remove one"
            )
        seen[name.lower()] = name
    return tuple(names)


def parse_class_names(text: str) -> tuple[str, ...]:
    """Read class names from a text: separated by commas, or the path of a file with one name per line.

    >>> parse_class_names("cat, dog,other")
    ('cat', 'dog', 'other')
    """
    path = Path(text).expanduser()
    if "," not in text and path.is_file():
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} cannot be read ({error}); give a text file with one class per line"
            ) from None
    elif "," not in text and ("/" in text or path.suffix):
        raise UserError(f"the file {path} with class names does not exist; check the path")
    else:
        lines = text.split(",")
    return check_class_names([line.strip() for line in lines if line.strip()])
