"""Terminal output in which names of files and classes cannot act as commands to the terminal."""

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def printable(text: str) -> str:
    r"""Replace control characters, such as those that begin an escape sequence.

    >>> printable("a\x1b[31mb\n")
    'a�[31mb\n'
    """
    return _CONTROL_CHARACTERS.sub("\ufffd", text)


class TerminalConsole(Console):
    """A console that prints all text through ``printable``: lines, tables and progress bars."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object as segments."""
        for segment in super().render(renderable, options):
            if segment.control:  # by Rich itself, e.g. to move the cursor
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
