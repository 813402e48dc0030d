"""DUC's objective (Xie et al., ICLR 2023, section 3.4)."""

from torch import Tensor

from ducats.dirichlet import misleading_evidence, negative_log_likelihood, uncertainties
from ducats.objectives.batch import Batch, Forward, Labelled, Losses, mean_where_known


def duc(
    model: Forward,
    batch: Batch,
    *,
    nll: float = 1.0,
    kl: float = 1.0,
    beta: float = 1.0,
    lambda_: float = 0.05,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Evidential fit where labels are known; less of both uncertainties where they are not.

    ``L = [nll + kl]`` on source and on labelled target, ``+ beta U_dis + lambda U_data`` on unlabelled
    target. A weight of zero switches its term off, and leaves out a forward pass that nothing needs.

    Args:
        model: images to log alpha.
        batch: the step's data.
        nll: weight of the evidential negative log-likelihood.
        kl: weight of the divergence of misleading evidence from none, divided by the number of classes.
        beta: weight of the distribution uncertainty of unlabelled target.
        lambda_: weight of the data uncertainty of unlabelled target.
        source: weight of the source's terms.
        target: weight of the labelled target's terms.
    """
    losses: Losses = {}
    # The order of the forwards is the published one: running batch statistics end nearer to the target's.
    if source:
        losses |= _fit("source", model, batch.source, source * nll, source * kl)
    if batch.unlabelled is not None and (beta or lambda_):
        unlabelled = uncertainties(model(batch.unlabelled).z)
        if beta:
            losses["unlabelled/u_dis"] = beta * unlabelled.distribution.mean()
        if lambda_:
            losses["unlabelled/u_data"] = lambda_ * unlabelled.data.mean()
    if batch.labelled is not None and target:
        losses |= _fit("labelled", model, batch.labelled, target * nll, target * kl)
    return losses


def _fit(stream: str, model: Forward, known: Labelled, nll: float, kl: float) -> Losses:
    if not (nll or kl):
        return {}
    z: Tensor = model(known.images).z
    losses: Losses = {}
    if nll:
        losses[f"{stream}/nll"] = nll * mean_where_known(
            negative_log_likelihood(z, known.labels), known.labels
        )
    if kl:
        misled = misleading_evidence(z, known.labels) / z.shape[1]
        losses[f"{stream}/kl"] = kl * mean_where_known(misled, known.labels)
    return losses
