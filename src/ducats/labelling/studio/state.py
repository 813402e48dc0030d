"""What we remember of Label Studio beside the questions: no secrets, nothing that cannot be found again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from ducats.answers import Book
from ducats.files import write_text_atomically

FILE = "label-studio.json"


@dataclass
class State:
    """Where a run's questions lie on a server."""

    url: str = ""
    project: int = 0
    made: str = ""  # when the project was: a new server counts from 1 again
    since: str = ""  # all that changed before was read
    tasks: dict[str, dict[str, int]] = field(default_factory=dict)  # by round and image

    @classmethod
    def read(cls, folder: Path) -> "State":
        """What is known; nothing if the file is missing or spoilt: the server knows."""
        try:
            found = cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
            datetime.fromisoformat(found.since or "2000-01-01")
            return found
        except (OSError, ValueError, TypeError):
            return cls()

    def write(self, folder: Path) -> None:
        """Remember it."""
        write_text_atomically(folder / FILE, json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n")

    def at(self, url: str, project: int, made: str) -> "State":
        """The same state if it is of this project, else a new one."""
        same = (self.url, self.project, self.made) == (url, project, made)
        return self if same else State(url, project, made)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from pushing or pulling meanwhile."""
    with Book(folder / FILE).held():
        yield
