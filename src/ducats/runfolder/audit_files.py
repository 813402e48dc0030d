"""Predictions at each stage of a run with an audit. Does not import torch."""

from dataclasses import dataclass
from pathlib import Path

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
