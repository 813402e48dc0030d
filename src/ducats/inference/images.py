"""Predict the classes and uncertainties of images."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats import dirichlet
from ducats.data.folders import read_image_folder
from ducats.domain import Images
from ducats.factory import make_views, with_aspect_ratio
from ducats.files import write_text_atomically
from ducats.inference.rule import Rule, load_rule
from ducats.inference.trained import Trained
from ducats.training.image_selection import score_images

COLUMNS = ("probability", "entropy", "u_data", "u_dis")


class Said(NamedTuple):
    """Predictions for N images."""

    label: Tensor  # (N,)
    numbers: dict[str, Tensor]  # (N,) for each name in COLUMNS
    every_class: Tensor  # (N, C) probabilities


def predict(trained: Trained, fabric: Fabric, folder: Path, out: Path, *, every_class: bool = False) -> int:
    """Write the predictions for the images of a folder to a CSV file; return the number of images.

    Args:
        folder: images, with or without subfolders.
        out: CSV file with the columns key, label, probability, entropy, u_data and u_dis, and also triage
            (accept or review) if the run has a triage rule.
        every_class: add a column with the probability of each class.
    """
    rule = load_rule(trained.home.path)
    images = read_image_folder(folder, size=trained.size, channels=trained.channels)
    images = with_aspect_ratio(images, make_views(trained.config).test)
    said = say(trained, fabric, images)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["key", "label", *COLUMNS]
        + (["triage"] if rule is not None else [])
        + [f"p({name})" for name in (trained.classes if every_class else ())]
    )
    writer.writerows(_lines(said, images.keys, trained.classes, rule, every_class))
    write_text_atomically(out, text.getvalue())
    return len(images)


def say(trained: Trained, fabric: Fabric, images: Images) -> Said:
    """Predict images; return tensors on the CPU."""
    z = score_images(
        fabric.setup(trained.model),
        images,
        ("z",),
        view=make_views(trained.config).test,
        batch_size=trained.config.engine.scoring_batch_size,
        seed=trained.config.seed,
        fabric=fabric,
    ).z
    # Same batches as in streaming scoring: rounding may depend on the shape.
    parts = [said_of(some) for some in z.split(trained.config.engine.scoring_batch_size)]
    numbers = {name: torch.cat([part.numbers[name] for part in parts]) for name in COLUMNS}
    every_class = torch.cat([part.every_class for part in parts])
    return Said(torch.cat([part.label for part in parts]), numbers, every_class)


def said_of(z: Tensor) -> Said:
    """Compute predictions from log alpha ``(N, C)``."""
    probability = dirichlet.expected_probability(z)
    confidence, label = probability.max(dim=1)
    both = dirichlet.uncertainties(z)
    values = (confidence, dirichlet.entropy(z), both.data, both.distribution)
    return Said(label, dict(zip(COLUMNS, values, strict=True)), probability)


def _lines(
    said: Said, keys: tuple[str, ...], classes: tuple[str, ...], rule: Rule | None, every_class: bool
) -> Iterator[list[str]]:
    numbers = zip(*(said.numbers[name].tolist() for name in COLUMNS), strict=True)
    for place, (key, winner, values) in enumerate(zip(keys, said.label.tolist(), numbers, strict=True)):
        line = [key, classes[winner], *(f"{value:.6g}" for value in values)]
        if rule is not None:
            line.append("accept" if rule.accepts(values[COLUMNS.index(rule.by)]) else "review")
        if every_class:
            line += [f"{value:.6g}" for value in said.every_class[place].tolist()]
        yield line
