"""Acquire labels from the oracle and append them to the ledger."""

import time

import torch
from torch import Tensor

from ducats.annotation.oracles import Oracle
from ducats.data.domain import UNLABELLED, VOID
from ducats.ledger import InitialLabels, Ledger, Request, load_request, save_request
from ducats.run.context import RunContext
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
    classes, allow_partial = len(context.components.source.classes), context.plan.time_budget is not None
    append_labels(context.components.oracle, request, ledger, classes, allow_partial=allow_partial)


def record_initial_labels(context: RunContext, initial: InitialLabels) -> None:
    """Save the labels with which a run starts as its first round, as far as this is not done."""

    def record(ledger: Ledger) -> None:
        if ledger.n_rounds == 0:
            save_request(context.run_folder, initial.request)
            ledger.append(initial.request, initial.label, initial.seconds)

    context.from_ledger(record)


def append_labels(
    oracle: Oracle, request: Request, ledger: Ledger, classes: int, *, allow_partial: bool
) -> None:
    """Query the oracle and append its labels to the ledger, after checking all of them.

    Args:
        oracle: its method ``annotation_seconds(request)``, if any, returns the seconds of each unit, or None.
        request: an empty one is recorded without calling the oracle.
        ledger: opened for the whole pool.
        allow_partial: whether units may stay UNLABELLED, as when the time budget is spent. They are not
            recorded, and may be selected again.
    """
    if not len(request):
        ledger.append(request, torch.zeros(0, dtype=torch.int8))
        return
    labels = torch.as_tensor(oracle(request))
    labels = labels if ledger.sizes is not None else labels.long()
    # Wide enough for every class: torch would wrap a large class count to int8 in the comparison below.
    labels = labels.to(torch.int16) if labels.dtype.itemsize == 1 else labels
    is_open = (labels == UNLABELLED) & allow_partial
    invalid = labels[(labels != VOID) & ~is_open & ((labels < 0) | (labels >= classes))]
    if len(invalid):
        raise UserError(
            f"the oracle returned {int(invalid[0])} in round {request.round}, but labels must be 0 to "
            f"{classes - 1} or VOID ({VOID}); no label was recorded"
        )
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
