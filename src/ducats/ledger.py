"""The ledger: every label that was bought, append-only on disk. Labels spent is what it holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from ducats.domain import UNLABELLED
from ducats.errors import UserError
from ducats.files import write_atomically


@dataclass(frozen=True)
class Request:
    """Addresses to be labelled, in the order in which they were chosen."""

    round: int  # 1 for the first question
    image: Tensor  # (Q,) int64, index into the pool
    position: Tensor  # (Q,) int64, 0 when whole images are bought

    def __len__(self) -> int:
        return len(self.image)

    def save(self, path: Path) -> None:
        """Write the request; whole or not at all."""
        _save(path, round=np.array(self.round), image=self.image.numpy(), position=self.position.numpy())

    @classmethod
    def load(cls, path: Path) -> "Request":
        """Read a request."""
        with np.load(path, allow_pickle=False) as data:
            image, position = torch.from_numpy(data["image"]), torch.from_numpy(data["position"])
            return cls(int(data["round"]), image, position)


class Entry(NamedTuple):
    """One bought label, by name."""

    round: int  # 1 for the first question
    key: str
    position: int
    label: int


class Ledger:
    """Labels by round, one file each; a round is there as a whole or not at all, and is never changed.

    Args:
        folder: where the rounds lie.
        keys: the pool's stable names; addresses are indices into them.
    """

    def __init__(self, folder: Path, keys: Sequence[str]) -> None:
        self.folder = folder
        self.keys = keys
        self._rounds: list[tuple[Request, Tensor]] = []
        while (path := self._path(self.rounds + 1)).exists():
            self._rounds.append(self._read(path, self.rounds + 1))
        stray = sorted(folder.glob("round-*.npz"))[self.rounds :]
        if stray:
            raise UserError(
                f"{folder} has {stray[0].name} but no {self._path(self.rounds + 1).name}: "
                "a round of the ledger was removed; put it back or start a new run"
            )

    @property
    def rounds(self) -> int:
        """How many rounds were bought."""
        return len(self._rounds)

    def __len__(self) -> int:
        """Labels spent."""
        return self.spent()

    def spent(self, rounds: int | None = None) -> int:
        """Labels spent in the first so many rounds, or in all."""
        return sum(len(labels) for _, labels in self._rounds[:rounds])

    def append(self, request: Request, labels: Tensor) -> None:
        """Enter one round; refuse anything but one answer per question, and any address asked before."""
        if request.round != self.rounds + 1:
            raise ValueError(f"round {request.round} after {self.rounds} rounds")
        if labels.shape != request.image.shape:
            raise ValueError(f"asked for {len(request)} labels, got {len(labels)}")
        if bool((labels == UNLABELLED).any()):
            raise ValueError("an answer must be a class or VOID, not UNLABELLED")
        known = {tuple(a) for r, _ in self._rounds for a in _addresses(r).tolist()}
        asked = [tuple(a) for a in _addresses(request).tolist()]
        if len(set(asked)) != len(asked) or not known.isdisjoint(asked):
            raise ValueError("a label was asked for twice: a query must pick distinct, unlabelled rows")
        _save(
            self._path(self.rounds + 1),
            image=request.image.numpy().astype(np.int32),
            position=request.position.numpy().astype(np.int32),
            label=labels.numpy().astype(np.int32),
        )
        self._rounds.append((request, labels))

    def targets(self, rounds: int | None = None) -> Tensor:
        """The pool's labels as far as they were bought: ``(len(pool),)``, UNLABELLED elsewhere.

        Args:
            rounds: the first so many rounds only. An epoch that is repeated must not see labels that were
                bought after it.
        """
        targets = torch.full((len(self.keys),), UNLABELLED, dtype=torch.long)
        for request, labels in self._rounds[:rounds]:
            targets[request.image] = labels
        return targets

    def entries(self) -> Iterator[Entry]:
        """Every bought label in the order of buying."""
        for request, labels in self._rounds:
            for image, position, label in zip(
                request.image.tolist(), request.position.tolist(), labels.tolist(), strict=True
            ):
                yield Entry(request.round, self.keys[image], position, label)

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:02d}.npz"

    def _read(self, path: Path, number: int) -> tuple[Request, Tensor]:
        try:
            # Opened here, since np.load leaves a broken file open.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                image, position, label = (
                    torch.from_numpy(data[name].astype(np.int64)) for name in ("image", "position", "label")
                )
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(
                f"{path} cannot be read ({error}): restore it from a copy, its labels were paid for"
            ) from error
        if len(image) and int(image.max()) >= len(self.keys):
            raise UserError(f"{path} names image {int(image.max())}, but the pool has {len(self.keys)}")
        return Request(number, image, position), label


def _save(path: Path, **columns: np.typing.NDArray[Any]) -> None:
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **columns))


def _addresses(request: Request) -> Tensor:
    return torch.stack([request.image, request.position], dim=1)
