"""Calibrate the triage rule of a run on labels that its model was not trained on."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from ducats.data.domain import UNLABELLED
from ducats.data.store import check_all_readable, unreadable_message
from ducats.deploy.classification import predict_images
from ducats.deploy.evaluation import (
    images_not_trained_on,
    load_audit_set,
    load_labelled_folder,
    load_test_set,
)
from ducats.deploy.trained_model import TrainedModel
from ducats.deploy.triage_rule import (
    TriageCriterion,
    TriageRule,
    clopper_pearson_upper,
    find_acceptance_threshold,
    hash_weights,
    lowest_reachable_risk,
    min_images,
)
from ducats.ledger import load_ledger, load_request
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

_EXCLUDED_IMAGES_WARNING = (
    "the images that the run selected for labelling are excluded, and the remaining ones are often easier; "
    "new images may be harder"
)
_EARLIER_MODEL_WARNING = (
    "the predictions are those of the model at query time, before training on the labels; the finished model "
    "has other uncertainties, so check the rule on labels that the run did not acquire"
)
_SELECTED_IMAGES_WARNING = (
    "the query selected these images, mostly uncertain ones; more of other images would be accepted"
)


class CalibrationData(NamedTuple):
    """Predictions with known labels; arrays are ``(N,)``."""

    criterion_values: NDArray[Any]  # u_dis, entropy or probability
    is_wrong: NDArray[Any]  # bool
    description: str
    warnings: tuple[str, ...] = ()


def triage(
    trained: TrainedModel,
    fabric: Fabric,
    *,
    risk: float,
    criterion: TriageCriterion = "u_dis",
    confidence: float = 0.9,
    folder: Path | None = None,
    acquired_labels: bool = False,
    strict: bool = False,
) -> TriageRule:
    """Find the threshold for accepting predictions without review.

    Args:
        risk: maximum fraction of wrong predictions among the accepted ones.
        confidence: probability with which the risk is not exceeded.
        folder: labelled images, ``class/...``; None means the run's own test set.
        acquired_labels: use the labels acquired by the run, with the predictions made when they were
            selected.
        strict: raise if an image is unreadable, instead of skipping it with a warning.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise UserError(f"--{name} {value:g} must be between 0 and 1 (exclusive), e.g. 0.05")
    if trained.per_pixel:
        raise UserError(
            "triage needs per-image labels, but this is a segmentation run; "
            "`ducats predict --uncertainty-maps` writes u_dis of each pixel"
        )
    if acquired_labels and folder is not None:
        raise UserError("--data and --acquired-labels exclude each other; give one of them")
    if acquired_labels:
        calibration_data = _from_acquired_labels(trained.run_folder, criterion)
    elif folder is None and _has_audit_only(trained):
        calibration_data = _from_audit(trained, fabric, criterion)
    else:
        calibration_data = _from_predictions(trained, fabric, criterion, folder, strict)
    return _make_rule(calibration_data, trained.run_folder.path, criterion, risk, confidence)


def _from_predictions(
    trained: TrainedModel, fabric: Fabric, criterion: TriageCriterion, folder: Path | None, strict: bool
) -> CalibrationData:
    """Predict a folder, or the run's test set without the images that the run labelled."""
    used: Any = slice(None)
    warnings: tuple[str, ...] = ()
    if folder is None:
        test, evaluated_on = load_test_set(trained)
        description = "the run's held-out images"
        if evaluated_on != "held_out":
            used = images_not_trained_on(trained).numpy()
            description = "the run's target images that it did not label"
            warnings = (_EXCLUDED_IMAGES_WARNING,)
    else:
        test = load_labelled_folder(trained, folder)
        description = f"the folder {folder.name}"
    unreadable = test.images.unreadable
    if strict:
        check_all_readable(unreadable, len(test))
    if unreadable:
        warnings += (
            unreadable_message(unreadable, len(test) + len(unreadable), "images", "they are skipped"),
        )
    predictions = predict_images(trained, fabric, test.images)
    values = predictions.columns[criterion].double().numpy()
    is_wrong = (predictions.label != test.labels[:]).numpy()
    return CalibrationData(values[used], is_wrong[used], description, warnings)


