"""Find a run's triage rule on labels that its model was not trained on."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from ducats.assemble import make_views, with_aspect
from ducats.data.folders import labelled_folder
from ducats.domain import UNLABELLED
from ducats.errors import UserError
from ducats.inference.images import say
from ducats.inference.measuring import own_test
from ducats.inference.rule import By, Rule, fewest, find, fingerprint, lowest_risk, upper_bound
from ducats.inference.trained import Trained
from ducats.rundir import RunDir

FEWER = (
    "images that the run bought are not among them, and what a query leaves is often easier: new images may "
    "be harder"
)
EARLIER = (
    "predictions are those of the model that asked, before it learnt from the answers: the finished model "
    "has other uncertainties, so check the rule on labels that were not bought"
)
CHOSEN = "the query chose these images, and mostly uncertain ones: of others, more would be accepted"


class Seen(NamedTuple):
    """Predictions whose labels are known: ``(N,)`` each."""

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
    """Find the threshold below which a prediction may go unseen.

    Args:
        trained: the model.
        fabric: device and processes.
        risk: share of the accepted that may be wrong.
        by: what is held against the threshold.
        confidence: with which the risk shall not be exceeded.
        folder: labelled images, ``class/...``; None for the run's own test set.
        bought: use the labels that the run bought, with what the model said when it asked for them.

    Raises:
        UserError: No threshold reaches the risk, or there are no labels to find one on.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise UserError(f"--{name} {value:g} is no share: give one between 0 and 1, such as 0.05")
    if trained.of_pixels:
        raise UserError(
            "triage is for whole images: a label map is neither right nor wrong; `ducats predict "
            "--uncertainty` writes u_dis of each pixel to decide by"
        )
    if bought and folder is not None:
        raise UserError("give --data or --bought, not both: each names the labels to find the threshold on")
    seen = _bought(trained.home, by) if bought else _predicted(trained, fabric, by, folder)
    return _rule(seen, trained.home.folder, by, risk, confidence)


def _predicted(trained: Trained, fabric: Fabric, by: By, folder: Path | None) -> Seen:
    """On a folder, or on the run's test set without what was bought of it."""
    view, kept, cautions = make_views(trained.config).test, None, ()  # type: Any, Any, tuple[str, ...]
    if folder is None:
        test, on = own_test(trained)
        where = "the run's held-out images"
        if on != "held_out":
            kept = (trained.home.bought().targets() == UNLABELLED).numpy()
            where, cautions = "the run's target images without those bought", (FEWER,)
    else:
        test = labelled_folder(folder, trained.classes, size=trained.size, channels=trained.channels)
        test = replace(test, images=with_aspect(test.images, view))
        where = f"the folder {folder.name}"
    said = say(trained, fabric, test.images)
    value, wrong = said.numbers[by].double().numpy(), (said.label != test.labels[:]).numpy()
    return (
        Seen(value, wrong, where, cautions)
        if kept is None
        else Seen(value[kept], wrong[kept], where, cautions)
    )


def _bought(home: RunDir, by: By) -> Seen:
    """On what was noted of each image before its label was known; void is no class, so any guess is wrong."""
    ledger = home.bought()
    label, values, wrong = ledger.targets().numpy(), [], []
    for number in range(1, ledger.rounds + 1):
        request, notes = home.request(number), home.notes(number)
        if request is None or notes is None:
            continue
        known = label[request.image.numpy()]
        answered = known != UNLABELLED
        value = notes.u_dis + notes.u_data if by == "entropy" else getattr(notes, by)
        values.append(value[answered].astype(np.float64))
        wrong.append((notes.guess != known)[answered])
    if not values:
        raise UserError(
            f"{home.folder} has no notes of what its model said before labels were bought, and a model knows "
            "the labels that it was trained on: give labelled images with --data"
        )
    return Seen(
        np.concatenate(values), np.concatenate(wrong), "labels that the run bought", (EARLIER, CHOSEN)
    )


def _rule(seen: Seen, folder: Path, by: By, risk: float, confidence: float) -> Rule:
    uncertainty = -seen.value if by == "probability" else seen.value
    found, count = find(uncertainty, seen.wrong, risk, confidence), len(seen.value)
    if found is None:
        needed, best = fewest(risk, confidence), lowest_risk(uncertainty, seen.wrong, confidence)
        lowest = "no risk is within reach" if best is None else f"the lowest within reach is --risk {best:g}"
        why = f"; so low a risk needs {needed} labelled images or more, and these are {count}"
        raise UserError(
            f"no threshold on {by} keeps the accepted below {100 * risk:.3g} % wrong with "
            f"{100 * confidence:.3g} % confidence, on {seen.on}: {lowest}"
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
