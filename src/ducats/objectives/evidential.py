"""Objective of DUC (Xie et al., ICLR 2023, section 3.4), and the evidential losses that others share."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor

from ducats.dirichlet import misleading_evidence, negative_log_likelihood, uncertainties
from ducats.models.output import Output
from ducats.objectives.auxiliary import AuxiliaryModule, ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, Losses, is_labelled, is_unlabelled
from ducats.objectives.fixmatch import fixmatch_loss, frozen_running_stats
from ducats.objectives.label_propagation import LabelPropagation
from ducats.objectives.reduction import masked_means, unlabelled_means
from ducats.utils.errors import UserError

LossWeights = Mapping[str, float]


class UnlabelledTerms(NamedTuple):
    """Loss terms on unlabelled target data."""

    weights: LossWeights
    fn: Callable[[Tensor], Mapping[str, Tensor]]  # from log alpha to values by name, as in `weights`
    mask_fn: Callable[[Tensor], Tensor] = is_unlabelled  # pixels that count; segmentation only


def duc(
    model: ForwardFn,
    batch: Batch,
    auxiliary: AuxiliaryModule | None = None,  # noqa: ARG001 - its labels are in the batch
    *,
    nll: float = 1.0,
    kl: float = 1.0,
    beta: float = 1.0,
    lambda_: float | None = None,
    source: float = 1.0,
    target: float = 1.0,
    void: Literal["ignored", "unlabelled"] = "ignored",
    fixmatch: float = 0.0,
    tau: float = 0.8,
) -> Losses:
    """Evidential loss on labelled data; uncertainty minimisation on unlabelled target data.

    ``L = [nll + kl]`` on the source and the labelled target, ``+ beta U_dis + lambda U_data`` on the
    unlabelled target. In segmentation, labelled and unlabelled pixels are in the same images. Each term is
    the mean over all positions of its stream. A weight of zero disables its term, and skips forward passes
    that are not needed.

    Args:
        nll: weight of the evidential negative log-likelihood.
        kl: weight of the KL divergence of misleading evidence, which is divided by the number of classes.
        beta: weight of the distribution uncertainty of unlabelled target data.
        lambda_: weight of the data uncertainty of unlabelled target data; None: as in the paper, 0.05 for
            images and 0.01 for pixels.
        void: ``ignored`` ignores pixels without a class; ``unlabelled`` counts them as unlabelled, as the
            published code does.
        fixmatch: weight of FixMatch on unlabelled images; 1 in the paper's appendix.
        tau: confidence threshold of FixMatch.
    """
    if void not in ("ignored", "unlabelled"):
        raise ValueError(f"objective.params.void must be 'ignored' or 'unlabelled', not {void!r}")
    is_classification = batch.target is None and batch.source.labels.ndim == 1
    default_lambda = 0.05 if is_classification else 0.01
    unlabelled_terms = UnlabelledTerms(
        {"u_dis": beta, "u_data": default_lambda if lambda_ is None else lambda_},
        dirichlet_uncertainties,
        is_unlabelled if void == "ignored" else _has_no_class,
    )
    extra_losses = partial(_fixmatch_losses, weight=fixmatch, tau=tau) if fixmatch else None
    return evidential_losses(
        model,
        batch,
        {"nll": nll, "kl": kl},
        unlabelled_terms,
        source=source,
        target=target,
        extra_losses=extra_losses,
    )


def evidential_losses(
    model: ForwardFn,
    batch: Batch,
    fit_weights: LossWeights,
    unlabelled_terms: UnlabelledTerms,
    *,
    source: float = 1.0,
    target: float = 1.0,
    extra_losses: Callable[[ForwardFn, Batch], Losses] | None = None,
) -> Losses:
    """Evidential loss on labelled data, with given terms on unlabelled target data.

    Args:
        fit_weights: weights of ``nll`` and ``kl``.
        source: weight of the terms on the source.
        target: weight of the terms on labelled and pseudo-labelled target data.
        extra_losses: additional losses, whose images are forwarded after the unlabelled ones.
    """
    target_fit_weights = {name: target * weight for name, weight in fit_weights.items()}
    fit_weights = {name: source * weight for name, weight in fit_weights.items()}
    losses: Losses = {}
    # The order of forward passes is the published one. It leaves running statistics closer to the target's.
    if any(fit_weights.values()):
        losses |= _fit_losses("source", model(batch.source.images), batch.source.labels, fit_weights)
    if batch.target is None:
        losses |= _unlabelled_losses(model, batch, unlabelled_terms)
    if extra_losses is not None:
        losses |= extra_losses(model, batch)
    fits_pixels = batch.has_target_labels and any(target_fit_weights.values())
    if batch.target is not None and (fits_pixels or any(unlabelled_terms.weights.values())):
        output = model(batch.target.images)
        if fits_pixels:
            losses |= _fit_losses("labelled", output, batch.target.labels, target_fit_weights)
        losses |= _unlabelled_losses(lambda _: output, batch, unlabelled_terms)
    # If whole images are labelled, the target stream contains other, unlabelled images.
    for stream, data in (("labelled", batch.labelled), ("pseudo_labelled", batch.pseudo_labelled)):
        if data is not None and any(target_fit_weights.values()):
            values = _fit_losses(stream, model(data.images), data.labels, target_fit_weights)
            losses |= {name: losses[name] + loss if name in losses else loss for name, loss in values.items()}
    return losses


def dirichlet_uncertainties(z: Tensor) -> dict[str, Tensor]:
    """Return U_dis and U_data by name."""
    found = uncertainties(z)
    return {"u_dis": found.distribution, "u_data": found.data}


def _fixmatch_losses(model: ForwardFn, batch: Batch, *, weight: float, tau: float) -> Losses:
    """FixMatch loss, if there are unlabelled images."""
    if batch.target is not None or batch.source.labels.ndim > 1:
        raise UserError(
            "FixMatch supports whole images only; set objective.params.fixmatch=0 for segmentation"
        )
    if batch.unlabelled is None:
        return {}
    if batch.strong is None:
        raise UserError(
            "objective.params.fixmatch needs a strong view of unlabelled images; name the objective 'duc' in "
            "a config, or pass OBJECTIVES['duc'].bind({'fixmatch': 1.0}) to the run"
        )
    weak = model(batch.unlabelled).z
    with frozen_running_stats(model):
        strong = model(batch.strong).z
    return {"unlabelled/fixmatch": weight * fixmatch_loss(weak, strong, tau)}


def _fit_losses(stream: str, output: Output, labels: Tensor, weights: LossWeights) -> Losses:
    def values(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        found = []
        if weights["nll"]:
            found.append(negative_log_likelihood(z, label))
        if weights["kl"]:
            found.append(misleading_evidence(z, label) / z.shape[1])
        return tuple(found)

    return _weighted(stream, weights, masked_means(output, values, labels, is_labelled))


def _unlabelled_losses(model: ForwardFn, batch: Batch, unlabelled_terms: UnlabelledTerms) -> Losses:
    if not any(unlabelled_terms.weights.values()):
        return {}
    found = unlabelled_means(
        model, batch, partial(_enabled_values, unlabelled_terms), unlabelled_terms.mask_fn
    )
    return {} if found is None else _weighted("unlabelled", unlabelled_terms.weights, found)


def _enabled_values(unlabelled_terms: UnlabelledTerms, z: Tensor) -> tuple[Tensor, ...]:
    values = unlabelled_terms.fn(z)
    return tuple(values[name] for name, weight in unlabelled_terms.weights.items() if weight)


def _weighted(stream: str, weights: LossWeights, values: tuple[Tensor, ...]) -> Losses:
    used = {f"{stream}/{name}": weight for name, weight in weights.items() if weight}
    return {name: weight * value for (name, weight), value in zip(used.items(), values, strict=True)}


def _has_no_class(labels: Tensor) -> Tensor:
    return labels < 0


DUC_SPEC = ObjectiveSpec(
    duc,
    LabelPropagation,
    strong_view_if=lambda params: bool(params.get("fixmatch")),
    search_grid={  # grids of the paper's sensitivity study
        "beta": (0.01, 0.05, 0.1, 0.5, 1.0),
        "lambda_": (0.001, 0.005, 0.01, 0.05, 0.1),
    },
)