def _has_audit_only(trained: TrainedModel) -> bool:
    """Return whether the run has audit labels that it was not trained on, and no test set."""
    if trained.run_folder.data_summary["test"] is not None or trained.config.acquisition.release_audit:
        return False
    return bool(trained.run_folder.read_records("audit"))


def _from_audit(trained: TrainedModel, fabric: Fabric, criterion: TriageCriterion) -> CalibrationData:
    """Predict the audit images, a random sample of the target images that the model was not trained on.

    Void is not a class, so it counts as wrong.
    """
    audit = load_audit_set(trained)
    predictions = predict_images(trained, fabric, audit.images)
    values = predictions.columns[criterion].double().numpy()
    is_wrong = (predictions.label != audit.labels[:]).numpy()
    return CalibrationData(values, is_wrong, "the audit labels of the run", (_EXCLUDED_IMAGES_WARNING,))


def _from_acquired_labels(run_folder: RunFolder, criterion: TriageCriterion) -> CalibrationData:
    """Load the predictions saved before labelling; void is not a class, so it counts as wrong."""
    ledger = load_ledger(run_folder)
    label, values, is_wrong = ledger.targets().numpy(), [], []
    merged_into = np.array(run_folder.classes.merged_into)
    for round_number in range(1, ledger.n_rounds + 1):
        request, hints = load_request(run_folder, round_number), run_folder.load_hints(round_number)
        if request is None or hints is None:
            continue
        round_labels = label[request.image.numpy()]
        answered = round_labels != UNLABELLED
        value = hints.u_dis + hints.u_data if criterion == "entropy" else getattr(hints, criterion)
        values.append(value[answered].astype(np.float64))
        is_wrong.append((merged_into[hints.guess] != round_labels)[answered])
    if not values:
        raise UserError(
            f"{run_folder.path} has no saved predictions from before its labels were acquired, and the model "
            "was then trained on these labels; give labelled images with --data"
        )
    return CalibrationData(
        np.concatenate(values),
        np.concatenate(is_wrong),
        "the labels that the run acquired",
        (_EARLIER_MODEL_WARNING, _SELECTED_IMAGES_WARNING),
    )


def _make_rule(
    calibration_data: CalibrationData,
    folder: Path,
    criterion: TriageCriterion,
    risk: float,
    confidence: float,
) -> TriageRule:
    sign = -1 if criterion == "probability" else 1
    uncertainty, is_wrong = sign * calibration_data.criterion_values, calibration_data.is_wrong
    accepted, count = find_acceptance_threshold(uncertainty, is_wrong, risk, confidence), len(uncertainty)
    if accepted is None:
        min_count = min_images(risk, confidence)
        reachable_risk = lowest_reachable_risk(uncertainty, is_wrong, confidence)
        reachable_text = "no risk is reachable"
        if reachable_risk is not None:
            reachable_text = (
                f"the lowest reachable is --risk {reachable_risk:g}, but the confidence is lower for a risk "
                "chosen after seeing this figure"
            )
        count_text = f"; this risk needs at least {min_count} labelled images, not {count}"
        raise UserError(
            f"no threshold on {criterion} keeps the error of accepted images below {100 * risk:.3g} % with "
            f"{100 * confidence:.3g} % confidence on {calibration_data.description}; {reachable_text}"
            f"{count_text if count < min_count else ''}"
        )
    return TriageRule(
        criterion=criterion,
        threshold=sign * accepted.max_uncertainty,
        risk=risk,
        confidence=confidence,
        images=count,
        accepted=accepted.images,
        wrong=accepted.wrong,
        error_bound=clopper_pearson_upper(accepted.images, accepted.wrong, confidence),
        calibrated_on=calibration_data.description,
        warnings=calibration_data.warnings,
        weights_sha256=hash_weights(folder),
    )
