"""What a run reports, as JSON lines: the one door between runs and reports. Needs no torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ducats.errors import UserError
from ducats.files import write_text_atomically

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    """All records, oldest first; none if the file is not there."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path} line {number} is not JSON ({error}): it was edited; undo that"
            ) from error
    return records


def put(path: Path, record: Mapping[str, Any], *, same: tuple[str, ...]) -> None:
    """Add a record; one that agrees in the fields ``same`` is replaced, so a repeated step leaves one line.

    The file is small (a line per epoch), so it is written anew as a whole: a kill leaves no torn line.
    """
    kept = [old for old in read(path) if any(old.get(field) != record[field] for field in same)]
    lines = [json.dumps(line) for line in [*kept, dict(record)]]
    write_text_atomically(path, "\n".join(lines) + "\n")
