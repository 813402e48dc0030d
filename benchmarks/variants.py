"""Variants of methods on the command line of a benchmark: ``NAME`` or ``NAME:key=value,key=value``."""

import re

# A comma, unless it is inside brackets.
_SEPARATOR = re.compile(r",(?![^\[{]*[\]}])")


def parse_variant(text: str) -> tuple[str, list[str]]:
    """Return the method's name and its settings.

    >>> parse_variant("duc:acquisition.after_epochs=[4, 5],query.params.kappa=5")
    ('duc', ['acquisition.after_epochs=[4, 5]', 'query.params.kappa=5'])
    >>> parse_variant("duc")
    ('duc', [])
    """
    name, _, rest = text.partition(":")
    return name, [setting for setting in _SEPARATOR.split(rest) if setting]
