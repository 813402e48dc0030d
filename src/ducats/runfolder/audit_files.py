"""Predictions for the whole pool at each stage of a run with an audit. Does not import torch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ducats.runfolder import checksums
from ducats.utils import npz_columns
from ducats.utils.npz_columns import AnyArray


@dataclass(frozen=True)
class PoolPredictions:
    """The model's prediction for each image of the pool."""

    predicted: AnyArray  # class, int64 (N,)
    probability: AnyArray  # of that class, float64 (N,)

    def save(self, path: Path) -> None:
        """Write the predictions atomically."""
        columns: npz_columns.Columns = {
            "predicted": (self.predicted, np.int32),
            "probability": (self.probability, np.float32),
        }
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
            return cls(columns["predicted"].astype(np.int64), columns["probability"].astype(np.float64))
        except npz_columns.READ_ERRORS as error:
            raise checksums.corrupt(path, error) from error
