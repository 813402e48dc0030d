"""Evaluate the model of a finished run on its own test images or on a folder of labelled images."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor

from ducats.data.domain import UNLABELLED, Domain, UnreadableFile, subset_images
from ducats.data.evaluation_split import EvaluatedOn, attach_test_set
from ducats.data.folders import read_labelled_folder
from ducats.data.segmentation.folders import load_segmentation_folder
from ducats.data.store import check_all_readable, decode_on_first_use
from ducats.deploy.trained_model import TrainedModel
from ducats.evaluation.evaluate import (
    describe_resolution,
    evaluate,
    evaluate_segmentation,
    segmentation_metrics,
)
from ducats.evaluation.metrics import Tally, compute_metrics
from ducats.ledger import TargetMaps, load_ledger
from ducats.run.class_growth import with_current_classes
from ducats.run.components import data_digest
from ducats.run.factory import load_data, prepare_images
from ducats.utils.errors import UserError


@dataclass(frozen=True)
class EvaluationResult:
    """Result of an evaluation."""

    tally: Tally
    evaluated_on: str  # held_out, unlabelled, target, or the folder
    images: int
    resolution: str | None = None  # of the compared label maps; None for per-image labels
    unreadable: tuple[UnreadableFile, ...] = ()  # files whose images were skipped

    def metrics(self, classes: tuple[str, ...], miou_star_exclude: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return all metrics by name.

        In segmentation they include the IoU of each class, None for classes that do not occur.

        Args:
            miou_star_exclude: classes excluded from ``mean_iou_star``; if empty, this metric is omitted.
        """
        result: dict[str, Any] = {"evaluated_on": self.evaluated_on, "images": self.images}
        if self.unreadable:
            result["unreadable"] = {str(path): reason for path, reason in self.unreadable}
        if self.resolution is not None:
            result |= {"pixels": self.tally.total, "resolution": self.resolution}
        if not self.tally.total:
            return result
        values: dict[str, Any] = compute_metrics(self.tally)
        if self.resolution is not None:
            pixel_metrics = segmentation_metrics(self.tally.confusion, classes, miou_star_exclude)
            by_class = dict(zip(classes, pixel_metrics.pop("class_iou"), strict=True))
            values = {"mean_iou": values["mean_iou"], **pixel_metrics, **values, "class_iou": by_class}
        return result | values


def evaluate_run(
    trained: TrainedModel, fabric: Fabric, folder: Path | None = None, *, strict: bool = False
) -> EvaluationResult:
    """Evaluate on a folder of labelled images, or on those that the run was evaluated on.

    The folder has ``class/...``, or ``images/`` and ``labels/`` in segmentation.

    Args:
        strict: raise if a file is unreadable, instead of skipping its image.
    """
    if trained.per_pixel:
        return _evaluate_segmentation(trained, fabric, folder, strict)
    unlabelled_indices, evaluated_on = None, f"the folder {folder}"
    if folder is None:
        test, evaluated_on = load_test_set(trained)
        if evaluated_on == "unlabelled":
            unlabelled_indices = images_not_trained_on(trained).nonzero().squeeze(1)
    else:
        test = load_labelled_folder(trained, folder)
    if strict:
        check_all_readable(test.images.unreadable, len(test))
    tally = evaluate(trained.predictor(fabric), test, indices=unlabelled_indices)
    return EvaluationResult(tally, evaluated_on, tally.total, unreadable=test.images.unreadable)


def _evaluate_segmentation(
    trained: TrainedModel, fabric: Fabric, folder: Path | None, strict: bool
) -> EvaluationResult:
    options, known_labels_of, evaluated_on = trained.config.evaluation, None, f"the folder {folder}"
    if folder is None:
        test, evaluated_on = load_test_set(trained)
        if evaluated_on == "unlabelled":
            known_labels_of = TargetMaps(
                load_ledger(trained.run_folder),
                None,
                void=test.images.void_masks,
                with_audit=trained.config.acquisition.release_audit,
            ).at_label_resolution
    else:
        test = _load_labelled_maps(trained, folder)
    if strict:
        check_all_readable(test.images.unreadable, len(test))
    tally = evaluate_segmentation(
        trained.predictor(fabric),
        test,
        resolution=options.resolution,
        average_flipped=options.average_flipped,
        known_labels_of=known_labels_of,
    )
    resolution = describe_resolution(test, options.resolution)
    return EvaluationResult(tally, evaluated_on, len(test), resolution, test.images.unreadable)


