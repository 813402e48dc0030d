"""Learn a head on embeddings while labels arrive, in memory; the same training and queries as in a run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from lightning_fabric import Fabric
from torch import Tensor

from ducats.acquisition.queries import QuerySpec
from ducats.data.domain import UNLABELLED, Domain, Images, no_images
from ducats.ledger import Request
from ducats.models import EvidentialModel
from ducats.models.classifier import Classifier, EmbeddingClassifier
from ducats.models.growing import grow_classes, grow_tensor, grow_tensors
from ducats.objectives import ObjectiveSpec, RefreshContext
from ducats.run.components import Components, RunPlan
from ducats.run.select import first_query, score_source_images, select_images
from ducats.run.training import KnownTargets, TrainingContext, fit_streams, refresh_modules, set_up_training
from ducats.settings import PerformanceOptions, StreamViews
from ducats.training.distributed import make_fabric
from ducats.training.fit import adapt_optimiser_state
from ducats.training.performance import resolve_performance
from ducats.utils.errors import UserError
from ducats.utils.progress import activity
from ducats.utils.randomness import make_generator

LABELS_PER_ROUND = (
    0.01  # labels of a round, as a fraction of the pool: by default a run labels 5 % in 5 rounds
)
FIT_STEPS = 500  # default training steps of a first training
REFIT_STEPS = 50  # default training steps after new labels


class HeadLearner:
    """A head on embeddings, which is trained further whenever labels arrive.

    All results are determined by the calls and the seed; the number of steps bounds the time of a call.
    Without a source, labelled images of the pool take its role. Until two classes are known, nothing is
    trained, and the query covers the pool evenly.

    Args:
        network: trained in place; its backbone, if it has one, must be frozen.
        pool: images with embeddings; may be empty if there is a source.
        classes: names; more can be added later.
        source: labelled images with embeddings, with the same classes.
        views: of images with embeddings of several fixed views, see `EmbeddingInputs`.
        plan: settings of the training. Epochs, rounds and budget are not read.
        evidence: see `EvidentialModel`.
        device: see `make_fabric`.
    """

    def __init__(
        self,
        network: Classifier | EmbeddingClassifier,
        pool: Images,
        classes: Sequence[str],
        *,
        source: Domain | None = None,
        objective: ObjectiveSpec,
        query: QuerySpec,
        views: StreamViews | None = None,
        plan: RunPlan | None = None,
        evidence: str = "exp",
        device: str = "auto",
    ) -> None:
        self.network, self.pool, self.source, self.classes = network, pool, source, tuple(classes)
        self.objective, self.query_spec = objective, query
        self.views, self.plan = views or StreamViews(), plan or RunPlan()
        self.evidence, self.device = evidence, device
        if self.plan.optimisation.ema_decay is not None:
            raise UserError("train.ema_decay is for runs in a folder; set train.ema_decay=null")
        self.labels = torch.full((len(pool),), UNLABELLED)  # index into `classes`, UNLABELLED or VOID
        self.epoch = 0  # calls of `train` so far, which determine the batches
        self.step = 0  # training steps so far, which determine the learning rate
        self.round = 1  # changes of the labels so far, plus one; determines the randomness of queries
        self._refreshed_round = 0  # of the auxiliary modules, see `_refresh`
        self._fabric: Fabric | None = None
        self._context: TrainingContext | None = None

    @property
    def n_labels(self) -> int:
        """Number of labelled images of the pool."""
        return int((self.labels >= 0).sum())

    @property
    def can_train(self) -> bool:
        """Whether two classes are known and one image is labelled."""
        return len(self.classes) > 1 and (self.source is not None or self.n_labels > 0)

    def add_classes(self, names: Sequence[str]) -> None:
        """Append classes; each gets a new logit, without evidence."""
        self.classes += tuple(names)
        if len(self.classes) > self.network.head.out_features:
            momenta, auxiliaries = self._optimiser_state(), self._open().model.auxiliaries.state_dict()
            self._close()
            grow_classes(self.network, self.network.head.out_features, len(self.classes))
            self._load_optimiser_state(momenta)
            grown = self._open().model.auxiliaries
            grown.load_state_dict(grow_tensors(auxiliaries, grown.state_dict(), keep_new=True))

    def set_labels(self, index: Tensor, labels: Tensor) -> None:
        """Set labels of pool images: an index into the classes, UNLABELLED to withdraw a label, or VOID."""
        self.labels[index] = labels
        self.round += 1

    def train(self, steps: int) -> dict[str, float]:
        """Train so many steps with all labels; return the mean losses, empty if there is nothing to learn."""
        if not self.can_train:
            return {}
        self._refresh()
        context, labels = self._open(), self.labels
        streams = replace(context.streams, steps_per_epoch=steps)
        targets = KnownTargets(labels, None, has_labels=self.n_labels > 0)
        with activity("training the head", total=steps) as training:
            losses = fit_streams(
                context,
                streams,
                self.epoch,
                targets,
                first_step=self.step,
                on_step=lambda _step, _means: training.advance(),
            )
        self.epoch, self.step = self.epoch + 1, self.step + steps
        return losses

    def query(self, count: int) -> Tensor:
        """Return the indices of unlabelled pool images to label next, the most informative first.

        The same indices are returned until labels or weights change; fewer if fewer images are unlabelled.
        """
        context, number = self._open(), self.round
        predictor = replace(context.round_predictor(number), extra_columns=context.auxiliaries.extra_columns)
        generator = make_generator(self.plan.seed, "query", number)
        pool = context.components.pool
        if not self.can_train:
            query, samples = first_query(context, predictor)
            return self._select(query, samples, self.labels, count, generator).image
        samples = predictor.score_images(pool, context.query.needs)
        return self._select(
            context.query,
            samples,
            context.auxiliaries.mask_pseudo_labelled(self.labels, count),
            count,
            generator,
            source=score_source_images(context, predictor, number, self.labels),
            head=context.auxiliaries.head_weights() if context.query.needs_head else None,
        ).image

    def predict(self, images: Images) -> Tensor:
        """Return log alpha of images with embeddings, ``(N, classes)``, on the CPU."""
        predictor = replace(self._open().predictor(), view=self.views.test)
        return predictor.score_images(images, ("z",)).z

    def state_dict(self) -> dict[str, Any]:
        """Return all that changes with labels and training, on the CPU."""
        auxiliaries = self._open().model.auxiliaries.state_dict()
        tensors = {
            "head": {k: v for k, v in self.network.state_dict().items() if not k.startswith("backbone.")},
            "optimiser": self._optimiser_state(),
            "auxiliaries": dict(auxiliaries),
            "labels": {"labels": self.labels},
        }
        return {
            **{name: {k: v.cpu().clone() for k, v in group.items()} for name, group in tensors.items()},
            **{name: getattr(self, name) for name in _PLAIN_STATE},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; the learner must have been made with the same arguments."""
        self._close()
        for name in _PLAIN_STATE:
            setattr(self, name, state[name])
        self.labels = state["labels"]["labels"].clone()
        n_logits = len(state["head"]["head.bias"])
        if n_logits != self.network.head.out_features:
            grow_classes(self.network, self.network.head.out_features, n_logits)
        self.network.load_state_dict(state["head"], strict=False)
        self._open().model.auxiliaries.load_state_dict(state["auxiliaries"])
        self._load_optimiser_state(state["optimiser"])

    def _select(self, *arguments: Any, **optional: Any) -> Request:
        query, samples, known_labels, count, generator = arguments
        if not bool((known_labels == UNLABELLED).any()):
            raise UserError("all target images are labelled; there is nothing left to query")
        device = self._open().fabric.device
        return select_images(
            query, samples, known_labels, count, self.round, generator, device=device, **optional
        )

    def _refresh(self) -> None:
        """Refresh the auxiliary modules, as between two rounds of a run, when enough labels are new.

        Not before the first training: random predictions would become pseudo-labels.
        """
        if not self.step:
            return
        labels_per_round = max(len(self.classes), -(-len(self.pool) // round(1 / LABELS_PER_ROUND)))
        rounds = self.n_labels // labels_per_round
        if rounds <= self._refreshed_round:
            return
        self._refreshed_round = rounds
        position = RefreshContext(self.step, self.plan.epochs, rounds + 1, rounds + 2, rounds)
        if self._open().auxiliaries.is_due(position):
            refresh_modules(self._open(), position, self.labels)

    @property
    def _class_names(self) -> tuple[str, ...]:
        """One name per logit; before the first class, there is one logit without a name."""
        return self.classes or ("",)

    def _open(self) -> TrainingContext:
        if self._context is not None:
            return self._context
        if self._fabric is None:
            self._fabric = make_fabric(self.device)
            self._fabric.launch()
        if self.source is None:
            source = Domain(no_images(self.pool), torch.zeros(0, dtype=torch.long), self._class_names)
        else:
            source = replace(self.source, classes=self._class_names)
        model = EvidentialModel(self.network.cpu(), self.evidence)
        components = Components(
            model,
            source,
            self.pool,
            _no_oracle,
            query=self.query_spec,
            objective=self.objective,
            views=self.views,
        )
        # New labels change the shape of the batches too often for CUDA graphs.
        performance = resolve_performance(PerformanceOptions(cuda_graphs=False), self._fabric)
        self._context = set_up_training(components, model, self.plan, self._fabric, performance)
        return self._context

    def _close(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context.model.unwrap()  # or its hooks would keep the tensors of all later forward passes
            self._context = None

    def _optimiser_state(self) -> dict[str, Tensor]:
        """Return the optimiser's tensors, such as the momentum, by name of the parameter and the tensor."""
        context = self._open()
        return {
            f"{name}/{key}": tensor
            for name, parameter in context.model.named_parameters()
            for key, tensor in context.optimiser.state.get(parameter, {}).items()
            if isinstance(tensor, Tensor)
        }

    def _load_optimiser_state(self, state: dict[str, Tensor]) -> None:
        """Set the optimiser's tensors; those of new logits are 0."""
        context = self._open()
        for name, parameter in context.model.named_parameters():
            tensors = {
                key.rpartition("/")[2]: t for key, t in state.items() if key.rpartition("/")[0] == name
            }
            if tensors:
                context.optimiser.state[parameter] = {
                    key: grow_tensor(t, parameter.shape).to(parameter, copy=True) if t.ndim else t.clone()
                    for key, t in tensors.items()
                }
        adapt_optimiser_state(context.optimiser, fused=bool(context.performance.fused_optimiser))


_PLAIN_STATE = ("classes", "epoch", "step", "round", "_refreshed_round")


def _no_oracle(_request: Request) -> NoReturn:
    raise UserError("a HeadLearner has no oracle; give it labels with `set_labels`")
