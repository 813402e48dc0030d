"""Objective of DUC (Xie et al., ICLR 2023, section 3.4), and the evidential losses that others share."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor

from ducats.criteria import CRITERIA
from ducats.dirichlet import misleading_evidence, negative_log_likelihood, uncertainties
from ducats.errors import UserError
from ducats.objectives.batch import Batch, Forward, Losses, known
from ducats.objectives.certainty import Certainty
from ducats.objectives.companion import Beside
from ducats.objectives.fixmatch import fixmatch as fixmatch_loss
from ducats.objectives.fixmatch import unnoted
from ducats.objectives.means import means
from ducats.objectives.unlabelled import over_unlabelled, unlabelled
from ducats.rows import Output

Weights = Mapping[str, float]


class Calm(NamedTuple):
    """Loss terms on unlabelled target data."""

    weights: Weights
    values: Callable[[Tensor], Mapping[str, Tensor]]  # from log alpha to values by name, as in `weights`
    where: Callable[[Tensor], Tensor] = unlabelled  # pixels that count; segmentation only


def duc(
    model: Forward,
    batch: Batch,
    companion: Certainty | None = None,  # noqa: ARG001 - its labels are in the batch
    *,
    nll: float = 1.0,
    kl: float = 1.0,
    beta: float = 1.0,
    lambda_: float | None = None,
    source: float = 1.0,
    target: float = 1.0,
    void: Literal["left_out", "unlabelled"] = "left_out",
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
        source: weight of the terms on the source.
        target: weight of the terms on the labelled target.
        void: ``left_out`` ignores pixels without a class; ``unlabelled`` counts them as unlabelled, as the
            published code does.
        fixmatch: weight of FixMatch on unlabelled images; 1 in the paper's appendix.
        tau: confidence threshold of FixMatch.
    """
    if void not in ("left_out", "unlabelled"):
        raise ValueError(f"objective.params.void must be 'left_out' or 'unlabelled', not {void!r}")
    images = batch.target is None and batch.source.labels.ndim == 1
    usual = 0.05 if images else 0.01
    calm = Calm(
        {"u_dis": beta, "u_data": usual if lambda_ is None else lambda_},
        both_uncertainties,
        unlabelled if void == "left_out" else _without_class,
    )
    more = partial(_taught, weight=fixmatch, tau=tau) if fixmatch else None
    return evidential(model, batch, {"nll": nll, "kl": kl}, calm, source=source, target=target, more=more)


def sure_of_evidence(beside: Beside, *, certainty: float = 0.0) -> Certainty:
    """Build DUC's auxiliary module: optional certainty sampling by U_dis.

    Args:
        certainty: rate of certainty sampling; 0 disables it.
    """
    return Certainty(beside, CRITERIA["u_dis"].of, rate=certainty, knob="certainty")


def evidential(
    model: Forward,
    batch: Batch,
    fit: Weights,
    calm: Calm,
    *,
    source: float = 1.0,
    target: float = 1.0,
    more: Callable[[Forward, Batch], Losses] | None = None,
) -> Losses:
    """Evidential loss on labelled data, with given terms on unlabelled target data.

    Args:
        fit: weights of ``nll`` and ``kl``.
        calm: terms on unlabelled target data.
        source: weight of the terms on the source.
        target: weight of the terms on labelled and pseudo-labelled target data.
        more: additional losses, whose images are forwarded after the unlabelled ones.
    """
    fit_target = {name: target * weight for name, weight in fit.items()}
    fit = {name: source * weight for name, weight in fit.items()}
    losses: Losses = {}
    # The order of forward passes is the published one. It leaves running statistics closer to the target's.
    if any(fit.values()):
        losses |= _fit("source", model(batch.source.images), batch.source.labels, fit)
    if batch.target is None:
        losses |= _calmed(model, batch, calm)
    if more is not None:
        losses |= more(model, batch)
    fits_pixels = batch.bought and any(fit_target.values())
    if batch.target is not None and (fits_pixels or any(calm.weights.values())):
        output = model(batch.target.images)
        if fits_pixels:
            losses |= _fit("labelled", output, batch.target.labels, fit_target)
        losses |= _calmed(lambda _: output, batch, calm)
    # If whole images are labelled, the target stream contains other, unlabelled images.
    for stream, part in (("labelled", batch.labelled), ("certain", batch.certain)):
        if part is not None and any(fit_target.values()):
            values = _fit(stream, model(part.images), part.labels, fit_target)
            losses |= {name: losses[name] + loss if name in losses else loss for name, loss in values.items()}
    return losses


def both_uncertainties(z: Tensor) -> dict[str, Tensor]:
    """Return U_dis and U_data by name."""
    found = uncertainties(z)
    return {"u_dis": found.distribution, "u_data": found.data}


def _taught(model: Forward, batch: Batch, *, weight: float, tau: float) -> Losses:
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
            "a config, or pass OBJECTIVES['duc'].bound({'fixmatch': 1.0}) to the run"
        )
    weak = model(batch.unlabelled).z
    with unnoted(model):
        strong = model(batch.strong).z
    return {"unlabelled/fixmatch": weight * fixmatch_loss(weak, strong, tau)}


def _fit(stream: str, output: Output, labels: Tensor, weights: Weights) -> Losses:
    def values(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        found = []
        if weights["nll"]:
            found.append(negative_log_likelihood(z, label))
        if weights["kl"]:
            found.append(misleading_evidence(z, label) / z.shape[1])
        return tuple(found)

    return _weighted(stream, weights, means(output, values, labels, known))


def _calmed(model: Forward, batch: Batch, calm: Calm) -> Losses:
    if not any(calm.weights.values()):
        return {}
    found = over_unlabelled(model, batch, partial(_wanted, calm), calm.where)
    return {} if found is None else _weighted("unlabelled", calm.weights, found)


def _wanted(calm: Calm, z: Tensor) -> tuple[Tensor, ...]:
    values = calm.values(z)
    return tuple(values[name] for name, weight in calm.weights.items() if weight)


def _weighted(stream: str, weights: Weights, values: tuple[Tensor, ...]) -> Losses:
    used = {f"{stream}/{name}": weight for name, weight in weights.items() if weight}
    return {name: weight * value for (name, weight), value in zip(used.items(), values, strict=True)}


def _without_class(labels: Tensor) -> Tensor:
    return labels < 0
