"""What stands beside the model: small networks, copies of it, running numbers.

An objective may have a companion, which it trains or reads; a query may need a witness, a companion that is
trained on what the model says and leaves the model alone. Whatever they hold is saved and restored with the
run, so it must be in parameters and buffers.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ducats.domain import Labels
from ducats.errors import UserError
from ducats.objectives.batch import Batch, Forward, Losses
from ducats.rows import Output


class Beside(NamedTuple):
    """What a companion is made for."""

    model: nn.Module  # images to `Output`
    classes: int
    features: int  # width of what the last layer sees; 0 if the model does not tell
    pool: int  # images in the pool
    pixels: bool  # whether the model speaks of pixels
    autocast: torch.dtype | None = None  # what the run computes in, if not in its weights' own kind


class Moment(NamedTuple):
    """When a companion may look at everything: between two epochs, before a question is asked."""

    epoch: int  # epochs done
    epochs: int  # in all
    question: int  # number of the question that comes now, from 1; 0: none
    questions: int  # in all


class Look(Protocol):
    """Passes over all images, in their order, without gradients; the same on every process."""

    targets: Tensor | None  # what is known of the pool's images, (pool,); None where pixels have labels
    labels: Labels  # of the source

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        """Indices and what the model says of them, batch by batch."""

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        """The same for the source's images."""


class Companion(nn.Module):
    """Base of what stands beside a model; all it offers may be left as it is."""

    tells: tuple[str, ...] = ()  # columns that it gives to queries, names from `criteria.TOLD`
    weightless = (
        False  # True: it has no weights and reads none of the model's, which may be spread over hosts
    )

    def losses(self, model: "Remembered", batch: Batch) -> Losses:  # noqa: ARG002 - for those who override it
        """A witness's own losses in a step: to be computed from ``model.aside(...)``."""
        return {}

    def tell(self, output: Output) -> Mapping[str, Tensor]:  # noqa: ARG002
        """The columns in ``tells`` for a batch: ``(N, ...)``, or of pixels ``(N, ..., h, w)``."""
        return {}

    def due(self, moment: Moment) -> bool:  # noqa: ARG002
        """Whether it wants to look at everything now."""
        return False

    def refresh(self, moment: Moment, look: Look) -> None:
        """Look at everything, and change what it holds; must follow from that alone."""

    def own_labels(self) -> Tensor | None:
        """Labels that it gives to images of the pool itself, ``(pool,)``, UNLABELLED elsewhere; None: none.

        Such images are learnt from as ``batch.certain``, are unlabelled no longer, and are not asked about.
        """
        return None


@dataclass(frozen=True)
class Training:
    """An objective, and what it needs besides a model and a batch."""

    loss: Callable[..., Losses]  # (model, batch), and (model, batch, companion) if there is one
    companion: Callable[..., Companion] | None = None  # from `Beside`; its knobs are keyword-only, too
    strong: Callable[[Mapping[str, Any]], bool] = lambda _: False  # whether it reads `batch.strong`
    recordable: bool = True  # False: a step draws at random in Python, which a recorded one would freeze
    knobs: Mapping[str, Any] = field(default_factory=dict)  # bound so far

    @property
    def signature(self) -> inspect.Signature:
        """Of the loss, with the companion's knobs: what a config may set."""
        parameters = list(inspect.signature(_unbound(self.loss)).parameters.values())
        given = parameters[:2]
        own = parameters[3 if self.companion else 2 :]
        names = {p.name for p in own}
        companion = None if self.companion is None else _unbound(self.companion)
        more = [] if companion is None else list(inspect.signature(companion).parameters.values())
        theirs = [p for p in more[1:] if p.kind is p.KEYWORD_ONLY and p.name not in names]
        return inspect.Signature([*given, *own, *theirs])

    def bound(self, knobs: Mapping[str, Any]) -> "Training":
        """The same with knobs set: each goes to the loss, to the companion, or to both, as they name it."""
        loss = _those_of(self.loss, knobs)
        companion = None
        if self.companion is not None:
            companion = partial(self.companion, **_those_of(self.companion, knobs))
        return replace(
            self, loss=partial(self.loss, **loss), companion=companion, knobs={**self.knobs, **knobs}
        )

    def wants_strong(self) -> bool:
        """Whether batches must hold unlabelled images in the strong view, too."""
        return self.strong(self.knobs)

    def with_companion(self, companion: Companion | None) -> Callable[[Forward, Batch], Losses]:
        """The loss as a function of model and batch alone."""
        if companion is None:
            return self.loss

        def loss(model: Forward, batch: Batch) -> Losses:
            return self.loss(model, batch, companion)

        return loss


