"""What a model says about each image, and how sure it is: a line each."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats import dirichlet
from ducats.assemble import make_views, with_aspect
from ducats.data.folders import image_folder
from ducats.domain import Images
from ducats.engine.score import table
from ducats.files import write_text_atomically
from ducats.inference.rule import Rule, load_rule
from ducats.inference.trained import Trained

COLUMNS = ("probability", "entropy", "u_data", "u_dis")


class Said(NamedTuple):
    """What the model says about each of some images: ``(N,)`` each, and ``(N, C)`` probabilities."""

    label: Tensor
    numbers: dict[str, Tensor]  # by the names in COLUMNS
    every_class: Tensor


def predict(trained: Trained, fabric: Fabric, folder: Path, out: Path, *, every_class: bool = False) -> int:
    """Write what the model says about each image of a folder, and how sure it is; return their number.

    Args:
        trained: the model.
        fabric: device and processes.
        folder: images, in any sub-folders or none.
        out: the CSV to write: key, label, probability, entropy, u_data, u_dis; and triage, accept or review,
            where `ducats triage` found a rule.
        every_class: also a column with the probability of each class.
    """
    rule = load_rule(trained.home.folder)
    images = image_folder(folder, size=trained.size, channels=trained.channels)
    images = with_aspect(images, make_views(trained.config).test)
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
    """What the model says about images, on the CPU."""
    z = table(
        fabric.setup(trained.model),
        images,
        ("z",),
        view=make_views(trained.config).test,
        batch_size=trained.config.engine.scoring_batch,
        seed=trained.config.seed,
        fabric=fabric,
    ).z
    # Batch by batch, as images are scored that stream by: formulas may round otherwise in other shapes.
    parts = [said_of(some) for some in z.split(trained.config.engine.scoring_batch)]
    numbers = {name: torch.cat([part.numbers[name] for part in parts]) for name in COLUMNS}
    every_class = torch.cat([part.every_class for part in parts])
    return Said(torch.cat([part.label for part in parts]), numbers, every_class)


def said_of(z: Tensor) -> Said:
    """What log alpha ``(N, C)`` says."""
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
