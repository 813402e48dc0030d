"""Model outputs that are shown to annotators, one entry per unit of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from ducats import columns
from ducats.columns import Array
from ducats.errors import UserError


@dataclass(frozen=True)
class Notes:
    """Arrays with one entry per unit of a request, in its order."""

    guess: Array  # class, int16
    probability: Array  # of that class, float32
    u_dis: Array  # float32
    u_data: Array
    u_dis_above: Array  # share of the pool (per-pixel labels: of the image) with a lower value, float32
    u_data_above: Array
    segment: Array  # int32; units of an image with the same number lie in one segment of its map

    def __len__(self) -> int:
        return len(self.guess)

    def save(self, path: Path) -> None:
        """Save atomically."""
        names = [f.name for f in fields(self)]
        columns.write(path, {name: (getattr(self, name), TYPES.get(name, np.float32)) for name in names})

    @classmethod
    def load(cls, path: Path) -> "Notes":
        """Load saved hints."""
        names: Sequence[str] = [f.name for f in fields(cls)]
        try:
            found = columns.read(path, ())
            return cls(**{name: found[name] for name in names})
        except columns.UNREADABLE as error:
            raise UserError(
                f"{path} is corrupt ({error}); delete it to continue without model hints in this round"
            ) from error


TYPES = {"guess": np.int16, "segment": np.int32}
