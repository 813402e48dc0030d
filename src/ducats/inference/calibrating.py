"""Calibrate the triage rule of a run on labels that its model was not trained on."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from ducats.data.folders import read_labelled_folder
from ducats.domain import UNLABELLED
from ducats.errors import UserError
from ducats.factory import make_views, with_aspect_ratio
from ducats.inference.images import say
from ducats.inference.measuring import own_test
from ducats.inference.rule import By, Rule, fewest, find, fingerprint, lowest_risk, upper_bound
from ducats.inference.trained import Trained
from ducats.run_folder import RunFolder

FEWER = (
    "the images that the run selected for labelling are excluded, and the remaining ones are often easier; "
    "new images may be harder"
)
EARLIER = (
    "the predictions are those of the model at query time, before training on the labels; the finished model "
    "has other uncertainties, so check the rule on labels that the run did not acquire"
)
CHOSEN = "the query selected these images, mostly uncertain ones; more of other images would be accepted"


class Seen(NamedTuple):
    """Predictions with known labels; arrays are ``(N,)``."""

    value: NDArray[Any]  # u_dis, entropy or probability
    wrong: NDArray[Any]  # bool
    on: str
    cautions: tuple[str, ...] = ()


def triage(
    trained: Trained,
    fabric: Fabric,
    *,
    risk: float,
    by: By = "u_dis",
    confidence: float = 0.9,
    folder: Path | None = None,
    bought: bool = False,
) -> Rule:
    """Find the threshold for accepting predictions without review.

    Args:
        risk: maximum fraction of wrong predictions among the accepted ones.
        by: quantity that is compared with the threshold.
        confidence: probability with which the risk is not exceeded.
        folder: labelled images, ``class/...``; None means the run's own test set.
        bought: use the labels acquired by the run, with the predictions made when they were selected.

    Raises:
        UserError: If no threshold reaches the risk, or there are no labels to calibrate on.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise UserError(f"--{name} {value:g} must be between 0 and 1 (exclusive), e.g. 0.05")
    if trained.of_pixels:
        raise UserError(
            "triage needs per-image labels, but this is a segmentation run; `ducats predict --uncertainty-maps` "
            "writes u_dis of each pixel"
        )
    if bought and folder is not None:
        raise UserError("--data and --acquired-labels exclude each other; give one of them")
    seen = _bought(trained.home, by) if bought else _predicted(trained, fabric, by, folder)
    return _rule(seen, trained.home.path, by, risk, confidence)


def _predicted(trained: Trained, fabric: Fabric, by: By, folder: Path | None) -> Seen:
    """Predict a folder, or the run's test set without the images that the run labelled."""
    view, kept, cautions = make_views(trained.config).test, None, ()  # type: Any, Any, tuple[str, ...]
    if folder is None:
        test, on = own_test(trained)
        where = "the run's held-out images"
        if on != "held_out":
            kept = (trained.home.load_ledger().targets() == UNLABELLED).numpy()
            where, cautions = "the run's target images that it did not label", (FEWER,)
    else:
        test = read_labelled_folder(folder, trained.classes, size=trained.size, channels=trained.channels)
        test = replace(test, images=with_aspect_ratio(test.images, view))
        where = f"the folder {folder.name}"
    said = say(trained, fabric, test.images)
    value, wrong = said.numbers[by].double().numpy(), (said.label != test.labels[:]).numpy()
    return (
        Seen(value, wrong, where, cautions)
        if kept is None
        else Seen(value[kept], wrong[kept], where, cautions)
    )


def _bought(home: RunFolder, by: By) -> Seen:
    """Load the predictions saved before labelling; void is not a class, so it counts as wrong."""
    ledger = home.load_ledger()
    label, values, wrong = ledger.targets().numpy(), [], []
    for number in range(1, ledger.n_rounds + 1):
        request, notes = home.load_request(number), home.load_hints(number)
        if request is None or notes is None:
            continue
        known = label[request.image.numpy()]
        answered = known != UNLABELLED
        value = notes.u_dis + notes.u_data if by == "entropy" else getattr(notes, by)
        values.append(value[answered].astype(np.float64))
        wrong.append((notes.guess != known)[answered])
    if not values:
        raise UserError(
            f"{home.path} has no saved predictions from before its labels were acquired, and the model was "
            "then trained on these labels; give labelled images with --data"
        )
    return Seen(
        np.concatenate(values), np.concatenate(wrong), "the labels that the run acquired", (EARLIER, CHOSEN)
    )


def _rule(seen: Seen, folder: Path, by: By, risk: float, confidence: float) -> Rule:
    uncertainty = -seen.value if by == "probability" else seen.value
    found, count = find(uncertainty, seen.wrong, risk, confidence), len(seen.value)
    if found is None:
        needed, best = fewest(risk, confidence), lowest_risk(uncertainty, seen.wrong, confidence)
        lowest = "no risk is reachable" if best is None else f"the lowest reachable is --risk {best:g}"
        why = f"; this risk needs at least {needed} labelled images, not {count}"
        raise UserError(
            f"no threshold on {by} keeps the error of accepted images below {100 * risk:.3g} % with "
            f"{100 * confidence:.3g} % confidence on {seen.on}; {lowest}"
            f"{why if count < needed else ''}"
        )
    return Rule(
        by=by,
        threshold=-found.last if by == "probability" else found.last,
        risk=risk,
        confidence=confidence,
        images=count,
        accepted=found.images,
        wrong=found.wrong,
        bound=upper_bound(found.images, found.wrong, confidence),
        on=seen.on,
        cautions=seen.cautions,
        model=fingerprint(folder),
    )
