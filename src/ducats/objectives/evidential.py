"""DUC's objective (Xie et al., ICLR 2023, section 3.4), and what it shares with others on a Dirichlet."""

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
    """What is to be lowered on unlabelled target."""

    weights: Weights
    values: Callable[[Tensor], Mapping[str, Tensor]]  # from log alpha to values by name, those of `weights`
    where: Callable[[Tensor], Tensor] = unlabelled  # of pixels, those that count


def duc(
    model: Forward,
    batch: Batch,
    companion: Certainty | None = None,  # noqa: ARG001 - its labels come with the batch
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
    """Evidential fit where labels are known; less of both uncertainties where they are not.

    ``L = [nll + kl]`` on source and on labelled target, ``+ beta U_dis + lambda U_data`` on unlabelled
    target: images of their own, or pixels of the same images. Means are over all positions of a stream. A
    weight of zero switches its term off, and leaves out a forward pass that nothing needs.

    Args:
        model: images to log alpha.
        batch: the step's data.
        companion: certainty sampling; its labels come with the batch, so that nothing is read of it here.
        nll: weight of the evidential negative log-likelihood.
        kl: weight of the divergence of misleading evidence from none, divided by the number of classes.
        beta: weight of the distribution uncertainty of unlabelled target.
        lambda_: weight of the data uncertainty of unlabelled target; None: the paper's, 0.05 for images and
            0.01 for pixels.
        source: weight of the source's terms.
        target: weight of the labelled target's terms.
        void: whether a pixel that has no class is left out, or counts as unlabelled, as was published.
        fixmatch: weight of FixMatch on unlabelled images, which the paper's appendix adds with 1.
        tau: FixMatch's threshold: a prediction counts that is more probable.
    """
    if void not in ("left_out", "unlabelled"):
        raise ValueError(f"void is 'left_out' or 'unlabelled', not {void!r}")
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
    """DUC's companion: certainty sampling by U_dis, if it is asked for.

    Args:
        beside: what it is made for.
        certainty: rate of certainty sampling; 0: none.
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
    """Evidential fit where labels are known, something to be lowered where they are not.

    Args:
        model: images to log alpha.
        batch: the step's data.
        fit: weights of ``nll`` and ``kl``.
        calm: of unlabelled target.
        source: weight of the source's fit.
        target: weight of the fit to labelled target, and to what the objective labelled itself.
        more: other losses, whose images pass after the unlabelled ones.
    """
    fit_target = {name: target * weight for name, weight in fit.items()}
    fit = {name: source * weight for name, weight in fit.items()}
    losses: Losses = {}
    # The order of the forwards is the published one: running batch statistics end nearer to the target's.
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
    # Where images are bought whole there is a target stream, too: of other images, without labels.
    for stream, part in (("labelled", batch.labelled), ("certain", batch.certain)):
        if part is not None and any(fit_target.values()):
            values = _fit(stream, model(part.images), part.labels, fit_target)
            losses |= {name: losses[name] + loss if name in losses else loss for name, loss in values.items()}
    return losses


def both_uncertainties(z: Tensor) -> dict[str, Tensor]:
    """U_dis and U_data by name."""
    found = uncertainties(z)
    return {"u_dis": found.distribution, "u_data": found.data}


def _taught(model: Forward, batch: Batch, *, weight: float, tau: float) -> Losses:
    """FixMatch's loss, if there are unlabelled images."""
    if batch.target is not None or batch.source.labels.ndim > 1:
        raise UserError(
            "FixMatch is of images, not of pixels: set objective.knobs.fixmatch=0 for segmentation"
        )
    if batch.unlabelled is None:
        return {}
    if batch.strong is None:
        raise UserError(
            "objective.knobs.fixmatch needs unlabelled images in a strong view: name the objective 'duc' in "
            "a config, or give a run OBJECTIVES['duc'].bound({'fixmatch': 1.0})"
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
