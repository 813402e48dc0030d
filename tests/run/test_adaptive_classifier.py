"""The scikit-learn estimator."""

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks

import ducats
from ducats import AdaptiveClassifier
from ducats.data.decoding import decode_images
from ducats.data.embedding_cache import EmbeddingCache
from ducats.data.folders import list_images
from ducats.models.classifier import Classifier
from ducats.training.distributed import make_fabric
from ducats.training.embed import Embedder, fixed_views
from ducats.utils.errors import UserError

Array = NDArray[Any]


@parametrize_with_checks([AdaptiveClassifier(fit_steps=60, device="cpu")])  # type: ignore[untyped-decorator]
def test_scikit_learn_checks(estimator: AdaptiveClassifier, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def shifted_digits() -> tuple[Array, Array, Array, Array]:
    """Digits of scikit-learn; those of the target are mirrored and darker."""
    X, y = load_digits(return_X_y=True)
    target = X[900:].reshape(-1, 8, 8)[:, ::-1].reshape(-1, 64) ** 0.5
    return X[:900], y[:900], target, y[900:]


def test_few_labels_help_and_are_never_asked_twice() -> None:
    X, y, target, truth = shifted_digits()
    source_only = AdaptiveClassifier(fit_steps=150).fit(X, y).score(target, truth)
    model = AdaptiveClassifier(fit_steps=150).fit(X, y, target)
    asked: list[int] = []
    for _ in range(4):
        picks = model.query(10)
        assert not set(asked) & set(picks.tolist())
        asked += picks.tolist()
        model.teach(picks, truth[picks])
    assert len(set(asked)) == model.n_labels_ == 40
    assert model.score(target, truth) > source_only + 0.2


def test_uncertainties_add_up_to_the_entropy_and_are_high_far_from_the_source() -> None:
    X, y, _, _ = shifted_digits()
    model = AdaptiveClassifier(fit_steps=150).fit(X[:600], y[:600])
    u_dis, u_data = model.uncertainty(X[600:])
    p = model.predict_proba(X[600:])
    np.testing.assert_allclose(u_dis + u_data, -(p * np.log(p)).sum(1), atol=1e-6)
    noise = np.random.default_rng(0).uniform(0, 16, (100, 64))
    assert model.uncertainty(noise).u_dis.mean() > u_dis.mean()


def test_text_labels_new_classes_and_wrong_calls() -> None:
    X, y, target, truth = shifted_digits()
    names = np.array([f"digit {label}" for label in range(10)])
    known = y < 8
    model = AdaptiveClassifier(fit_steps=20, teach_steps=5).fit(X[known], names[y[known]], target)
    assert model.classes_.tolist() == names[:8].tolist()
    new = int((truth == 9).argmax())
    for indices, labels, message in [
        ([0], ["digit 9"], "none of the classes.*new_classes=True"),
        ([len(target)], ["digit 1"], "whole numbers from 0 to 896"),
        ([-1], ["digit 1"], "whole numbers from 0"),
        ([0.5], ["digit 1"], "whole numbers from 0"),
        ([0, 0], ["digit 1", "digit 2"], "more than once"),
        ([0, 1], ["digit 1"], "2 indices, but 1 labels"),
    ]:
        with pytest.raises(UserError, match=message):
            model.teach(indices, labels)
    with pytest.raises(UserError, match="none of the classes"):
        model.teach([0], [3], new_classes=True)
    with pytest.raises(UserError, match="at least 1"):
        model.query(0)
    assert model.n_labels_ == 0
    model.teach([new], ["digit 9"], new_classes=True)
    assert model.classes_.tolist() == [*names[:8].tolist(), "digit 9"]
    assert model.predict_proba(target[:3]).shape == (3, 9)
    model.teach([new], ["digit 1"])  # a correction
    assert model.n_labels_ == 1


def test_cold_start() -> None:
    _, _, target, truth = shifted_digits()
    model = AdaptiveClassifier(teach_steps=40).fit(X_target=target)
    with pytest.raises(UserError, match="call teach first"):
        model.predict(target)
    for _ in range(4):
        picks = model.query(10)
        model.teach(picks, truth[picks])
    assert model.score(target, truth) > 0.6
    named = AdaptiveClassifier(classes=list(range(10)), teach_steps=2).fit(X_target=target)
    with pytest.raises(UserError, match="none of the classes"):
        named.teach([0], [10])


def test_same_seed_same_result_also_after_pickle() -> None:
    X, y, target, truth = shifted_digits()

    def fitted(seed: int) -> AdaptiveClassifier:
        return AdaptiveClassifier(fit_steps=10, teach_steps=5, random_state=seed).fit(X, y, target)

    first, second, other = fitted(1), fitted(1), fitted(2)
    second.teach(second.query(5), truth[second.query(5)])
    restored = pickle.loads(pickle.dumps(second))
    first.teach(first.query(5), truth[first.query(5)])
    for model in (first, second, restored):
        picks = model.query(7)
        model.teach(picks, truth[picks])
    np.testing.assert_array_equal(first.predict_proba(target), second.predict_proba(target))
    np.testing.assert_array_equal(first.predict_proba(target), restored.predict_proba(target))
    assert not np.array_equal(first.predict_proba(target), other.predict_proba(target))
    assert not hasattr(clone(first), "classes_")


def test_query_objective_and_settings_of_a_run() -> None:
    X, y, target, _ = shifted_digits()
    model = AdaptiveClassifier(fit_steps=2).fit(X, y, target)
    learner = model._learner
    assert learner.query_spec.fn.func is ducats.QUERIES["coverage"].fn  # type: ignore[attr-defined]
    assert learner.objective.params == {"propagation_rate": 0.1}
    assert learner.plan.target_batching == "joint_if_few"
    settings = ("train.lr=0.01", "query.params.temperature=0.3")
    model = AdaptiveClassifier(method="duc", settings=settings[:1], query_strategy="margin", fit_steps=2)
    learner = model.fit(X, y, target)._learner
    assert learner.plan.optimisation.lr == 0.01
    margin = learner.query(5)
    probabilities = np.sort(model.predict_proba(target), 1)
    lowest = np.argsort(probabilities[:, -1] - probabilities[:, -2])[:5]
    assert set(margin.tolist()) == set(lowest.tolist())
    model = AdaptiveClassifier(settings=settings, objective="softmax", fit_steps=2).fit(X, y, target)
    assert model._learner.query_spec.fn.keywords == {"temperature": 0.3}  # type: ignore[attr-defined]


# ---- images

TINY: dict[str, Any] = {
    "device": "cpu",
    "backbone": "test_resnet",
    "pretrained": False,
    "image_size": 32,
    "fit_steps": 5,
    "teach_steps": 2,
}


@pytest.fixture(name="photos")
def _photos(tmp_path: Path) -> Path:
    """Write a folder of PNG files, three for each of two classes."""
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for number in range(3):
            path = tmp_path / "photos" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (40, 30, 3), np.uint8)).save(path)
    return tmp_path / "photos"


