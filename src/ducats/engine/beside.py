"""Companions in a run: made for its model, kept with it, asked by its query."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.criteria import TOLD
from ducats.data.views import View
from ducats.domain import UNLABELLED, VOID, Domain, Images
from ducats.engine.forward import luck_of, said
from ducats.models import Evidential, head_of
from ducats.objectives import WITNESSES, Beside, Companion, Look, Moment, Training
from ducats.queries import Strategy
from ducats.randomness import fork, global_seed
from ducats.rows import Output

OWN = "objective"  # the name of the objective's own companion; witnesses are named by what they tell


@dataclass(frozen=True)
class Company:
    """Everything that stands beside one model."""

    model: Evidential
    classes: int
    features: int

    @property
    def own(self) -> Companion | None:
        """The objective's companion."""
        found = dict(self.model.companions.items()).get(OWN)
        assert found is None or isinstance(found, Companion)
        return found

    @property
    def everyone(self) -> Sequence[Companion]:
        """The objective's companion and the query's witnesses."""
        return [c for c in self.model.companions.values() if isinstance(c, Companion)]

    @property
    def witnesses(self) -> Sequence[Companion]:
        """Those that learn by themselves."""
        return [c for c in self.everyone if c is not self.own]

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        """What all of them say of a batch."""
        return {name: column for c in self.everyone for name, column in c.tell(output).items()}

    def head(self) -> Tensor | None:
        """Weights of the model's last layer."""
        return head_of(self.model.network, self.classes, self.features)

    def due(self, moment: Moment) -> bool:
        """Whether one of them wants to look at everything."""
        return any(c.due(moment) for c in self.everyone)

    @torch.no_grad()
    def refresh(self, moment: Moment, look: Look) -> None:
        """Let those look whose time has come."""
        for companion in self.everyone:
            if companion.due(moment):
                companion.refresh(moment, look)

    def own_labels(self) -> Tensor | None:
        """Labels that the objective gave to the pool's images, on the CPU."""
        labels = None if self.own is None else self.own.own_labels()
        return None if labels is None else labels.cpu()

    def askable(self, targets: Tensor, budget: int) -> Tensor:
        """What is known of the pool, and VOID for images that have a label of the objective's own.

        Unless too few are left: then all unlabelled ones may be asked about, and the budget is met.
        """
        own = self.own_labels()
        if own is None:
            return targets
        known = torch.where((targets == UNLABELLED) & (own >= 0), VOID, targets)
        return known if int((known == UNLABELLED).sum()) >= budget else targets


def accompany(
    model: Evidential,
    training: Training,
    strategy: Strategy,
    *,
    classes: int,
    features: int,
    pool: int,
    pixels: bool,
    seed: int,
    autocast: torch.dtype | None = None,
) -> Company:
    """Make the objective's companion, and a witness for each column that only one can tell.

    Args:
        model: beside which they stand; they become part of it, but not of its network.
        training: the objective.
        strategy: the query.
        classes: of the data.
        features: width of what the last layer sees, 0 if the model does not tell.
        pool: images in the pool.
        pixels: whether the model speaks of pixels.
        seed: of the run; their first weights follow from it.
        autocast: what the run computes in, if not in its weights' own kind.
    """
    beside, made = Beside(model, classes, features, pool, pixels, autocast), dict[str, nn.Module]()
    told: tuple[str, ...] = ()
    if training.companion is not None:
        with global_seed(seed, "companion", OWN):
            own = training.companion(beside)
        made[OWN], told = own, own.tells
    for name in strategy.needs:
        if name in TOLD and name not in told:
            with global_seed(seed, "companion", name):
                made[name] = WITNESSES[name](beside)
    model.companions.update(made)
    return Company(model, classes, features)


def recordable(training: Training, query: object) -> bool:
    """Whether neither the objective nor a witness draws at random in Python during a step."""
    needs = query.needs if isinstance(query, Strategy) else ()
    return training.recordable and "committee" not in needs


class Panorama:
    """Passes over the pool and the source, for companions; see `objectives.Look`.

    Args:
        model: as Fabric set it up.
        source: labelled images.
        pool: target images.
        view: how to look at each.
        batch_size: images at once.
        seed: for a view with luck in it.
        fabric: device.
        targets: what is known of the pool's images; None where pixels have labels.
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
        targets: Tensor | None,
    ) -> None:
        self.labels, self.targets = source.labels, targets
        self._model, self._source, self._pool = model, source.images, pool
        self._view, self._batch_size, self._seed, self._fabric = view, batch_size, seed, fabric

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        """Indices and what the model says of the pool's images."""
        return self._pass(self._pool, "pool")

    def source(self) -> Iterator[tuple[Tensor, Output]]:
        """The same for the source's images."""
        return self._pass(self._source, "source")

    def _pass(self, images: Images, name: str) -> Iterator[tuple[Tensor, Output]]:
        view = view_of(images, self._view)
        luck = luck_of(images, view, fork(self._seed, "panorama", name))
        batches = torch.arange(len(images)).split(self._batch_size)
        with torch.no_grad():
            yield from said(self._model, images, batches, view=view, luck=luck, fabric=self._fabric)


def view_of(images: Images, view: View) -> View:
    """The view, as far as these images can be seen through it: their own shape may not be known."""
    if images.aspect is None and view.resize == "short_side":
        return replace(view, resize="squash")
    return view
