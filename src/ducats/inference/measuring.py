"""Evaluate the model of a finished run on its own test images or on a folder of labelled images."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric

from ducats.components import data_digest
from ducats.data.evaluation_split import EvaluatedOn, attach_test_set
from ducats.data.folders import read_labelled_folder
from ducats.data.segmentation import load_segmentation_folder
from ducats.domain import UNLABELLED, Domain
from ducats.errors import UserError
from ducats.factory import load_data, make_task, make_views, with_aspect_ratio, with_aspect_ratios
from ducats.inference.trained import Trained
from ducats.ledger import TargetMaps
from ducats.metrics import Tally, compute_metrics
from ducats.training.evaluation import (
    describe_resolution,
    evaluate,
    evaluate_segmentation,
    segmentation_metrics,
)


@dataclass(frozen=True)
class Measured:
    """Result of an evaluation."""

    tally: Tally
    on: str  # held_out, unlabelled, target, or the folder
    images: int
    resolution: str | None = None  # of the compared label maps; None for per-image labels

    def numbers(self, classes: tuple[str, ...], star_without: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return all metrics by name.

        In segmentation they include the IoU of each class, None for classes that do not occur.

        Args:
            star_without: classes excluded from ``mean_iou_star``; if empty, this metric is omitted.
        """
        said: dict[str, Any] = {"evaluated_on": self.on, "images": self.images}
        if self.resolution is not None:
            said |= {"pixels": self.tally.total, "resolution": self.resolution}
        if not self.tally.total:
            return said
        numbers: dict[str, Any] = compute_metrics(self.tally)
        if self.resolution is not None:
            more = segmentation_metrics(self.tally.confusion, classes, star_without)
            by_class = dict(zip(classes, more.pop("class_iou"), strict=True))
            numbers = {"mean_iou": numbers["mean_iou"], **more, **numbers, "class_iou": by_class}
        return said | numbers


def measure(trained: Trained, fabric: Fabric, folder: Path | None = None) -> Measured:
    """Evaluate on the run's own test images or on a folder of labelled images.

    Args:
        folder: ``class/...``, or ``images/`` and ``labels/`` in segmentation; None means the images that the
            run was evaluated on.
    """
    if trained.of_pixels:
        return _measure_maps(trained, fabric, folder)
    view, only, on = make_views(trained.config).test, None, f"the folder {folder}"
    if folder is None:
        test, on = own_test(trained)
        if on == "unlabelled":
            only = (trained.home.load_ledger().targets() == UNLABELLED).nonzero().squeeze(1)
    else:
        test = read_labelled_folder(folder, trained.classes, size=trained.size, channels=trained.channels)
        test = replace(test, images=with_aspect_ratio(test.images, view))
    batch_size = trained.config.engine.scoring_batch_size
    tally = evaluate(
        fabric.setup(trained.model), test, view=view, batch_size=batch_size, fabric=fabric, indices=only
    )
    return Measured(tally, on, tally.total)


def _measure_maps(trained: Trained, fabric: Fabric, folder: Path | None) -> Measured:
    task, bought, on = make_task(trained.config), None, f"the folder {folder}"
    if folder is None:
        test, on = own_test(trained)
        if on == "unlabelled":
            bought = TargetMaps(
                trained.home.load_ledger(), None, void=test.images.void_masks
            ).at_label_resolution
    else:
        test = _labelled_maps(trained, folder)
    tally = evaluate_segmentation(
        fabric.setup(trained.model),
        test,
        view=make_views(trained.config).test,
        batch_size=trained.config.engine.scoring_batch_size,
        fabric=fabric,
        resolution=task.evaluated_at,
        flip=task.average_flipped,
        known_labels_of=bought,
    )
    return Measured(tally, on, len(test), describe_resolution(test, task.evaluated_at))


def _labelled_maps(trained: Trained, folder: Path) -> Domain:
    """Load a folder of images and label maps with the run's own class list."""
    data = trained.config.data
    if data.name != "segmentation_folders":
        raise UserError(
            "--data needs the class list of a run with data.name=segmentation_folders, but this run has data.name="
            f"{data.name}; omit --data to evaluate on the run's own test images"
        )
    known = {name: data.params[name] for name in CLASS_LIST if name in data.params}
    test = load_segmentation_folder(folder, size=trained.size, **known)
    if test.classes != trained.classes:
        raise UserError(
            f"the class list of {trained.home.path} has changed since training (now "
            f"{', '.join(test.classes)}; then {', '.join(trained.classes)}); restore it"
        )
    return test


CLASS_LIST = ("classes", "root", "merge", "keep", "coded")  # parameters that define the label encoding


def own_test(trained: Trained) -> tuple[Domain, EvaluatedOn]:
    """Return the images that the run was evaluated on, and their kind."""
    config = trained.config
    shift, measured_on = attach_test_set(
        load_data(config), config.evaluation.split, config.evaluation.test_fraction
    )
    test = with_aspect_ratios(shift, make_views(config)).test
    if test is None:
        raise UserError("this run has no test set; give a folder of labelled images with --data")
    known = trained.home.data_summary
    for name, now in (
        ("pool", data_digest(shift.pool.keys)),
        ("test", data_digest(test.images.keys, test.labels)),
    ):
        if known[name]["keys"] != now:
            raise UserError(
                f"the images or labels of the {name} have changed since the run {trained.home.path}; "
                "restore them, or give a folder of labelled images with --data"
            )
    return test, measured_on
