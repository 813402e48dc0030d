"""Auxiliary modules trained with the model: small networks, copies of the model, running statistics.

An objective may have an auxiliary module, which it trains or reads. A query may need a probe, an auxiliary
module that is trained on the model's outputs and does not affect the model. Their state is saved and restored
with the run, so it must be in parameters and buffers.
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
    """Arguments for building an auxiliary module."""

    model: nn.Module  # images to `Output`
    classes: int
    features: int  # width of the features; 0 if the model does not return them
    pool: int  # number of images in the pool
    pixels: bool  # whether the model outputs per-pixel logits
    autocast: torch.dtype | None = None  # dtype of mixed precision; None: that of the weights


class Moment(NamedTuple):
    """Position in the run when an auxiliary module may refresh: between epochs, before a round."""

    epoch: int  # completed epochs
    epochs: int  # total
    question: int  # number of the round that follows, from 1; 0: none
    questions: int  # total number of rounds


class Look(Protocol):
    """Passes over all images in order, without gradients; identical on every process."""

    targets: Tensor | None  # known labels of the pool, (pool,); None in segmentation
    labels: Labels  # labels of the source

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        """Yield indices and model outputs for the pool, batch by batch."""

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        """Yield indices and model outputs for the source, batch by batch."""


class Companion(nn.Module):
    """Base class of auxiliary modules. All methods are optional."""

    tells: tuple[str, ...] = ()  # columns it provides to queries, from `criteria.TOLD`
    weightless = False  # True: has no weights and reads none of the model's, so the model may be sharded

    def losses(self, model: "Remembered", batch: Batch) -> Losses:  # noqa: ARG002 - for subclasses
        """Losses of a probe in a training step, computed from ``model.aside(...)``."""
        return {}

    def tell(self, output: Output) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Compute the columns in ``tells`` for a batch: ``(N, ...)``, or per pixel ``(N, ..., h, w)``."""
        return {}

    def due(self, moment: Moment) -> bool:  # noqa: ARG002
        """Whether to call `refresh` now."""
        return False

    def refresh(self, moment: Moment, look: Look) -> None:
        """Update the state from full passes over the data. Must be deterministic."""

    def own_labels(self) -> Tensor | None:
        """Return pseudo-labels for the pool, ``(pool,)``, UNLABELLED elsewhere; None: no pseudo-labels.

        Pseudo-labelled images form ``batch.certain``, leave the unlabelled stream and are not selected by
        queries.
        """
        return None


@dataclass(frozen=True)
class Training:
    """An objective and its requirements."""

    loss: Callable[..., Losses]  # (model, batch), or (model, batch, companion) if there is one
    companion: Callable[..., Companion] | None = (
        None  # called with a `Beside`; its parameters are keyword-only
    )
    strong: Callable[[Mapping[str, Any]], bool] = lambda _: False  # whether it reads `batch.strong`
    recordable: bool = True  # False: a step samples in Python, which a CUDA graph would freeze
    params: Mapping[str, Any] = field(default_factory=dict)  # bound parameters

    @property
    def signature(self) -> inspect.Signature:
        """Signature of the loss with the parameters of the auxiliary module: the settings of a config."""
        parameters = list(inspect.signature(_unbound(self.loss)).parameters.values())
        given = parameters[:2]
        own = parameters[3 if self.companion else 2 :]
        names = {p.name for p in own}
        companion = None if self.companion is None else _unbound(self.companion)
        more = [] if companion is None else list(inspect.signature(companion).parameters.values())
        theirs = [p for p in more[1:] if p.kind is p.KEYWORD_ONLY and p.name not in names]
        return inspect.Signature([*given, *own, *theirs])

    def bound(self, params: Mapping[str, Any]) -> "Training":
        """Return a copy with parameters bound to the loss, the auxiliary module, or both, by name."""
        loss = _those_of(self.loss, params)
        companion = None
        if self.companion is not None:
            companion = partial(self.companion, **_those_of(self.companion, params))
        return replace(
            self, loss=partial(self.loss, **loss), companion=companion, params={**self.params, **params}
        )

    def wants_strong(self) -> bool:
        """Whether batches must contain the strong view of unlabelled images."""
        return self.strong(self.params)

    def with_companion(self, companion: Companion | None) -> Callable[[Forward, Batch], Losses]:
        """Return the loss as a function of model and batch."""
        if companion is None:
            return self.loss

        def loss(model: Forward, batch: Batch) -> Losses:
            return self.loss(model, batch, companion)

        return loss


