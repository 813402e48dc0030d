"""Saved state of push and pull. It holds no secrets and can be rebuilt from the server."""

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from ducats.runfolder.question_names import LABEL_STUDIO_STATE
from ducats.utils.files import lock_beside, write_text_atomically


@dataclass
class SyncState:
    """The project and the tasks of a run's questions."""

    url: str = ""
    project: int = 0
    created_at: str = ""  # creation time of the project: a new server numbers projects from 1 again
    read_until: str = ""  # all changes before this time have been read
    tasks: dict[str, dict[str, int]] = field(default_factory=dict)  # task ids by round and image key

    @classmethod
    def read(cls, folder: Path) -> "SyncState":
        """Read the state. Return an empty one if the file is missing or corrupt."""
        try:
            state = cls(**json.loads((folder / LABEL_STUDIO_STATE).read_text(encoding="utf-8")))
            datetime.fromisoformat(state.read_until or "2000-01-01")
            return state
        except (OSError, ValueError, TypeError):
            return cls()

    def write(self, folder: Path) -> None:
        """Write the state."""
        write_text_atomically(
            folder / LABEL_STUDIO_STATE, json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"
        )

    def for_project(self, url: str, project: int, created_at: str) -> "SyncState":
        """Return this state if it belongs to the project, else a new one."""
        is_same = (self.url, self.project, self.created_at) == (url, project, created_at)
        return self if is_same else SyncState(url, project, created_at)


def sync_lock(folder: Path) -> AbstractContextManager[object]:
    """Hold a lock that keeps other processes from pushing or pulling."""
    return lock_beside(folder / LABEL_STUDIO_STATE)
