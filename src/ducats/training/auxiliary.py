"""Auxiliary modules of a run: built for its model, saved with it, read by its query."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ducats.acquisition.criteria import PROBE_COLUMNS
from ducats.acquisition.queries import QuerySpec
from ducats.data.domain import UNLABELLED, VOID, Images
from ducats.models import EvidentialModel, find_head_weights
from ducats.models.output import Output
from ducats.objectives import (
    PROBES,
    AuxiliaryContext,
    AuxiliaryModule,
    FullPass,
    ObjectiveSpec,
    RefreshContext,
)
from ducats.settings import View
from ducats.training.predictor import Predictor
from ducats.utils.randomness import global_seed

# Key of the objective's auxiliary module; probes are keyed by the column they provide.
OBJECTIVE_MODULE_KEY = "objective"


@dataclass(frozen=True)
class AuxiliaryModules:
    """Auxiliary modules trained with the model."""

    model: EvidentialModel
    classes: int
    n_features: int

    @property
    def objective_module(self) -> AuxiliaryModule | None:
        """The objective's auxiliary module."""
        found = dict(self.model.auxiliaries.items()).get(OBJECTIVE_MODULE_KEY)
        assert found is None or isinstance(found, AuxiliaryModule)
        return found

    @property
    def all_modules(self) -> Sequence[AuxiliaryModule]:
        """The objective's auxiliary module and the query's probes."""
        return [module for module in self.model.auxiliaries.values() if isinstance(module, AuxiliaryModule)]

    @property
    def probes(self) -> Sequence[AuxiliaryModule]:
        """The probes, which have losses of their own."""
        return [module for module in self.all_modules if module is not self.objective_module]

    @property
    def read_stored_images(self) -> bool:
        """Whether batches must contain the stored images of the labelled streams."""
        return any(module.reads_stored_images for module in self.all_modules)

    def extra_columns(self, output: Output) -> Mapping[str, Tensor]:
        """Compute the extra columns of a batch."""
        return {
            name: column
            for module in self.all_modules
            for name, column in module.extra_columns(output).items()
        }

    def head_weights(self) -> Tensor | None:
        """Return the weights of the model's last layer."""
        return find_head_weights(self.model.network, self.classes, self.n_features)

    def is_due(self, context: RefreshContext) -> bool:
        """Return whether any auxiliary module needs a refresh."""
        return any(module.is_due(context) for module in self.all_modules)

    @torch.no_grad()
    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        """Refresh the auxiliary modules that are due."""
        for module in self.all_modules:
            if module.is_due(context):
                module.refresh(context, full_pass)

    def pseudo_labels(self) -> Tensor | None:
        """Return the objective's pseudo-labels of the pool images, on the CPU."""
        labels = None if self.objective_module is None else self.objective_module.pseudo_labels()
        return None if labels is None else labels.cpu()

    def mask_pseudo_labelled(self, targets: Tensor, budget: int) -> Tensor:
        """Set the targets of pseudo-labelled images to VOID, which excludes them from the query.

        If this leaves fewer than ``budget`` images, return ``targets`` unchanged.
        """
        pseudo_labels = self.pseudo_labels()
        if pseudo_labels is None:
            return targets
        masked = torch.where((targets == UNLABELLED) & (pseudo_labels >= 0), VOID, targets)
        return masked if int((masked == UNLABELLED).sum()) >= budget else targets


def build_auxiliaries(
    model: EvidentialModel,
    objective: ObjectiveSpec,
    query: QuerySpec,
    *,
    classes: int,
    n_features: int,
    pool_size: int,
    per_pixel: bool,
    seed: int,
    autocast_dtype: torch.dtype | None = None,
) -> AuxiliaryModules:
    """Build the objective's auxiliary module, and probes for the query's columns that it does not provide.

    Args:
        model: the modules are registered in it, but not in its network.
        n_features: width of the last layer's input; 0 if the model returns no features.
        seed: of the run; fixes the initial weights of the modules.
        autocast_dtype: dtype of mixed precision; None: that of the weights.
    """
    context = AuxiliaryContext(model, classes, n_features, pool_size, per_pixel, autocast_dtype)
    modules = dict[str, nn.Module]()
    provided: tuple[str, ...] = ()
    if objective.auxiliary is not None:
        with global_seed(seed, "companion", OBJECTIVE_MODULE_KEY):
            objective_module = objective.auxiliary(context)
        modules[OBJECTIVE_MODULE_KEY], provided = objective_module, objective_module.provides
    for name in query.needs:
        if name in PROBE_COLUMNS and name not in provided:
            with global_seed(seed, "companion", name):
                modules[name] = PROBES[name](context)
    model.auxiliaries.update(modules)
    return AuxiliaryModules(model, classes, n_features)


@dataclass(frozen=True)
class PredictorPass:
    """A pass over the pool for auxiliary modules; implements `objectives.FullPass`."""

    predictor: Predictor  # every process runs all batches
    images: Images
    pool_labels: Tensor | None  # None in segmentation

    def pool(self) -> Iterator[tuple[Tensor, Output]]:
        """Yield indices and outputs of the pool images."""
        predictor = replace(self.predictor, stream=("panorama", "pool"))
        with torch.no_grad():
            yield from predictor.forward(
                self.images, torch.arange(len(self.images)).split(predictor.batch_size)
            )


def compatible_view(images: Images, view: View) -> View:
    """Return the view, with defaults in place of what these images lack: aspect ratios, bilinear pixels."""
    if images.aspect is None and view.resize == "short_side":
        view = replace(view, resize="squash")
    if images.bilinear_pixels is None:
        view = replace(view, interpolation="bicubic")
    return view