def as_training(objective: "Callable[..., Losses] | Training") -> Training:
    """Wrap a plain function; return a `Training` unchanged."""
    return objective if isinstance(objective, Training) else Training(objective)


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, partial) else function


def _those_of(function: Callable[..., object], params: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(function).parameters
    return {name: value for name, value in params.items() if name in known}


class Remembered:
    """Model wrapper that forwards each image tensor once per training step.

    Args:
        together: image tensors that are forwarded as one batch, as the batch statistics of a few labelled
            images are unreliable.
    """

    def __init__(self, model: nn.Module, together: Sequence[Tensor] = ()) -> None:
        self._model = model
        self._together = together
        # Keeps the images alive: their ids must not be reused.
        self._said: dict[int, tuple[Tensor, Output]] = {}
        self._aside: dict[int, tuple[Tensor, Output]] = {}

    def __getattr__(self, name: str) -> Any:
        """Delegate other attributes to the model, for custom objectives that read its parameters."""
        return getattr(self._model, name)

    def __call__(self, images: Tensor) -> Output:
        """Return the model's output, with gradients."""
        if id(images) not in self._said:
            group = self._together if any(images is other for other in self._together) else (images,)
            outputs = self._model(torch.cat(tuple(group))) if len(group) > 1 else self._model(images)
            for some, output in zip(group, parted(outputs, [len(some) for some in group]), strict=True):
                self._said[id(some)] = (some, output)
        return self._said[id(images)][1]

    def aside(self, images: Tensor) -> Output:
        """Return the output in eval mode: without gradients, batch statistics or side effects.

        Training outputs are never reused here. A probe that saw the two domains in different modes would
        learn that difference.
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
    """Split the output of a batch into outputs of the given lengths."""
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
    """Frozen copy of a model, which can be updated as a moving average.

    Args:
        model: the model to copy; it does not become a submodule.
        autocast: dtype of mixed precision; None: that of the weights.
    """

    def __init__(self, model: nn.Module, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self._autocast = autocast
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._followed = (model,)  # in a tuple, so torch does not register it as a submodule

    def train(self, mode: bool = True) -> "Still":  # noqa: ARG002 - always in eval mode
        """Do nothing: collecting batch statistics would change the copy."""
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> Output:
        """Return the output of the copy, without gradients."""
        with torch.autocast(images.device.type, self._autocast, enabled=self._autocast is not None):
            return self.model(images)  # type: ignore[no-any-return]

    @torch.no_grad()
    def follow(self, pace: float = 1.0) -> None:
        """Move the weights towards the model's; 1 copies them, 0.001 is a typical moving average."""
        theirs = self._followed[0].state_dict(
            keep_vars=True
        )  # includes auxiliary modules, which the copy lacks
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
    """Return ``x``, with the gradient multiplied by ``-strength`` (Ganin and Lempitsky, 2015)."""
    reversed_: Tensor = _Reversed.apply(x, strength)
    return reversed_


def as_weights(x: Tensor, module: nn.Module) -> Tensor:
    """Cast a tensor to the dtype of a module's weights."""
    return x.to(next(module.parameters()).dtype)


def width_of(beside: Beside, who: str) -> int:
    """Return the width of the features; raise if the model returns none."""
    if not beside.features:
        raise UserError(
            f"{who} needs features, but the model returns none; return (logits, features) from its forward"
        )
    return beside.features
