"""Labels of an earlier run, with which another run starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.ledger.label_ledger import Ledger, load_ledger
from ducats.ledger.request import Request
from ducats.runfolder.label_files import AuditMarks
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError
from ducats.utils.findings import join_quoted


@dataclass(frozen=True)
class InitialLabels:
    """Labels of pool images that are known before a run. They are its first round."""

    image: Tensor  # (n,) int64, indices into the pool
    label: Tensor  # (n,) int64, a class or VOID
    seconds: Tensor | None = None  # (n,) annotation time, 0 if unknown; None if unknown for all
    is_audit: Tensor | None = None  # (n,) bool, whether a label is for the audit; None if none is
    n_unmatched: int = 0  # labels of images that are not in the pool
    new_classes: tuple[str, ...] = ()  # added in the earlier run, numbered after those of the data

    def __len__(self) -> int:
        return len(self.image)

    @property
    def request(self) -> Request:
        """The request of the first round."""
        marks = AuditMarks() if self.is_audit is None else AuditMarks(np.flatnonzero(self.is_audit.numpy()))
        return Request(1, self.image, torch.zeros_like(self.image), marks=marks)


def open_initial_ledger(folder: Path) -> Ledger:
    """Open the ledger of an earlier run; raise if it has no labels of images."""
    run_folder = RunFolder(folder)
    if not run_folder.labelled_rounds():
        raise UserError(
            f"{folder} has no labels of a run; give the folder of a run that has acquired labels, or of live "
            "labelling that was ended with Ctrl-C"
        )
    ledger = load_ledger(run_folder)
    if ledger.sizes is not None:
        raise UserError(f"{folder} has labels of pixels; a run can only start from labels of images")
    return ledger


def load_initial_labels(
    folder: Path, keys: Sequence[str], classes: Sequence[str], n_rounds: int | None = None
) -> InitialLabels:
    """Return the labels of an earlier run, corrected, in the order in which they were acquired.

    Images are matched by key, classes by name; a class of the earlier run also by its former names.

    Args:
        folder: run folder.
        keys: of the pool.
        classes: of the new run.
        n_rounds: number of rounds whose labels are read; None for all.

    Raises:
        UserError: the run has no labels of these images, or labels of pixels, or other classes.
    """
    earlier, ledger = RunFolder(folder).classes, open_initial_ledger(folder)
    earlier_classes, added = earlier.resolved_names, [name for name, _ in earlier.added]
    index, number = (
        {key: image for image, key in enumerate(keys)},
        {name: i for i, name in enumerate(classes)},
    )
    for i, name in enumerate(classes):
        if (renamed := earlier.number(name)) is not None:
            number.setdefault(earlier.names[renamed], i)
    entries = [entry for entry in ledger.entries() if n_rounds is None or entry.round <= n_rounds]
    used = sorted({entry.label for entry in entries if entry.label >= 0})
    unknown = [earlier_classes[label] for label in used if earlier_classes[label] not in number]
    new_classes = tuple(name for name in dict.fromkeys(unknown) if name in added)
    number |= {name: len(classes) + i for i, name in enumerate(new_classes)}
    unknown = [name for name in unknown if name not in new_classes]
    if unknown:
        raise UserError(
            f"{folder} has labels of {join_quoted(unknown)}, but the classes are {join_quoted(classes)}; add "
            "what is missing with --classes or in the source"
        )
    seconds = ledger.unit_seconds()
    is_audit = dict(zip(ledger.keys, (ledger.audit_labels() != UNLABELLED).tolist(), strict=True))
    kept = [i for i, entry in enumerate(entries) if entry.key in index]
    if not kept:
        example = f", such as {entries[0].key!r}," if entries else ""
        raise UserError(
            f"{folder} has {len(entries)} labels, but none of an image of the target: its images{example} "
            "must have the same paths below --target"
        )
    return InitialLabels(
        torch.tensor([index[entries[i].key] for i in kept]),
        torch.tensor(
            [e if e < 0 else number[earlier_classes[e]] for e in (entries[i].label for i in kept)],
            dtype=torch.long,
        ),
        None if seconds is None else seconds[kept],
        # The audit is a random sample of the earlier pool only.
        torch.tensor([is_audit[entries[i].key] for i in kept]) if set(keys) <= is_audit.keys() else None,
        len(entries) - len(kept),
        new_classes,
    )
