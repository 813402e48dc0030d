"""Auxiliary modules of a run: built for its model, saved with it, read by its query."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.criteria import PROBE_COLUMNS
from ducats.data.views import View
from ducats.domain import UNLABELLED, VOID, Domain, Images
from ducats.models import EvidentialModel, find_head_weights
from ducats.objectives import (
    PROBES,
    AuxiliaryContext,
    AuxiliaryModule,
    FullPass,
    ObjectiveSpec,
    RefreshContext,
)
from ducats.queries import QuerySpec
from ducats.randomness import fork, global_seed
from ducats.samples import Output
from ducats.training.forward import forward_batches, sample_aug_params

OWN = "objective"  # key of the objective's auxiliary module; probes are keyed by the column they provide


@dataclass(frozen=True)
class Company:
    """Auxiliary modules trained with the model."""

    model: EvidentialModel
    classes: int
    features: int

    @property
    def own(self) -> AuxiliaryModule | None:
        """The objective's auxiliary module."""
        found = dict(self.model.auxiliaries.items()).get(OWN)
        assert found is None or isinstance(found, AuxiliaryModule)
        return found

    @property
    def everyone(self) -> Sequence[AuxiliaryModule]:
        """The objective's auxiliary module and the query's probes."""
        return [c for c in self.model.auxiliaries.values() if isinstance(c, AuxiliaryModule)]

    @property
    def witnesses(self) -> Sequence[AuxiliaryModule]:
        """The probes, which have losses of their own."""
        return [c for c in self.everyone if c is not self.own]

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        """Compute the extra columns of a batch."""
        return {name: column for c in self.everyone for name, column in c.extra_columns(output).items()}

    def head(self) -> Tensor | None:
        """Return the weights of the model's last layer."""
        return find_head_weights(self.model.network, self.classes, self.features)

    def due(self, moment: RefreshContext) -> bool:
        """Return whether any auxiliary module needs a refresh."""
        return any(c.is_due(moment) for c in self.everyone)

    @torch.no_grad()
    def refresh(self, moment: RefreshContext, look: FullPass) -> None:
        """Refresh the auxiliary modules that are due."""
        for companion in self.everyone:
            if companion.is_due(moment):
                companion.refresh(moment, look)

    def own_labels(self) -> Tensor | None:
        """Return the objective's pseudo-labels of the pool images, on the CPU."""
        labels = None if self.own is None else self.own.pseudo_labels()
        return None if labels is None else labels.cpu()

    def askable(self, targets: Tensor, budget: int) -> Tensor:
        """Set the targets of pseudo-labelled images to VOID, which excludes them from the query.

        If this leaves fewer than ``budget`` images, return ``targets`` unchanged.
        """
        own = self.own_labels()
        if own is None:
            return targets
        known = torch.where((targets == UNLABELLED) & (own >= 0), VOID, targets)
        return known if int((known == UNLABELLED).sum()) >= budget else targets


def accompany(
    model: EvidentialModel,
    training: ObjectiveSpec,
    strategy: QuerySpec,
    *,
    classes: int,
    features: int,
    pool: int,
    pixels: bool,
    seed: int,
    autocast: torch.dtype | None = None,
) -> Company:
    """Build the objective's auxiliary module, and a probe for each column the query needs beyond those.

    Args:
        model: the modules are registered in it, but not in its network.
        classes: number of classes.
        features: width of the last layer's input; 0 if the model returns no features.
        pool: number of images in the pool.
        pixels: whether the model outputs per-pixel logits.
        seed: of the run; fixes the initial weights of the modules.
        autocast: dtype of the forward pass; None: that of the weights.
    """
    beside, made = AuxiliaryContext(model, classes, features, pool, pixels, autocast), dict[str, nn.Module]()
    told: tuple[str, ...] = ()
    if training.auxiliary is not None:
        with global_seed(seed, "companion", OWN):
            own = training.auxiliary(beside)
        made[OWN], told = own, own.provides
    for name in strategy.needs:
        if name in PROBE_COLUMNS and name not in told:
            with global_seed(seed, "companion", name):
                made[name] = PROBES[name](beside)
    model.auxiliaries.update(made)
    return Company(model, classes, features)


def recordable(training: ObjectiveSpec, query: object) -> bool:
    """Return whether neither the objective nor a probe draws random numbers in Python during a step."""
    needs = query.needs if isinstance(query, QuerySpec) else ()
    return training.cuda_graph_safe and "committee" not in needs


class Panorama:
    """Passes over pool and source for auxiliary modules; implements `objectives.Look`.

    Args:
        model: as set up by Fabric.
        seed: of the run; used if the view has random augmentation.
        pool_labels: labels of the pool images; None in segmentation.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Domain,
        pool: Images,
        *,
        view: View,
        batch_size: int,
        seed: int,
        fabric: Fabric,
        pool_labels: Tensor | None,
    ) -> None:
        self.source_labels, self.pool_labels = source.labels, pool_labels
        self._model, self._source, self._pool = model, source.images, pool
        self._view, self._batch_size, self._seed, self._fabric = view, batch_size, seed, fabric

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        """Yield indices and outputs of the pool images."""
        return self._pass(self._pool, "pool")

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        """Yield indices and outputs of the source images."""
        return self._pass(self._source, "source")

    def _pass(self, images: Images, name: str) -> Iterator[tuple[Tensor, Output]]:
        view = view_of(images, self._view)
        luck = sample_aug_params(images, view, fork(self._seed, "panorama", name))
        batches = torch.arange(len(images)).split(self._batch_size)
        with torch.no_grad():
            yield from forward_batches(
                self._model, images, batches, view=view, aug_params=luck, fabric=self._fabric
            )


def view_of(images: Images, view: View) -> View:
    """Return the view, with `short_side` replaced by `squash` if the original shapes are unknown."""
    if images.aspect is None and view.resize == "short_side":
        return replace(view, resize="squash")
    return view
