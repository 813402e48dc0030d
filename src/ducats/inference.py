"""What a finished run's model says about other images."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from pydantic import ValidationError

from ducats import dirichlet
from ducats.assemble import load_data, make_model, make_views, with_aspect, with_aspects
from ducats.config import Config
from ducats.data.exam import MeasuredOn, examine
from ducats.data.folders import image_folder, labelled_folder
from ducats.domain import UNLABELLED, Domain, Images
from ducats.engine.evaluate import evaluate
from ducats.engine.score import table
from ducats.errors import UserError
from ducats.files import write_text_atomically
from ducats.metrics import Tally
from ducats.models import Evidential
from ducats.parts import digest
from ducats.rundir import RunDir


@dataclass(frozen=True)
class Trained:
    """The model of a finished run, with what is needed to use it."""

    model: Evidential
    config: Config
    classes: tuple[str, ...]
    size: int  # stored side of its images
    channels: int
    home: RunDir


def load_trained(folder: Path) -> Trained:
    """Load a finished run's model; no code is executed from the file."""
    home = RunDir(folder)
    try:
        config = Config.model_validate(home.identity)
    except ValidationError:
        raise UserError(
            f"{folder} was not made by `ducats run` of this version: its config.yaml does not say how to "
            "build the model; build it in Python and load RunDir(folder).model() into it"
        ) from None
    data = home.data
    model = make_model(config, len(data["classes"]), data["channels"], begun=True)
    model.network.load_state_dict(home.model())
    return Trained(model, config, tuple(data["classes"]), data["size"], data["channels"], home)


def usable_precision(trained: Trained, device: str) -> str:
    """The run's own precision, so that numbers agree; float32 where a CPU lacks it."""
    precision = trained.config.engine.precision
    gpu = device != "cpu" and torch.cuda.is_available()
    return "32-true" if precision == "16-mixed" and not gpu else precision


def measure(trained: Trained, fabric: Fabric, folder: Path | None = None) -> tuple[Tally, str]:
    """Measure on the run's own test images, or on a folder of labelled ones; say which they are.

    Args:
        trained: the model.
        fabric: device and processes.
        folder: ``class/...``; None for the images that the run was measured on.
    """
    view, only, on = make_views(trained.config).test, None, f"the folder {folder}"
    if folder is None:
        test, on = _own_test(trained)
        if on == "unlabelled":
            only = (trained.home.bought().targets() == UNLABELLED).nonzero().squeeze(1)
    else:
        test = labelled_folder(folder, trained.classes, size=trained.size, channels=trained.channels)
        test = replace(test, images=with_aspect(test.images, view))
    batch_size = trained.config.engine.scoring_batch
    tally = evaluate(
        fabric.setup(trained.model), test, view=view, batch_size=batch_size, fabric=fabric, only=only
    )
    return tally, on


def _own_test(trained: Trained) -> tuple[Domain, MeasuredOn]:
    """The images that the run was measured on."""
    config = trained.config
    shift, measured_on = examine(load_data(config), config.evaluation.images, config.evaluation.share)
    test = with_aspects(shift, make_views(config)).test
    if test is None:
        raise UserError("this run has no test set of its own: give a folder of labelled images with --data")
    known = trained.home.data
    for name, now in (("pool", digest(shift.pool.keys)), ("test", digest(test.images.keys, test.labels))):
        if known[name]["keys"] != now:
            raise UserError(
                f"the {name} has other images or labels than when {trained.home.folder} was made: restore "
                "them, or give a folder of labelled images with --data"
            )
    return test, measured_on


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
