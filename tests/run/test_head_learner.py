"""A head that learns while labels arrive."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from ducats.acquisition.queries import QUERIES
from ducats.annotation.oracles import GroundTruthOracle
from ducats.data.domain import UNLABELLED, VOID, Domain, Images
from ducats.ledger import load_ledger
from ducats.models import EvidentialModel
from ducats.models.classifier import EmbeddingClassifier
from ducats.objectives import OBJECTIVES
from ducats.run import run
from ducats.run.checkpoint import load_model
from ducats.run.components import Components, RunPlan
from ducats.run.head_learner import HeadLearner
from ducats.settings import Optimisation
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed, make_generator

CLASSES = ("a", "b", "c")
WIDTH = 16
PLAN = RunPlan(batch_size=16, target_batching="joint_if_few", query_epochs=(), seed=3)
WITH_PROPAGATION = OBJECTIVES["duc"].bind({"propagation_rate": 0.1})


def embedded(features: Tensor) -> Images:
    keys = tuple(map(str, range(len(features))))
    pixels = torch.zeros((len(features), 1, 1, 1), dtype=torch.uint8)
    return Images(keys, pixels, embeddings=features[:, None])


def blobs(count: int, shift: float, name: str) -> tuple[Images, Tensor]:
    """Three classes around fixed centres; a shift moves and turns them."""
    centres = torch.randn(3, WIDTH, generator=make_generator(0, "centres"))
    generator = make_generator(0, name)
    labels = torch.randint(3, (count,), generator=generator)
    features = centres[labels] + 0.5 * torch.randn(count, WIDTH, generator=generator)
    direction = torch.randn(3, WIDTH, generator=make_generator(0, "shift"))
    return embedded(features + shift * direction[labels]), labels


SOURCE_IMAGES, SOURCE_LABELS = blobs(200, 0.0, "source")
SOURCE = Domain(SOURCE_IMAGES, SOURCE_LABELS, CLASSES)
POOL, TRUTH = blobs(300, 2.5, "pool")


def network(classes: int = 3) -> EmbeddingClassifier:
    with global_seed(0, "model"):
        return EmbeddingClassifier(WIDTH, classes, bottleneck=32)


def learner(
    source: Domain | None = SOURCE,
    classes: Sequence[str] = CLASSES,
    pool: Images = POOL,
    query: str = "coverage",
    objective: str | None = None,
    plan: RunPlan = PLAN,
) -> HeadLearner:
    spec = WITH_PROPAGATION if objective is None else OBJECTIVES[objective].bind({})
    return HeadLearner(
        network(max(1, len(classes))),
        pool,
        classes,
        source=source,
        objective=spec,
        query=QUERIES[query].bind({}),
        plan=plan,
        device="cpu",
    )


def accuracy(model: HeadLearner) -> float:
    return float((model.predict(POOL).argmax(1) == TRUTH).float().mean())


def answer(model: HeadLearner, count: int) -> Tensor:
    picks = model.query(count)
    model.set_labels(picks, TRUTH[picks])
    return picks


def test_few_labels_adapt_to_the_target() -> None:
    model = learner()
    model.train(100)
    before = accuracy(model)
    for _ in range(5):
        answer(model, 3)
        model.train(25)
    assert accuracy(model) > before + 0.2


def test_starts_without_a_source_or_classes() -> None:
    model = learner(source=None, classes=())
    assert model.train(10) == {}
    first = model.query(4)
    assert len(first.unique()) == 4
    assert torch.equal(first, model.query(4))
    for _ in range(10):
        answer_with_new_classes(model, 2)
        model.train(20)
    assert sorted(model.classes) == sorted(CLASSES)
    truth = torch.tensor([model.classes.index(CLASSES[label]) for label in TRUTH])
    assert float((model.predict(POOL).argmax(1) == truth).float().mean()) > 0.85


def answer_with_new_classes(model: HeadLearner, count: int) -> None:
    picks = model.query(count)
    names = [CLASSES[label] for label in TRUTH[picks]]
    model.add_classes([name for name in dict.fromkeys(names) if name not in model.classes])
    model.set_labels(picks, torch.tensor([model.classes.index(name) for name in names]))


@pytest.mark.parametrize("source", [SOURCE, None])
def test_labels_propagate_once_the_head_is_trained(source: Domain | None) -> None:
    """A session that is opened again has all its labels before the first training."""
    fitted = learner(source)
    known = torch.arange(0, 300, 20)
    fitted.set_labels(known, TRUTH[known])
    fitted.train(5)
    pseudo_labels = fitted._open().auxiliaries.pseudo_labels()
    assert pseudo_labels is not None
    assert (pseudo_labels == UNLABELLED).all()
    fitted.train(5)
    assert (pseudo_labels >= 0).any()


def test_first_questions_cover_the_pool_evenly() -> None:
    assert set(TRUTH[learner(source=None, classes=()).query(6)].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("query", [name for name, spec in QUERIES.items() if not spec.per_pixel])
@pytest.mark.parametrize("source", [SOURCE, None], ids=["source", "cold"])
def test_every_query_returns_unlabelled_images(query: str, source: Domain | None) -> None:
    model = learner(source, query=query)
    for _ in range(2):
        known = (model.labels != UNLABELLED).nonzero().squeeze(1).tolist()
        picks = answer(model, 4)
        assert len(picks.unique()) == 4
        assert not set(picks.tolist()) & set(known)
        model.train(2)


@pytest.mark.parametrize(
    "objective", ["duc", "euq", "softmax", "adversarial", "waal", "mme", "eada", "tqs", "sdm"]
)
@pytest.mark.parametrize("source", [SOURCE, None], ids=["source", "cold"])
def test_every_objective_trains(objective: str, source: Domain | None) -> None:
    model = learner(source, objective=objective)
    answer(model, 8)
    losses = model.train(3)
    assert losses
    assert all(torch.isfinite(torch.tensor(loss)) for loss in losses.values())


def test_all_images_labelled() -> None:
    pool, truth = blobs(5, 1.0, "small")
    model = learner(pool=pool)
    picks = model.query(9)
    assert len(picks) == 5
    model.set_labels(picks, truth[picks])
    model.train(2)
    with pytest.raises(UserError, match="nothing left"):
        model.query(1)


def test_void_and_withdrawn_labels() -> None:
    model = learner(query="entropy")
    picks = model.query(3)
    model.set_labels(picks[:2], torch.tensor([VOID, 1]))
    assert not set(model.query(3).tolist()) & set(picks[:2].tolist())
    model.set_labels(picks[:2], torch.tensor([UNLABELLED, UNLABELLED]))
    assert model.n_labels == 0
    assert torch.equal(model.query(3), picks)


def test_a_new_class_keeps_the_other_weights() -> None:
    model = learner()
    model.train(1)
    answer(model, 10)
    model.train(5)
    pseudo_labels = model._open().auxiliaries.pseudo_labels()
    assert pseudo_labels is not None
    assert (pseudo_labels >= 0).any()
    head = model.network.head.weight.detach().clone()
    momentum = model._optimiser_state()
    model.add_classes(["d"])
    assert model.predict(POOL).shape == (len(POOL), 4)
    assert torch.equal(model.network.head.weight[:3], head)
    kept, kept_labels = model._optimiser_state(), model._open().auxiliaries.pseudo_labels()
    assert kept_labels is not None
    assert torch.equal(kept_labels, pseudo_labels)
    name = "network.bottleneck.0.weight/momentum_buffer"
    assert torch.equal(kept[name], momentum[name])
    model.set_labels(torch.tensor([0, 1]), torch.tensor([3, 3]))
    model.train(5)


def play(model: HeadLearner, rounds: int) -> None:
    for _ in range(rounds):
        answer(model, 5)
        model.train(4)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("source", [SOURCE, None], ids=["source", "cold"])
def test_calls_and_seed_determine_the_result_also_from_a_saved_state(
    source: Domain | None, optimiser: Literal["sgd", "adamw"]
) -> None:
    plan = replace(PLAN, optimisation=Optimisation(optimiser=optimiser))
    first, second = learner(source, plan=plan), learner(source, plan=plan)
    play(first, 4)
    play(second, 2)
    resumed = learner(source, plan=plan)
    resumed.load_state_dict(second.state_dict())
    play(second, 2)
    play(resumed, 2)
    expected = first.predict(POOL)
    assert torch.equal(second.predict(POOL), expected)
    assert torch.equal(resumed.predict(POOL), expected)
    other = learner(source, plan=replace(plan, seed=4))
    play(other, 4)
    assert not torch.equal(other.predict(POOL), expected)


@pytest.mark.parametrize("query", ["coverage", "clue", "badge", "duc"])
def test_same_picks_and_weights_as_a_run(query: str, tmp_path: Path) -> None:
    plan = replace(PLAN, epochs=4, steps_per_epoch=6, query_epochs=(1, 2), budget=(5, 6), snapshot_samples=0)
    spec, objective = QUERIES[query].bind({}), OBJECTIVES["duc"].bind({})
    components = Components(
        EvidentialModel(network()), SOURCE, POOL, GroundTruthOracle(TRUTH), query=spec, objective=objective
    )
    folder = run(components, plan, tmp_path / "run", fabric=make_fabric("cpu"))
    model = HeadLearner(
        network(), POOL, CLASSES, source=SOURCE, objective=objective, query=spec, plan=plan, device="cpu"
    )
    picks = []
    for budget in (5, 6, 0, 0):
        model.train(6)
        picks += answer(model, budget).tolist() if budget else []
    assert picks == [int(POOL.keys.index(entry.key)) for entry in load_ledger(folder).entries()]
    expected = load_model(folder)
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
