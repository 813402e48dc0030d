"""DUC's objective (Xie et al., ICLR 2023, section 3.4)."""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from ducats.dirichlet import misleading_evidence, negative_log_likelihood, uncertainties
from ducats.domain import UNLABELLED
from ducats.objectives.batch import Batch, Forward, Losses, known
from ducats.objectives.means import means
from ducats.rows import Output

Weights = Mapping[str, float]


def duc(
    model: Forward,
    batch: Batch,
    *,
    nll: float = 1.0,
    kl: float = 1.0,
    beta: float = 1.0,
    lambda_: float | None = None,
    source: float = 1.0,
    target: float = 1.0,
    void: Literal["left_out", "unlabelled"] = "left_out",
) -> Losses:
    """Evidential fit where labels are known; less of both uncertainties where they are not.

    ``L = [nll + kl]`` on source and on labelled target, ``+ beta U_dis + lambda U_data`` on unlabelled
    target: images of their own, or pixels of the same images. Means are over all positions of a stream. A
    weight of zero switches its term off, and leaves out a forward pass that nothing needs.

    Args:
        model: images to log alpha.
        batch: the step's data.
        nll: weight of the evidential negative log-likelihood.
        kl: weight of the divergence of misleading evidence from none, divided by the number of classes.
        beta: weight of the distribution uncertainty of unlabelled target.
        lambda_: weight of the data uncertainty of unlabelled target; None: the paper's, 0.05 for images and
            0.01 for pixels.
        source: weight of the source's terms.
        target: weight of the labelled target's terms.
        void: whether a pixel that has no class is left out, or counts as unlabelled, as was published.
    """
    if void not in ("left_out", "unlabelled"):
        raise ValueError(f"void is 'left_out' or 'unlabelled', not {void!r}")
    fit = {"nll": source * nll, "kl": source * kl}
    fit_target = {"nll": target * nll, "kl": target * kl}
    usual = 0.05 if batch.target is None and batch.source.labels.ndim == 1 else 0.01
    calm = {"u_dis": beta, "u_data": usual if lambda_ is None else lambda_}
    losses: Losses = {}
    # The order of the forwards is the published one: running batch statistics end nearer to the target's.
    if any(fit.values()):
        losses |= _fit("source", model(batch.source.images), batch.source.labels, fit)
    if batch.unlabelled is not None and any(calm.values()):
        values = _uncertainties(model(batch.unlabelled).z, calm)
        losses |= _weighted("unlabelled", calm, tuple(v.mean() for v in values))
    fits_pixels = batch.bought and any(fit_target.values())
    if batch.target is not None and (fits_pixels or any(calm.values())):
        output, labels = model(batch.target.images), batch.target.labels
        if fits_pixels:
            losses |= _fit("labelled", output, labels, fit_target)
        unknown = _unlabelled if void == "left_out" else _without_class
        if any(calm.values()):
            found = means(output, lambda z, _: _uncertainties(z, calm), labels, unknown)
            losses |= _weighted("unlabelled", calm, found)
    if batch.labelled is not None and any(fit_target.values()):
        bought = _fit("labelled", model(batch.labelled.images), batch.labelled.labels, fit_target)
        # Where images are bought whole there is a target stream, too: of other images, without labels.
        losses |= {name: losses[name] + loss if name in losses else loss for name, loss in bought.items()}
    return losses


def _fit(stream: str, output: Output, labels: Tensor, weights: Weights) -> Losses:
    def values(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        found = []
        if weights["nll"]:
            found.append(negative_log_likelihood(z, label))
        if weights["kl"]:
            found.append(misleading_evidence(z, label) / z.shape[1])
        return tuple(found)

    return _weighted(stream, weights, means(output, values, labels, known) if any(weights.values()) else ())


def _uncertainties(z: Tensor, weights: Weights) -> tuple[Tensor, ...]:
    found = uncertainties(z)
    values = {"u_dis": found.distribution, "u_data": found.data}
    return tuple(values[name] for name, weight in weights.items() if weight)


def _weighted(stream: str, weights: Weights, values: tuple[Tensor, ...]) -> Losses:
    used = {f"{stream}/{name}": weight for name, weight in weights.items() if weight}
    return {name: weight * value for (name, weight), value in zip(used.items(), values, strict=True)}


def _unlabelled(labels: Tensor) -> Tensor:
    return labels == UNLABELLED


def _without_class(labels: Tensor) -> Tensor:
    return labels < 0
