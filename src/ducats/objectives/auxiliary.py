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

from ducats.models.output import Output
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.utils.errors import UserError


class AuxiliaryContext(NamedTuple):
    """Arguments for building an auxiliary module."""

    model: nn.Module  # images to `Output`
    classes: int
    n_features: int  # width of the features; 0 if the model does not return them
    pool_size: int  # number of images in the pool
    per_pixel: bool  # whether the model outputs per-pixel logits
    autocast_dtype: torch.dtype | None = None  # dtype of mixed precision; None: that of the weights


class RefreshContext(NamedTuple):
    """Position in the run when an auxiliary module may refresh: between epochs, before a round."""

    epochs_done: int  # completed epochs
    epochs: int  # total
    next_round: int  # number of the round that follows, from 1; 0: none
    rounds: int  # total number of rounds
    rounds_done: int  # completed rounds


class FullPass(Protocol):
    """A pass over all images of the pool in order, without gradients; identical on every process."""

    @property
    def pool_labels(self) -> Tensor | None:
        """Known labels of the pool, ``(pool,)``; None in segmentation."""

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        """Yield indices and model outputs, batch by batch."""


class AuxiliaryModule(nn.Module):
    """Base class of auxiliary modules. All methods are optional."""

    provides: tuple[str, ...] = ()  # columns it provides to queries, from `criteria.PROBE_COLUMNS`
    reads_stored_images = False  # whether `losses` read the stored images of a batch
    shardable = False  # True: has no weights and reads none of the model's, so the model may be sharded

    def losses(self, model: "CachedForward", batch: Batch) -> Losses:  # noqa: ARG002 - for subclasses
        """Losses of a probe in a training step, computed from ``model.eval_forward(...)``."""
        return {}

    def extra_columns(self, output: Output) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Compute the columns in ``provides`` for a batch: ``(N, ...)``, or per pixel ``(N, ..., h, w)``."""
        return {}

    def is_due(self, context: RefreshContext) -> bool:  # noqa: ARG002
        """Whether to call `refresh` now."""
        return False

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        """Update the state from a full pass over the pool. Must be deterministic."""

    def pseudo_labels(self) -> Tensor | None:
        """Return pseudo-labels for the pool, ``(pool,)``, UNLABELLED elsewhere; None: no pseudo-labels.

        Pseudo-labelled images form ``batch.pseudo_labelled``, leave the unlabelled stream and are not
        selected by queries.
        """
        return None


@dataclass(frozen=True)
class ObjectiveSpec:
    """An objective and its properties."""

    fn: Callable[..., Losses]  # (model, batch), or (model, batch, auxiliary) if there is one
    auxiliary: Callable[..., AuxiliaryModule] | None = None  # of an `AuxiliaryContext` and keyword parameters
    transforms_images: bool = False  # True: `fn` changes images itself, so embeddings will not do
    strong_view_if: Callable[[Mapping[str, Any]], bool] = lambda _: False  # whether it reads `batch.strong`
    cuda_graph_safe: bool = True  # False: a step samples in Python, which a CUDA graph would freeze
    search_grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # parameters for `ducats tune`
    params: Mapping[str, Any] = field(default_factory=dict)  # bound parameters

    @property
    def signature(self) -> inspect.Signature:
        """Signature of the loss with the parameters of the auxiliary module: the settings of a config."""
        parameters = list(inspect.signature(_unbound(self.fn)).parameters.values())
        positional = parameters[:2]
        loss_params = parameters[3 if self.auxiliary else 2 :]
        names = {p.name for p in loss_params}
        auxiliary = None if self.auxiliary is None else _unbound(self.auxiliary)
        auxiliary_params = [] if auxiliary is None else list(inspect.signature(auxiliary).parameters.values())
        extra_params = [p for p in auxiliary_params[1:] if p.kind is p.KEYWORD_ONLY and p.name not in names]
        return inspect.Signature([*positional, *loss_params, *extra_params])

    def bind(self, params: Mapping[str, Any]) -> "ObjectiveSpec":
        """Return a copy with parameters bound to the loss, the auxiliary module, or both, by name."""
        loss_params = _accepted_params(self.fn, params)
        auxiliary = None
        if self.auxiliary is not None:
            auxiliary = partial(self.auxiliary, **_accepted_params(self.auxiliary, params))
        return replace(
            self, fn=partial(self.fn, **loss_params), auxiliary=auxiliary, params={**self.params, **params}
        )

    def needs_strong_view(self) -> bool:
        """Whether batches must contain the strong view of unlabelled images."""
        return self.strong_view_if(self.params)

    def bind_auxiliary(self, auxiliary: AuxiliaryModule | None) -> Callable[[ForwardFn, Batch], Losses]:
        """Return the loss as a function of model and batch."""
        if auxiliary is None:
            return self.fn

        def loss(model: ForwardFn, batch: Batch) -> Losses:
            return self.fn(model, batch, auxiliary)

        return loss


def as_objective_spec(objective: "Callable[..., Losses] | ObjectiveSpec") -> ObjectiveSpec:
    """Wrap a plain function; return an `ObjectiveSpec` unchanged."""
    return objective if isinstance(objective, ObjectiveSpec) else ObjectiveSpec(objective)


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, partial) else function


def _accepted_params(function: Callable[..., object], params: Mapping[str, Any]) -> dict[str, Any]:
    accepted = inspect.signature(function).parameters
    return {name: value for name, value in params.items() if name in accepted}


class CachedForward:
    """Model wrapper that forwards each image tensor once per training step.

    Args:
        joint_images: image tensors that are forwarded as one batch, as the batch statistics of a few labelled
            images are unreliable.
    """

    def __init__(self, model: nn.Module, joint_images: Sequence[Tensor] = ()) -> None:
        self._model = model
        self._joint_images = joint_images
        # Keeps the images alive: their ids must not be reused.
        self._outputs: dict[int, tuple[Tensor, Output]] = {}
        self._eval_outputs: dict[int, tuple[Tensor, Output]] = {}

    def __getattr__(self, name: str) -> Any:
        """Delegate other attributes to the model, for custom objectives that read its parameters."""
        return getattr(self._model, name)

    def __call__(self, images: Tensor) -> Output:
        """Return the model's output, with gradients."""
        if id(images) not in self._outputs:
            group = self._joint_images if any(images is other for other in self._joint_images) else (images,)
            outputs = self._model(torch.cat(tuple(group))) if len(group) > 1 else self._model(images)
            lengths = [len(member) for member in group]
            for member, output in zip(group, split_output(outputs, lengths), strict=True):
                self._outputs[id(member)] = (member, output)
        return self._outputs[id(images)][1]

    def eval_forward(self, images: Tensor) -> Output:
        """Return the output in eval mode: without gradients, batch statistics or side effects.

        Training outputs are never reused here. A probe that saw the two domains in different modes would
        learn that difference.
        """
        if id(images) not in self._eval_outputs:
            was_training = self._model.training
            self._model.eval()
            try:
                with torch.no_grad():
                    self._eval_outputs[id(images)] = (images, self._model(images))
            finally:
                self._model.train(was_training)
        return self._eval_outputs[id(images)][1]


