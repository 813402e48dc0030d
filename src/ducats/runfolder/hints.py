"""Model outputs that are shown to annotators, one entry per unit of a request."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from ducats.runfolder import checksums
from ducats.utils import npz_columns
from ducats.utils.npz_columns import AnyArray


@dataclass(frozen=True)
class AnnotatorHints:
    """Arrays with one entry per unit of a request, in its order."""

    guess: AnyArray  # class, int16
    probability: AnyArray  # of that class, float32
    u_dis: AnyArray  # float32
    u_data: AnyArray
    u_dis_quantile: AnyArray  # share of the pool (per-pixel labels: of the image) with a lower value, float32
    u_data_quantile: AnyArray
    segment: AnyArray  # int32; units of an image with the same number lie in one segment of its map

    def __len__(self) -> int:
        return len(self.guess)

    def save(self, path: Path) -> None:
        """Save atomically."""
        columns = {f.name: (getattr(self, f.name), HINT_DTYPES.get(f.name, np.float32)) for f in fields(self)}
        checksums.write(path, lambda file: npz_columns.write_archive(file, columns))

    @classmethod
    def load(cls, path: Path) -> "AnnotatorHints":
        """Load saved hints."""
        checksums.verify(path)
        try:
            columns = npz_columns.read_columns(path, ())
            return cls(**{f.name: columns[f.name] for f in fields(cls)})
        except npz_columns.READ_ERRORS as error:
            raise checksums.corrupt(path, error) from error


HINT_DTYPES = {"guess": np.int16, "segment": np.int32}
