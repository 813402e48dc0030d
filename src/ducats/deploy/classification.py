"""Predict the classes and uncertainties of images."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats import dirichlet
from ducats.data.domain import Images
from ducats.data.folders import read_image_folder
from ducats.data.store import check_all_readable, decode_on_first_use
from ducats.deploy.trained_model import TrainedModel
from ducats.deploy.triage_rule import TriageRule, load_triage_rule
from ducats.run.factory import prepare_images
from ducats.utils.files import write_csv_atomically

UNREADABLE_FILE = "unreadable.csv"
PREDICTION_COLUMNS = ("probability", "entropy", "u_data", "u_dis")


class Predictions(NamedTuple):
    """Predictions for N images."""

    label: Tensor  # (N,)
    columns: dict[str, Tensor]  # (N,) for each name in PREDICTION_COLUMNS
    probabilities: Tensor  # (N, C)


class PredictedFolder(NamedTuple):
    """What became of the images of a folder."""

    n_predicted: int
    n_unreadable: int
    unreadable_file: Path  # lists the unreadable images; exists only if there are any


def predict(
    trained: TrainedModel,
    fabric: Fabric,
    folder: Path,
    out: Path,
    *,
    class_probabilities: bool = False,
    strict: bool = False,
) -> PredictedFolder:
    """Write the predictions for the images of a folder to a CSV file.

    Unreadable images are skipped and listed in ``NAME-unreadable.csv`` beside the file ``NAME.csv``.

    Args:
        folder: images, with or without subfolders.
        out: CSV file with the columns key, label, probability, entropy, u_data and u_dis, and also triage
            (accept or review) if the run has a triage rule.
        class_probabilities: add a column with the probability of each class.
        strict: raise if an image is unreadable.
    """
    rule = load_triage_rule(trained.run_folder.path)
    with decode_on_first_use(trained.embedding_cache):
        images = read_image_folder(
            folder, size=trained.size, channels=trained.channels, value_range=trained.value_range
        )
        if strict:
            check_all_readable(images.unreadable, len(images))
        images = prepare_images(images, trained.config.views.test)
    predictions = predict_images(trained, fabric, images)
    header = ["key", "label", *PREDICTION_COLUMNS, *(["triage"] if rule is not None else [])]
    header += [f"p({name})" for name in (trained.classes if class_probabilities else ())]
    rows = _csv_rows(predictions, images.keys, trained.classes, rule, class_probabilities)
    write_csv_atomically(out, header, rows)
    return list_unreadable(images, out.with_name(f"{out.stem}-{UNREADABLE_FILE}"))


def list_unreadable(images: Images, path: Path) -> PredictedFolder:
    """Write path and reason of unreadable images to a CSV file; if there are none, remove an earlier one."""
    if images.unreadable:
        rows = [(str(file.path), file.reason) for file in images.unreadable]
        write_csv_atomically(path, ("path", "reason"), rows)
    else:
        path.unlink(missing_ok=True)
    return PredictedFolder(len(images), len(images.unreadable), path)


def predict_images(trained: TrainedModel, fabric: Fabric, images: Images) -> Predictions:
    """Predict images; return tensors on the CPU."""
    predictor = trained.predictor(fabric, seed=trained.config.seed, stream=("scoring",))
    z = predictor.score_images(images, ("z",)).z
    # Same batches as in streaming scoring: rounding may depend on the shape.
    batches = [from_log_alpha(batch_z) for batch_z in z.split(predictor.batch_size)]
    columns = {name: torch.cat([batch.columns[name] for batch in batches]) for name in PREDICTION_COLUMNS}
    probabilities = torch.cat([batch.probabilities for batch in batches])
    return Predictions(torch.cat([batch.label for batch in batches]), columns, probabilities)


def from_log_alpha(z: Tensor) -> Predictions:
    """Compute predictions from log alpha ``(N, C)``."""
    probability = dirichlet.expected_probability(z)
    confidence, label = probability.max(dim=1)
    uncertainties = dirichlet.uncertainties(z)
    values = (confidence, dirichlet.entropy(z), uncertainties.data, uncertainties.distribution)
    return Predictions(label, dict(zip(PREDICTION_COLUMNS, values, strict=True)), probability)


def _csv_rows(
    predictions: Predictions,
    keys: tuple[str, ...],
    classes: tuple[str, ...],
    rule: TriageRule | None,
    class_probabilities: bool,
) -> Iterator[list[str]]:
    column_values = zip(*(predictions.columns[name].tolist() for name in PREDICTION_COLUMNS), strict=True)
    rows = zip(keys, predictions.label.tolist(), column_values, strict=True)
    for i, (key, class_index, values) in enumerate(rows):
        row = [key, classes[class_index], *(f"{value:.6g}" for value in values)]
        if rule is not None:
            accepted = rule.accepts(values[PREDICTION_COLUMNS.index(rule.criterion)])
            row.append("accept" if accepted else "review")
        if class_probabilities:
            row += [f"{value:.6g}" for value in predictions.probabilities[i].tolist()]
        yield row
