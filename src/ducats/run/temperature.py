"""Temperature fitted on the labels of earlier rounds."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ducats.data.domain import UNLABELLED
from ducats.evaluation.metrics import Tally, compute_metrics, reliability_bins
from ducats.evaluation.temperature_scaling import optimal_temperature
from ducats.runfolder import checksums, snapshot_files
from ducats.runfolder.run_folder import RunFolder

_NO_PROBABILITY = -1e4  # logit of a class that was added later


def calibration_record(tally: Tally) -> dict[str, Any]:
    """Return the metrics that temperature scaling changes, for the record."""
    metrics = compute_metrics(tally)
    return {
        **{name: metrics[name] for name in ("ece", "nll", "brier")},
        "reliability": reliability_bins(tally),
    }


class FittedTemperature(NamedTuple):
    """A temperature and the number of labels it was fitted on."""

    temperature: float
    labels: int


def fit_temperature(run_folder: RunFolder, rounds: int) -> FittedTemperature | None:
    """Fit a temperature on the labels of the first rounds.

    The logits are those of the snapshot before each round, when the model had not been trained on the labels.
    Returns None if there are too few labels or no snapshots.
    """
    z, labels = list[Tensor](), list[Tensor]()
    for round_number in range(1, rounds + 1):
        path, labelled = (
            snapshot_files.snapshot_path(run_folder.path, round_number),
            run_folder.load_round_labels(round_number, rounds),
        )
        checksums.verify(path)
        if labelled is None or not len(labelled.label) or not path.exists():
            continue
        saved = snapshot_files.load_snapshot(path)
        saved_locations = saved.image[saved.z_rows].astype(np.int64) << 32 | saved.position[saved.z_rows]
        labelled_locations = labelled.image << 32 | labelled.position
        order = np.argsort(labelled_locations)
        index = order[
            np.searchsorted(labelled_locations, saved_locations, sorter=order).clip(max=len(order) - 1)
        ]
        is_match = labelled_locations[index] == saved_locations
        z.append(torch.from_numpy(saved.z[is_match]))
        found = torch.from_numpy(labelled.label[index[is_match]].astype(np.int64))
        labels.append(torch.where(found < saved.z.shape[1], found, UNLABELLED))  # or the class was unknown
    if not z:
        return None
    all_labels, n_classes = torch.cat(labels), max(one.shape[1] for one in z)
    padded = [pad(one, (0, n_classes - one.shape[1]), value=_NO_PROBABILITY) for one in z]
    temperature = optimal_temperature(torch.cat(padded), all_labels)
    return None if temperature is None else FittedTemperature(temperature, int((all_labels >= 0).sum()))