def test_arrays_and_paths_give_the_embeddings_of_a_run(photos: Path, tmp_path: Path) -> None:
    files = list_images(photos)
    last = np.stack([np.asarray(Image.open(path)) for _, path in files])
    labels = [key.split("/")[0] for key, _ in files]
    samples: list[tuple[Any, Any]] = [
        (photos, None),
        (str(photos), labels),
        ([path for _, path in files], labels),
        (np.array([str(path) for _, path in files]), labels),
        (last, labels),
        (list(last), labels),
        (last.transpose(0, 3, 1, 2), labels),
    ]
    orders = []
    for number, (X, y) in enumerate(samples):
        model = AdaptiveClassifier(**TINY, cache=tmp_path / f"cache{number}").fit(X, y, X_target=X)
        if number == 0:
            network = model._network
            assert isinstance(network, Classifier)
            images = decode_images(files, 37)
            embedder = Embedder.build(
                network.eval(), fixed_views(model._config.views), make_fabric("cpu"), EmbeddingCache(tmp_path)
            )
            expected, probabilities = embedder.embed(images), model.predict_proba(X)
            assert model.target_paths_ == [str(path) for _, path in files]
        embeddings = model._pool.embeddings
        assert embeddings is not None
        assert torch.equal(embeddings, expected)
        np.testing.assert_array_equal(model.predict_proba(X), probabilities)
        orders.append(getattr(model, "channel_order_", None))
    assert orders == [None, None, None, None, "last", "last", "first"]
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict_proba(photos), probabilities)


def test_grey_images_and_a_vision_transformer() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 50, 50), np.uint8)
    params = {**TINY, "backbone": "test_vit", "image_size": 160}
    model = AdaptiveClassifier(**params).fit(images, [0, 1] * 3, images)
    assert model.channel_order_ == "grey"
    assert len(model.query(2)) == 2


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((4, 3, 8, 3), np.uint8), "first or last; set channel_order"),
        (np.zeros((4, 8, 8, 4), np.uint8), "neither 1 nor 3 channels"),
        (np.zeros((4, 8, 8, 3)), "must be uint8"),
        (["missing.png"] * 4, "missing.png"),
        ("no/such/folder", "does not exist"),
    ],
)
def test_images_that_cannot_be_read(images: Any, message: str) -> None:
    with pytest.raises((UserError, ValueError), match=re.escape(message)):
        AdaptiveClassifier(**TINY).fit(images, [0, 1, 0, 1])


def test_features_and_images_do_not_mix() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 9, 9, 3), np.uint8)
    features, y = np.random.default_rng(0).normal(size=(4, 5)), [0, 1, 0, 1]
    with pytest.raises(UserError, match="all be images, or all be features"):
        AdaptiveClassifier(**TINY).fit(features, y, images)
    with pytest.raises(UserError, match="all be images, or all be features"):
        AdaptiveClassifier(**TINY).fit(images, y).predict(features)
    with pytest.raises(UserError, match="needs samples"):
        AdaptiveClassifier().fit()
