"""Saved state of push and pull. It holds no secrets and can be rebuilt from the server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from ducats.annotation import AnswerLog
from ducats.files import write_text_atomically

FILE = "label-studio.json"


@dataclass
class State:
    """The project and the tasks of a run's questions."""

    url: str = ""
    project: int = 0
    made: str = ""  # creation time of the project: a new server numbers projects from 1 again
    since: str = ""  # all changes before this time have been read
    tasks: dict[str, dict[str, int]] = field(default_factory=dict)  # task ids by round and image key

    @classmethod
    def read(cls, folder: Path) -> "State":
        """Read the state. Return an empty one if the file is missing or corrupt."""
        try:
            found = cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
            datetime.fromisoformat(found.since or "2000-01-01")
            return found
        except (OSError, ValueError, TypeError):
            return cls()

    def write(self, folder: Path) -> None:
        """Write the state."""
        write_text_atomically(folder / FILE, json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n")

    def at(self, url: str, project: int, made: str) -> "State":
        """Return this state if it belongs to the project, else a new one."""
        same = (self.url, self.project, self.made) == (url, project, made)
        return self if same else State(url, project, made)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a lock that keeps other processes from pushing or pulling."""
    with AnswerLog(folder / FILE).locked():
        yield