def split_output(output: Output, lengths: Sequence[int]) -> list[Output]:
    """Split the output of a batch into outputs of the given lengths."""
    if len(lengths) == 1:
        return [output]
    ends = list(accumulate(lengths))
    return [
        output._replace(
            z=output.z[end - length : end],
            features=_rows(output.features, end - length, end),
            earlier_features=_rows(output.earlier_features, end - length, end),
            extras=output.extras
            and {name: column[end - length : end] for name, column in output.extras.items()},
        )
        for end, length in zip(ends, lengths, strict=True)
    ]


def _rows(maps: Tensor | None, start: int, end: int) -> Tensor | None:
    return None if maps is None else maps[start:end]


class FrozenCopy(nn.Module):
    """Frozen copy of a model, which can be updated as a moving average.

    Args:
        model: the model to copy; it does not become a submodule.
        autocast_dtype: dtype of mixed precision; None: that of the weights.
    """

    def __init__(self, model: nn.Module, autocast_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._autocast_dtype = autocast_dtype
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._original_model = (model,)  # in a tuple, so torch does not register it as a submodule

    def train(self, mode: bool = True) -> "FrozenCopy":  # noqa: ARG002 - always in eval mode
        """Do nothing: collecting batch statistics would change the copy."""
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> Output:
        """Return the output of the copy, without gradients."""
        with torch.autocast(
            images.device.type, self._autocast_dtype, enabled=self._autocast_dtype is not None
        ):
            return self.model(images)  # type: ignore[no-any-return]

    @torch.no_grad()
    def ema_update(self, ema_rate: float | Tensor = 1.0) -> None:
        """Move the weights towards the model's; 1 copies them, 0.001 is a typical moving average."""
        averages = isinstance(ema_rate, Tensor) or ema_rate < 1
        # Includes auxiliary modules, which the copy lacks.
        original_state = self._original_model[0].state_dict(keep_vars=True)
        for name, parameter in self.model.state_dict(keep_vars=True).items():
            if parameter.is_floating_point() and parameter.requires_grad is False and averages:
                rate = ema_rate.to(parameter.dtype) if isinstance(ema_rate, Tensor) else ema_rate
                parameter.lerp_(original_state[name], rate)
            else:
                parameter.copy_(original_state[name])


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * gradient, None


def reverse_gradient(x: Tensor, scale: float = 1.0) -> Tensor:
    """Return ``x``, with the gradient multiplied by ``-scale`` (Ganin and Lempitsky, 2015)."""
    reversed_: Tensor = _ReverseGradient.apply(x, scale)
    return reversed_


def cast_to_weights(x: Tensor, module: nn.Module) -> Tensor:
    """Cast a tensor to the dtype of a module's weights."""
    return x.to(next(module.parameters()).dtype)


def require_feature_width(context: AuxiliaryContext, consumer: str) -> int:
    """Return the width of the features; raise if the model returns none."""
    if not context.n_features:
        raise UserError(
            f"{consumer} needs features, but the model returns none; return (logits, features) from its "
            "forward"
        )
    return context.n_features


def features_of(output: Output) -> Tensor:
    """Return the features, whose width `require_feature_width` has checked."""
    assert output.features is not None
    return output.features
