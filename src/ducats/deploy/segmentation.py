"""Predict label maps and per-pixel uncertainties of images."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from PIL import Image
from torch import Tensor

from ducats import dirichlet
from ducats.annotation.oracles.mask_files import png_names
from ducats.data.decoding import read_image_sizes
from ducats.data.folders import read_image_folder
from ducats.data.store import check_all_readable
from ducats.deploy.classification import (
    PREDICTION_COLUMNS,
    UNREADABLE_FILE,
    PredictedFolder,
    list_unreadable,
)
from ducats.deploy.trained_model import TrainedModel
from ducats.evaluation.evaluate import log_probabilities
from ducats.models.output import Output
from ducats.models.upsampling import upsample
from ducats.run.factory import prepare_images
from ducats.training.predictor import check_finite
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically, write_csv_atomically, write_text_atomically
from ducats.utils.palette import class_colours

_MAX_PALETTE_CLASSES = 256  # classes; more need 16-bit PNGs, which have no palette


def predict_label_maps(
    trained: TrainedModel,
    fabric: Fabric,
    folder: Path,
    out: Path,
    *,
    uncertainty_maps: bool = False,
    strict: bool = False,
) -> PredictedFolder:
    """Write a label map for each image of a folder, at the size of the image.

    ``out/labels/`` holds one PNG of class indices per image, with a colour palette for up to 256 classes and
    with 16 bits for more. ``out/classes.txt`` lists the index and name of each class. ``out/predictions.csv``
    has one line per image: its file, the means over its pixels, and the fraction of each class. If the run
    was evaluated with flip averaging, the maps are averaged as well. Unreadable images are skipped and listed
    in ``out/unreadable.csv``.

    Args:
        folder: images, with or without subfolders.
        uncertainty_maps: also write ``out/uncertainty/``, one NPZ per image with probability, entropy, u_data
            and u_dis of each pixel as float16.
        strict: raise if an image is unreadable.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder; give another --out")
    images = read_image_folder(
        folder, size=trained.size, channels=trained.channels, value_range=trained.value_range
    )
    if strict:
        check_all_readable(images.unreadable, len(images))
    images = prepare_images(images, trained.config.views.test)
    assert images.files is not None
    original_sizes, flip = read_image_sizes(images.files), trained.config.evaluation.average_flipped
    predictor, names = trained.predictor(fabric), png_names(images.keys)
    batches = torch.arange(len(images)).split(predictor.batch_size)
    header = ["key", "file", *PREDICTION_COLUMNS, *(f"share({name})" for name in trained.classes)]
    rows = []
    # Not around `predictor`: the moved parameters must not become inference tensors.
    with torch.inference_mode():
        for index, output in predictor.forward(images, batches, append_flipped=flip):
            check_finite(output.z)
            for i, image in enumerate(index.tolist()):
                height, width = original_sizes[image].tolist()
                mirror_index = len(index) + i if flip else None
                label, values = _predict_pixels(output, i, mirror_index, (height, width))
                _write_labels(out / "labels" / names[image], label, trained.classes)
                if uncertainty_maps:
                    path = out / "uncertainty" / f"{names[image].removesuffix('.png')}.npz"
                    _write_uncertainties(path, values)
                row_values = _csv_values(label, values, len(trained.classes))
                rows.append([images.keys[image], f"labels/{names[image]}", *row_values])
    class_list = "".join(f"{number} {name}\n" for number, name in enumerate(trained.classes))
    write_text_atomically(out / "classes.txt", class_list)
    write_csv_atomically(out / "predictions.csv", header, rows)
    return list_unreadable(images, out / UNREADABLE_FILE)


def _predict_pixels(
    output: Output, index: int, mirror_index: int | None, size: tuple[int, int]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the label map and the per-pixel values of one image, averaged with its mirror image if given."""
    log_p = log_probabilities(output, [index], size, None if mirror_index is None else mirror_index - index)
    values = _pixel_uncertainties(output, index, size)
    if mirror_index is not None:
        mirror_values = _pixel_uncertainties(output, mirror_index, size)
        values = [(value + other.flip(-1)) / 2 for value, other in zip(values, mirror_values, strict=True)]
    confidence, label = log_p.max(dim=1)
    columns = (confidence[0].exp(), *(value[0] for value in values))
    return label[0], dict(zip(PREDICTION_COLUMNS, columns, strict=True))


def _pixel_uncertainties(output: Output, index: int, size: tuple[int, int]) -> list[Tensor]:
    """Return entropy, U_data and U_dis, ``(1, H, W)`` each."""
    z = upsample(output._replace(z=output.z[index : index + 1]), size)
    uncertainties = dirichlet.uncertainties(z)
    return [dirichlet.entropy(z), uncertainties.data, uncertainties.distribution]


def _csv_values(label: Tensor, values: dict[str, Tensor], n_classes: int) -> Iterator[str]:
    fractions = torch.bincount(label.flatten().cpu(), minlength=n_classes).double() / label.numel()
    for value in (*(float(v.cpu().double().mean()) for v in values.values()), *fractions.tolist()):
        yield f"{value:.6g}"


def _write_uncertainties(path: Path, values: dict[str, Tensor]) -> None:
    arrays: dict[str, Any] = {name: value.half().cpu().numpy() for name, value in values.items()}
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


def _write_labels(path: Path, label: Tensor, classes: tuple[str, ...]) -> None:
    indices = label.cpu().numpy()
    if len(classes) > _MAX_PALETTE_CLASSES:
        png = Image.fromarray(indices.astype(np.uint16))
    else:
        png = Image.fromarray(indices.astype(np.uint8))
        png.putpalette([channel for colour in class_colours(classes) for channel in colour])
    write_atomically(path, partial(png.save, format="PNG"))
