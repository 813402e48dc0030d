"""Audit of live labelling: now and then, a question is drawn at random, and its label is not trained on."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.evaluation.audit import accuracy_interval, stage_level
from ducats.runfolder.label_files import AuditMarks
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.npz_columns import AnyArray
from ducats.utils.randomness import make_generator

DEFAULT_EVERY = 10  # questions, of which one is for the audit
FIRST_QUESTION = 20  # answers before the first question for the audit
FIRST_LOOK, LOOK_GROWTH = 10, 1.5  # audit labels at the first look, and their growth from look to look


class LiveAudit:
    """Draw images, keep those that the query does not select, and judge the model by their labels.

    As in a run, the audit consists of the first images in a random order of the pool, without those that are
    trained on. So it is a random sample of the others. The order depends on the keys only: it stays the same
    if the folder gets more images.

    The accuracy is computed when the audit reaches certain sizes, with errors that sum up to 5 % however many
    there will be. So all figures hold together, although the model changes and people look after each answer.

    Args:
        keys: of the pool.
        every: questions, of which one is for the audit; 0: none is drawn.
    """

    def __init__(self, run_folder: RunFolder, keys: Sequence[str], *, every: int, seed: int) -> None:
        self._run_folder, self._keys, self._every, self._seed = run_folder, keys, every, seed
        self._image_of = {key: image for image, key in enumerate(keys)}
        self._state = run_folder.load_live_audit()
        numbers = [blake2b(f"{seed}/{key}".encode(), digest_size=8).digest() for key in keys]
        self._order = torch.tensor(sorted(range(len(keys)), key=numbers.__getitem__), dtype=torch.long)

    @property
    def latest(self) -> dict[str, Any] | None:
        """The latest figures."""
        return dict(self._state.figures[-1]) if self._state.figures else None

    def mask(self) -> Tensor:
        """Return which images of the pool are for the audit, answered or not."""
        drawn = [key for key in self._state.drawn if key not in self._state.released]
        mask = torch.zeros(len(self._keys), dtype=torch.bool)
        mask[[self._image_of[key] for key in drawn if key in self._image_of]] = True
        return mask

    def draw(self, n_answers: int, labels: Tensor) -> None:
        """Draw what is due after a number of answers.

        Args:
            labels: of the pool, UNLABELLED where unknown.
        """
        n_missing = self._n_due(n_answers) - len(self._state.drawn)
        if n_missing > 0:
            free = self._order[((labels == UNLABELLED) & ~self.mask())[self._order]]
            keys = [self._keys[image] for image in free[:n_missing].tolist()]
            if keys:
                self._save(drawn=[*self._state.drawn, *keys])

    def unanswered(self, labels: Tensor) -> list[int]:
        """Return the images of the audit without a label."""
        return [int(i) for i in self._order[((labels == UNLABELLED) & self.mask())[self._order]]]

    def _n_due(self, n_answers: int) -> int:
        """Return how many questions are for the audit, one at a random position in each block of answers."""
        if not self._every or n_answers < FIRST_QUESTION:
            return 0
        block, position = divmod(n_answers - FIRST_QUESTION, self._every)
        generator = make_generator(self._seed, "audit question", block)
        return block + int(position >= torch.randint(self._every, (), generator=generator))

    def release(self, images: Iterable[int], round_number: int) -> None:
        """Train on images from now on: the query, or somebody, has selected them."""
        keys = {self._keys[image]: round_number for image in images}
        if keys:
            self._save(released={**self._state.released, **keys})

    def release_incomplete(self, labels: Tensor, round_number: int) -> None:
        """Release images that precede others in the random order which have not been asked yet.

        There are such images if the folder has got more images, of which the audit is no sample yet.
        """
        later = self._order[self._first_gap(labels) :]
        self.release(later[self.mask()[later]].tolist(), round_number)

    def look(self, labels: Tensor, predicted: AnyArray, probability: AnyArray) -> None:
        """Compute the accuracy if the audit has reached the next size.

        Args:
            labels: of the pool, UNLABELLED where unknown.
            predicted: class of each image of the pool.
            probability: of that class.
        """
        mask = self.mask()
        if bool(mask[self._order[self._first_gap(labels) :]].any()):  # new images in the folder come first
            return
        is_judged = (mask & (labels >= 0)).numpy()
        n, number = int(is_judged.sum()), len(self._state.figures)
        if n < round(FIRST_LOOK * LOOK_GROWTH**number):
            return
        is_other = (mask | (labels == UNLABELLED)).numpy()
        interval = accuracy_interval(
            (predicted == labels.numpy())[is_judged],
            probability[is_judged],
            pool_size=int(is_other.sum()),
            pool_confidence=float(probability[is_other].mean()),
            level=stage_level(number),
            voids=int((mask & (labels != UNLABELLED)).sum()) - n,
        )
        figures = {"labels": n, "accuracy": interval.estimate, "low": interval.low, "high": interval.high}
        self._save(figures=[*self._state.figures, figures])

    def marks(self, round_number: int, keys: Sequence[str]) -> AuditMarks:
        """Return the marks of a round in the ledger.

        Args:
            keys: of the images that were labelled in the round.
        """
        state, own = self._state, set(keys)
        drawn = {key for key in state.drawn if state.released.get(key, round_number + 1) > round_number}
        released = [
            self._image_of[key]
            for key, since in state.released.items()
            if since == round_number and key not in own and key in self._image_of
        ]
        index = np.array([i for i, key in enumerate(keys) if key in drawn], dtype=np.int64)
        image = np.array(released, dtype=np.int64)
        return AuditMarks(index, image, np.zeros_like(image))

    def _first_gap(self, labels: Tensor) -> int:
        """Return the position in the random order of the first image that is neither drawn nor labelled."""
        gaps = ((labels == UNLABELLED) & ~self.mask())[self._order].nonzero()
        return int(gaps[0]) if len(gaps) else len(self._order)

    def _save(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        self._run_folder.save_live_audit(self._state)
