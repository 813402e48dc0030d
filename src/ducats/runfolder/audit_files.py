"""Files of an audit: predictions at each stage, state of live labelling. Does not import torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ducats.runfolder import checksums
from ducats.utils import npz_columns
from ducats.utils.npz_columns import AnyArray


@dataclass(frozen=True)
class PoolPredictions:
    """The model's prediction for each image of the pool, or for pixels that may be in the audit."""

    predicted: AnyArray  # class, int64 (N,)
    probability: AnyArray  # of that class, float64 (N,)
    image: AnyArray | None = None  # of each pixel, int64 (N,), ascending
    position: AnyArray | None = None  # of each pixel, int64 (N,), ascending in each image

    def save(self, path: Path) -> None:
        """Write the predictions atomically."""
        columns: npz_columns.Columns = {
            "predicted": (self.predicted, np.int32),
            "probability": (self.probability, np.float32),
        }
        if self.image is not None and self.position is not None:
            columns = {**columns, "image": (self.image, np.int32), "position": (self.position, np.uint32)}
        checksums.write(path, lambda file: npz_columns.write_archive(file, columns))

    @classmethod
    def load(cls, path: Path) -> "PoolPredictions":
        """Read predictions.

        Raises:
            UserError: the file is corrupt.
        """
        checksums.verify(path)
        try:
            columns = npz_columns.read_columns(path, ())
            locations = [columns[name].astype(np.int64) for name in ("image", "position") if name in columns]
            return cls(
                columns["predicted"].astype(np.int64), columns["probability"].astype(np.float64), *locations
            )
        except npz_columns.READ_ERRORS as error:
            raise checksums.corrupt(path, error) from error


@dataclass(frozen=True)
class LiveAuditState:
    """Which images live labelling has drawn for the audit, and what it found."""

    drawn: Sequence[str] = ()  # keys
    released: Mapping[str, int] = field(default_factory=dict)  # key -> round since which it is trained on
    figures: Sequence[Mapping[str, Any]] = ()  # one per look, oldest first

    def save(self, path: Path) -> None:
        """Write the state atomically."""
        checksums.write_text(path, json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, path: Path) -> "LiveAuditState":
        """Read the state; an empty one if there is none.

        Raises:
            UserError: the file is corrupt.
        """
        checksums.verify(path)
        if not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise checksums.corrupt(path, error) from error
