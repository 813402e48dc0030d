"""What a model says about each image, and how sure it is: a line each."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning_fabric import Fabric

from ducats import dirichlet
from ducats.assemble import make_views, with_aspect
from ducats.data.folders import image_folder
from ducats.domain import Images
from ducats.engine.score import table
from ducats.files import write_text_atomically
from ducats.inference.trained import Trained


def predict(trained: Trained, fabric: Fabric, folder: Path, out: Path, *, every_class: bool = False) -> int:
    """Write what the model says about each image of a folder, and how sure it is; return their number.

    Args:
        trained: the model.
        fabric: device and processes.
        folder: images, in any sub-folders or none.
        out: the CSV to write: key, label, probability, entropy, u_data, u_dis.
        every_class: also a column with the probability of each class.
    """
    images = image_folder(folder, size=trained.size, channels=trained.channels)
    images = with_aspect(images, make_views(trained.config).test)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["key", "label", "probability", "entropy", "u_data", "u_dis"]
        + [f"p({name})" for name in (trained.classes if every_class else ())]
    )
    writer.writerows(_lines(trained, fabric, images, every_class))
    write_text_atomically(out, text.getvalue())
    return len(images)


def _lines(trained: Trained, fabric: Fabric, images: Images, every_class: bool) -> Iterator[list[object]]:
    rows = table(
        fabric.setup(trained.model),
        images,
        ("z",),
        view=make_views(trained.config).test,
        batch_size=trained.config.engine.scoring_batch,
        seed=trained.config.seed,
        fabric=fabric,
    )
    probability = dirichlet.expected_probability(rows.z)
    confidence, label = probability.max(dim=1)
    both = dirichlet.uncertainties(rows.z)
    numbers = torch.stack([confidence, dirichlet.entropy(rows.z), both.data, both.distribution], dim=1)
    if every_class:
        numbers = torch.cat([numbers, probability], dim=1)
    for key, winner, values in zip(images.keys, label.tolist(), numbers.tolist(), strict=True):
        yield [key, trained.classes[winner], *(f"{value:.6g}" for value in values)]
