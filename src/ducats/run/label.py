"""Acquire labels from the oracle and append them to the ledger."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ducats.annotation.oracles import Oracle
from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger import InitialLabels, Ledger, Request, load_request, save_request
from ducats.run.context import RunContext
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import AwaitingLabels, UserError


def acquire_labels(context: RunContext, round_number: int) -> float:
    """Get the labels of a request and append them to the ledger; return the seconds spent waiting for people.

    Raises:
        AwaitingLabels: annotators have to answer, and the context has no ``wait``.
    """
    waiting_seconds, is_waiting = 0.0, False
    while True:
        try:
            context.from_ledger(lambda ledger: _label_request(context, ledger, round_number))
        except (AwaitingLabels, UserError) as pause:
            # An invalid answer must not end a run that has waited for days: the annotator can correct it.
            is_waiting |= isinstance(pause, AwaitingLabels)
            if context.wait is None or not is_waiting:
                raise
            since = time.monotonic()
            context.wait(round_number, pause)
            waiting_seconds += time.monotonic() - since
        else:
            return waiting_seconds


def _label_request(context: RunContext, ledger: Ledger, round_number: int) -> None:
    request = load_request(context.run_folder, round_number)
    assert request is not None
    append_labels(
        context.components.oracle,
        request,
        ledger,
        len(context.run_folder.classes),
        allow_partial=context.plan.time_budget is not None,
        add_classes=lambda names: add_classes(context.run_folder, names, round_number),
    )


def add_classes(run_folder: RunFolder, names: Sequence[str], round_number: int) -> None:
    """Record new classes of a run, unless it knows them."""
    classes = run_folder.classes
    new = [name for name in names if classes.number(name) is None]
    if new:
        run_folder.save_class_changes(classes.with_added(new, round_number).changes)


def record_initial_labels(context: RunContext, initial: InitialLabels) -> None:
    """Save the labels with which a run starts as its first round, as far as this is not done."""

    def record(ledger: Ledger) -> None:
        if ledger.n_rounds == 0:
            save_request(context.run_folder, initial.request)
            add_classes(context.run_folder, initial.new_classes, 1)
            ledger.append(initial.request, initial.label, initial.seconds)

    context.from_ledger(record)


def append_labels(
    oracle: Oracle,
    request: Request,
    ledger: Ledger,
    classes: int,
    *,
    allow_partial: bool,
    add_classes: Callable[[Sequence[str]], None] | None = None,
) -> None:
    """Query the oracle and append its labels to the ledger, after checking all of them.

    Args:
        oracle: its method ``annotation_seconds(request)``, if any, returns the seconds of each unit, or None.
        request: an empty one is recorded without calling the oracle.
        ledger: opened for the whole pool.
        allow_partial: whether units may stay UNLABELLED, as when the time budget is spent. They are not
            recorded, and may be selected again.
        add_classes: called with the names of new classes, before their labels are recorded: those in the
            oracle's ``classes`` whose number is ``classes`` or higher.
    """
    if not len(request):
        ledger.append(request, torch.zeros(0, dtype=torch.int8))
        return
    labels = torch.as_tensor(oracle(request))
    labels = labels if ledger.sizes is not None else labels.long()
    # Wide enough for every class: torch would wrap a large class count to int8 in the comparison below.
    labels = labels.to(torch.int16) if labels.dtype.itemsize == 1 else labels
    new_classes: Sequence[str] = ()
    if add_classes is not None and isinstance(known := getattr(oracle, "classes", None), ClassList):
        new_classes = known.names[classes:]
        classes = len(known)
    is_open = (labels == UNLABELLED) & allow_partial
    invalid = labels[(labels != VOID) & ~is_open & ((labels < 0) | (labels >= classes))]
    if len(invalid):
        raise UserError(
            f"the oracle returned {int(invalid[0])} in round {request.round}, but labels must be 0 to "
            f"{classes - 1} or VOID ({VOID}); no label was recorded"
        )
    if new_classes and add_classes is not None:
        add_classes(new_classes)
    annotation_seconds = getattr(oracle, "annotation_seconds", None)
    seconds: Tensor | None = None if annotation_seconds is None else annotation_seconds(request)
    if not bool(is_open.any()):
        ledger.append(request, labels, seconds)
        return
    answered = request.subset(~is_open)
    unanswered_seconds = 0.0
    if seconds is not None:
        answered_units = first_per_unit(request, ~is_open)
        unanswered_seconds = float(seconds[~answered_units].double().nan_to_num(0.0).sum())
        seconds = seconds[answered_units]
    ledger.append(answered, labels[~is_open], seconds, unanswered_seconds)


def first_per_unit(request: Request, values: Tensor) -> Tensor:
    """Return the value at each unit's first location."""
    unit_sizes = request.unit_sizes
    return values if unit_sizes is None else values[unit_sizes.cumsum(0) - unit_sizes]