def as_training(objective: "Callable[..., Losses] | Training") -> Training:
    """An objective with what else it needs: a plain function needs nothing."""
    return objective if isinstance(objective, Training) else Training(objective)


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, partial) else function


def _those_of(function: Callable[..., object], knobs: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(function).parameters
    return {name: value for name, value in knobs.items() if name in known}


class Remembered:
    """A model that, within one step, says of the same images what it said before.

    Args:
        model: images to ``Output``; each set of images passes through it once.
        together: sets of images that pass as one batch, whichever of them is looked at first: batch
            statistics of three bought images are no statistics.
    """

    def __init__(self, model: nn.Module, together: Sequence[Tensor] = ()) -> None:
        self._model = model
        self._together = together
        # The images, too: an address must not be used again.
        self._said: dict[int, tuple[Tensor, Output]] = {}
        self._aside: dict[int, tuple[Tensor, Output]] = {}

    def __getattr__(self, name: str) -> Any:
        """Anything else is the model's own: an objective of a user's may look at its parameters."""
        return getattr(self._model, name)

    def __call__(self, images: Tensor) -> Output:
        """What the model says, with gradients."""
        if id(images) not in self._said:
            group = self._together if any(images is other for other in self._together) else (images,)
            outputs = self._model(torch.cat(tuple(group))) if len(group) > 1 else self._model(images)
            for some, output in zip(group, parted(outputs, [len(some) for some in group]), strict=True):
                self._said[id(some)] = (some, output)
        return self._said[id(images)][1]

    def aside(self, images: Tensor) -> Output:
        """What the model says as it would when it is asked: no gradient, no batch statistics, no trace.

        Never what it said in training: a witness that saw one domain so and the other thus would learn the
        difference.
        """
        if id(images) not in self._aside:
            training = self._model.training
            self._model.eval()
            try:
                with torch.no_grad():
                    self._aside[id(images)] = (images, self._model(images))
            finally:
                self._model.train(training)
        return self._aside[id(images)][1]


def parted(output: Output, lengths: Sequence[int]) -> list[Output]:
    """What was said of a batch, cut into what was said of its parts."""
    if len(lengths) == 1:
        return [output]
    ends = list(accumulate(lengths))
    return [
        output._replace(
            z=output.z[end - length : end],
            features=None if output.features is None else output.features[end - length : end],
            told=output.told and {name: said[end - length : end] for name, said in output.told.items()},
        )
        for end, length in zip(ends, lengths, strict=True)
    ]


class Still(nn.Module):
    """A copy of a model that does not learn: as the model was, or as it follows it.

    Args:
        model: what to copy, and to follow; it is not a part of its copy.
        autocast: what the run computes in, see `Beside`.
    """

    def __init__(self, model: nn.Module, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self._autocast = autocast
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._followed = (model,)  # in a tuple, where torch does not look for modules

    def train(self, mode: bool = True) -> "Still":  # noqa: ARG002 - it has no other mode
        """Stay as it is: a copy that collected batch statistics would change."""
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> Output:
        """What the copy says, without gradients."""
        with torch.autocast(images.device.type, self._autocast, enabled=self._autocast is not None):
            return self.model(images)  # type: ignore[no-any-return]

    @torch.no_grad()
    def follow(self, pace: float = 1.0) -> None:
        """Move towards the model as it now is: 1 copies it, 0.001 is the usual moving average."""
        theirs = self._followed[0].state_dict(keep_vars=True)  # companions too, which a copy has none of
        for name, own in self.model.state_dict(keep_vars=True).items():
            if own.is_floating_point() and own.requires_grad is False and pace < 1:
                own.lerp_(theirs[name], pace)
            else:
                own.copy_(theirs[name])


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * slope, None


def reverse_gradient(x: Tensor, strength: float = 1.0) -> Tensor:
    """The same values; gradients come back turned round (Ganin and Lempitsky, 2015)."""
    reversed_: Tensor = _Reversed.apply(x, strength)
    return reversed_


def as_weights(x: Tensor, module: nn.Module) -> Tensor:
    """A tensor in the kind of number of a module's weights: the model may have said it in another."""
    return x.to(next(module.parameters()).dtype)


def width_of(beside: Beside, who: str) -> int:
    """How wide the features are, or a sentence where the model tells none."""
    if not beside.features:
        raise UserError(f"{who} needs features, but the model gives none: let it return (logits, features)")
    return beside.features
