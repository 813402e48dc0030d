"""The oracle answers, and what it said is entered in the ledger."""

import torch
from torch import Tensor

from ducats.domain import UNLABELLED, VOID
from ducats.errors import UserError
from ducats.ledger import Ledger, Request
from ducats.oracles import Oracle


def buy(oracle: Oracle, request: Request, ledger: Ledger, classes: int, *, partly: bool) -> None:
    """Have a request answered and enter the answers; nothing is entered before all is well.

    Args:
        oracle: who answers. If it has ``seconds_of``, it also tells what each unit took, or None.
        request: what is asked; nobody is troubled with an empty one.
        ledger: where answers go.
        classes: how many there are.
        partly: whether units may stay UNLABELLED, as when people's time is spent: they are not entered, and
            may be asked again.
    """
    if not len(request):
        ledger.append(request, torch.zeros(0, dtype=torch.int8))
        return
    labels = torch.as_tensor(oracle(request))
    labels = labels if ledger.sizes is not None else labels.long()
    # Wide enough for every class: a narrow number would be compared with what is left of a large one.
    labels = labels.to(torch.int16) if labels.dtype.itemsize == 1 else labels
    open_ = (labels == UNLABELLED) & partly
    wrong = labels[(labels != VOID) & ~open_ & ((labels < 0) | (labels >= classes))]
    if len(wrong):
        raise UserError(
            f"the oracle answered {int(wrong[0])} in round {request.round}, but a label is 0 to "
            f"{classes - 1} or VOID ({VOID}): nothing was entered"
        )
    told = getattr(oracle, "seconds_of", None)
    seconds: Tensor | None = None if told is None else told(request)
    if not bool(open_.any()):
        ledger.append(request, labels, seconds)
        return
    answered = request.only(~open_)
    unanswered = 0.0
    if seconds is not None:
        kept = per_unit(request, ~open_)
        unanswered, seconds = float(seconds[~kept].double().nan_to_num(0.0).sum()), seconds[kept]
    ledger.append(answered, labels[~open_], seconds, unanswered)


def per_unit(request: Request, values: Tensor) -> Tensor:
    """The value of each unit's first address."""
    unit = request.unit
    return values if unit is None else values[unit.cumsum(0) - unit]