def _load_labelled_maps(trained: TrainedModel, folder: Path) -> Domain:
    """Load a folder of images and label maps with the run's own class list."""
    data = trained.config.data
    if data.name != "segmentation_folders":
        raise UserError(
            "--data needs the class list of a run with data.name=segmentation_folders, but this run has "
            f"data.name={data.name}; omit --data to evaluate on the run's own test images"
        )
    class_list_params = {name: data.params[name] for name in _CLASS_LIST_PARAMS if name in data.params}
    test = load_segmentation_folder(
        folder, size=trained.size, value_range=trained.value_range, **class_list_params
    )
    classes = trained.run_folder.classes
    if test.classes != classes.initial:
        raise UserError(
            f"the class list of {trained.run_folder.path} has changed since training (now "
            f"{', '.join(test.classes)}; then {', '.join(classes.initial)}); restore it"
        )
    test = with_current_classes(test, classes)
    return replace(test, images=prepare_images(test.images, trained.config.views.test))


# Parameters that define the label encoding.
_CLASS_LIST_PARAMS = ("classes", "root", "merge_classes", "keep_classes", "label_format")


def load_labelled_folder(trained: TrainedModel, folder: Path) -> Domain:
    """Read labelled images, ``class/...``, for the model's test view."""
    with decode_on_first_use(trained.embedding_cache):
        test = read_labelled_folder(
            folder,
            trained.classes,
            size=trained.size,
            channels=trained.channels,
            value_range=trained.value_range,
        )
        return replace(test, images=prepare_images(test.images, trained.config.views.test))


def load_test_set(trained: TrainedModel) -> tuple[Domain, EvaluatedOn]:
    """Return the images that the run was evaluated on, and their kind."""
    config = trained.config
    data, evaluated_on = attach_test_set(
        load_data(config), config.evaluation.split, config.evaluation.test_fraction
    )
    if data.test is None:
        raise UserError("this run has no test set; give a folder of labelled images with --data")
    with decode_on_first_use(trained.embedding_cache):
        test = replace(data.test, images=prepare_images(data.test.images, config.views.test))
    _check_unchanged(
        trained, pool=data_digest(data.pool.keys), test=data_digest(test.images.keys, test.labels)
    )
    return with_current_classes(test, trained.run_folder.classes), evaluated_on


def images_not_trained_on(trained: TrainedModel) -> Tensor:
    """Return a mask of the target images whose labels the model was not trained on."""
    with_audit = trained.config.acquisition.release_audit
    return load_ledger(trained.run_folder).targets(with_audit=with_audit) == UNLABELLED


def load_audit_set(trained: TrainedModel) -> Domain:
    """Return the audit images of a run; labels may be VOID.

    They are a random sample of the target images that its model was not trained on.
    """
    pool = load_data(trained.config).pool
    _check_unchanged(trained, pool=data_digest(pool.keys))
    labels = load_ledger(trained.run_folder).audit_labels()
    index = (labels != UNLABELLED).nonzero().squeeze(1)
    with decode_on_first_use(trained.embedding_cache):
        images = prepare_images(subset_images(pool, index), trained.config.views.test)
    test = Domain(images, labels[index], trained.run_folder.classes.names)
    return with_current_classes(test, trained.run_folder.classes)


def _check_unchanged(trained: TrainedModel, **digests: str) -> None:
    """Raise if the images or labels of a set have changed since the run."""
    for name, current_digest in digests.items():
        if trained.run_folder.data_summary[name]["digest"] != current_digest:
            raise UserError(
                f"the images or labels of the {name} have changed since the run {trained.run_folder.path}; "
                "restore them, or give a folder of labelled images with --data"
            )
