"""Snapshots against an independent computation."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from untrained_models import (
    HEIGHT,
    RANDOM_VIEW,
    WIDTH,
    image_model,
    map_model,
    outputs_one_by_one,
    reference_uncertainties,
)

from ducats.data.domain import UNLABELLED, VOID, AdaptationData, Images
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.ledger import Request
from ducats.run import snapshot_sample
from ducats.run.pca import pca
from ducats.run.snapshot_sample import (
    SampleOutputs,
    SnapshotSample,
    make_snapshot,
    predict_sample,
    sample_images,
    sample_pixels,
)
from ducats.runfolder.snapshot_files import Snapshot
from ducats.settings import View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes


def make_streets(count: int) -> AdaptationData:
    """Make synthetic streets: ``count`` pool images and three source images."""
    return streets(n_source=3, n_pool=count, n_test=1, height=HEIGHT, width=WIDTH)


def image_samples(data: AdaptationData, max_count: int) -> tuple[SnapshotSample, SnapshotSample]:
    """Return samples of the pool, with two picks and two known labels, and of the source."""
    known_labels = torch.full((len(data.pool),), UNLABELLED)
    known_labels[[1, 2]] = torch.tensor([3, VOID])
    return (
        sample_images("pool", known_labels, max_count, torch.tensor([len(data.pool) - 1, 0])),
        sample_images("source", torch.as_tensor(data.source.labels[:]), 5),
    )


def pixel_samples(
    data: AdaptationData, max_count: int, max_images: int = 100
) -> tuple[SnapshotSample, SnapshotSample]:
    """Likewise for pixels: two picks and three known labels in each image; the first row is void."""
    pool_size = len(data.pool)
    requested = torch.arange(pool_size).repeat_interleave(2), torch.tensor([40, 300]).repeat(pool_size)

    def known_labels_of(_: int) -> torch.Tensor:
        found = torch.full((HEIGHT, WIDTH), UNLABELLED)
        found[5, 7:10] = torch.tensor([0, 2, VOID])
        return found

    def valid_mask_of(_: int) -> torch.Tensor:
        return torch.arange(HEIGHT)[:, None].expand(HEIGHT, WIDTH) > 0

    labels = data.source.labels
    return (
        sample_pixels(
            "pool",
            label_grid_sizes(data.pool, "network"),
            valid_mask_of,
            known_labels_of,
            max_count,
            max_images,
            Request(1, *requested),
        ),
        sample_pixels(
            "source",
            label_grid_sizes(data.source.images, "network"),
            lambda image: labels[image] >= 0,
            lambda image: labels[image],
            6,
            2,
        ),
    )


def image_snapshot(data: AdaptationData) -> Snapshot:
    fabric = make_fabric("cpu")
    predictor = Predictor(model=fabric.setup(image_model()), view=RANDOM_VIEW, batch_size=2, fabric=fabric)
    pool, source = (
        (sample, predict_sample(predictor, images, sample, classes=4, n_features=8))
        for images, sample in zip((data.pool, data.source.images), image_samples(data, 4), strict=True)
    )
    return make_snapshot(1, 3, pool, source)


def pixel_snapshot(data: AdaptationData) -> Snapshot:
    fabric = make_fabric("cpu")
    model = fabric.setup(map_model(len(data.classes)))
    predictor = Predictor(model=model, view=View(), batch_size=2, fabric=fabric)

    def predict(images: Images, sample: SnapshotSample) -> tuple[SnapshotSample, SampleOutputs]:
        sizes = label_grid_sizes(images, "network")
        return sample, predict_sample(
            predictor, images, sample, classes=len(data.classes), n_features=16, sizes=sizes
        )

    pool, source = pixel_samples(data, 9)
    return make_snapshot(2, 4, predict(data.pool, pool), predict(data.source.images, source))


def check_columns(found: Snapshot, log_alpha: Tensor) -> None:
    """Assert that a snapshot's columns follow from log alpha."""
    p, u_dis, u_data = reference_uncertainties(log_alpha)
    z = log_alpha.double().numpy()
    rows, order = np.arange(len(z)), np.argsort(-z, 1)
    np.testing.assert_array_equal(found.predicted, order[:, 0])
    np.testing.assert_array_equal(found.top_classes, order[:, :3])
    np.testing.assert_allclose(found.log_alpha, z[rows[:, None], order[:, :3]], rtol=1e-4, atol=1e-5)
    for name, expected in (
        ("probability", p.max(1)),
        ("u_dis", u_dis),
        ("u_data", u_data),
        ("entropy", u_dis + u_data),
        ("log_u_dis", np.log(u_dis)),
        ("log_alpha0", np.log(np.exp(z).sum(1))),
    ):
        np.testing.assert_allclose(getattr(found, name), expected, rtol=2e-4, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(found.z_rows, np.flatnonzero(found.picked))
    np.testing.assert_allclose(found.z, z[found.picked], rtol=1e-4, atol=1e-5)


def check_distances(found: Snapshot, features: Tensor) -> None:
    """Assert that the components preserve the distances between features."""
    distances = torch.cdist(features.double(), features.double())
    kept = torch.from_numpy(found.features.astype(np.float64))
    assert len(kept) == len(features)
    torch.testing.assert_close(
        torch.cdist(kept, kept), distances, rtol=5e-3, atol=5e-3 * float(distances.max())
    )
    assert found.explained_variance_ratio.sum() == pytest.approx(1)  # all components are kept


def test_snapshot_of_images() -> None:
    data = toy(n_pool=11)
    found = image_snapshot(data)
    assert (found.round, found.epoch, found.pool, found.source) == (1, 3, 11, len(data.source))
    target = found.is_target
    assert np.flatnonzero(target).tolist() == list(range(target.sum()))
    assert (found.sampled[target].sum(), found.sampled[~target].sum()) == (4, 5)
    assert found.image[found.picked].tolist() == [0, 10]  # in pool order
    assert found.sampled[target].sum() + (found.picked & ~found.sampled).sum() == target.sum()
    assert not found.position.any()
    known = {1: 3, 2: VOID}
    assert found.label[target].tolist() == [known.get(i, UNLABELLED) for i in found.image[target].tolist()]
    assert found.is_labelled[target].tolist() == [i in known for i in found.image[target].tolist()]
    assert found.label[~target].tolist() == data.source.labels[found.image[~target].tolist()].tolist()
    assert not (found.is_labelled | found.picked)[~target].any()
    z, features = (
        torch.cat([of_pool[found.image[target]], of_source[found.image[~target]]])
        for of_pool, of_source in zip(
            outputs_one_by_one(image_model(), data.pool, RANDOM_VIEW, 0),
            outputs_one_by_one(image_model(), data.source.images, RANDOM_VIEW, 0),
            strict=True,
        )
    )
    check_columns(found, z)
    assert found.feature_rows.tolist() == list(range(len(found)))  # few enough that all have features
    check_distances(found, features)


def test_snapshot_of_pixels() -> None:
    data = make_streets(4)
    found = pixel_snapshot(data)
    target = found.is_target
    assert found.pool == 4 * (HEIGHT - 1) * WIDTH  # the first row is void
    assert found.sampled.sum() == 9 + 6
    assert found.position[target & found.sampled].min() >= WIDTH
    counts = np.bincount(found.image[target & found.sampled])
    assert sorted(counts.tolist()) == [2, 2, 2, 3]
    picks = [(i, position) for i in range(4) for position in (40, 300)]
    rows = zip(found.image[found.picked].tolist(), found.position[found.picked].tolist(), strict=True)
    assert list(rows) == picks
    answers = {5 * WIDTH + 7: 0, 5 * WIDTH + 8: 2, 5 * WIDTH + 9: VOID}
    labels = [answers.get(position, UNLABELLED) for position in found.position[target].tolist()]
    assert found.label[target].tolist() == labels
    source_labels = torch.as_tensor(data.source.labels[:]).flatten(1)
    of_source = source_labels[found.image[~target].tolist(), found.position[~target].tolist()]
    assert found.label[~target].tolist() == of_source.tolist()
    assert len(set(found.image[~target].tolist())) == 2
    model = map_model(len(data.classes)).eval()
    z, features = list[Tensor](), list[Tensor]()
    for images, which in ((data.pool, target), (data.source.images, ~target)):
        with torch.no_grad():
            output = model(images.pixels[:].float() / 255)
        position = found.image[which].tolist(), found.position[which].tolist()
        for rows_, maps in ((z, output.z), (features, output.features)):
            dense = F.interpolate(maps, (HEIGHT, WIDTH), mode="bilinear", align_corners=True)
            rows_.append(dense.flatten(2).movedim(1, 2)[position])
    check_columns(found, torch.cat(z))
    check_distances(found, torch.cat(features))


def test_sample_depends_on_the_data_only() -> None:
    """Known labels, picks and requested counts do not change the random sample."""
    none = torch.full((500,), UNLABELLED)
    plain = sample_images("pool", none, 60)
    other = sample_images("pool", torch.zeros(500, dtype=torch.long), 60, torch.arange(100, 140))
    assert plain.image.tolist() == other.image[other.sampled].tolist()
    assert other.picked.sum() == 40
    assert len(other) == 60 + 40 - int((other.sampled & other.picked).sum())
    assert sample_images("source", none, 60).image.tolist() != plain.image.tolist()
    assert sample_images("pool", none, 600).image.tolist() == list(range(500))
    data = make_streets(5)
    (few, _), (again, _) = pixel_samples(data, 40, 3), pixel_samples(data, 40, 3)
    assert len(few.image.unique()) == 3
    assert torch.equal(few.position, again.position)
    assert few.total == 5 * (HEIGHT - 1) * WIDTH  # extrapolated from these images
    all_of_it, _ = pixel_samples(data, 10**6)
    assert int(all_of_it.sampled.sum()) == all_of_it.total


def test_snapshot_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, max_count in (("MAX_PICKS", 7), ("MAX_SAMPLE_FEATURES", 5), ("MAX_PICK_FEATURES", 3)):
        monkeypatch.setattr(snapshot_sample, name, max_count)
    picked = torch.arange(200).flip(0)
    found = sample_images("pool", torch.full((400,), UNLABELLED), 20, picked)
    assert int((~found.sampled).sum()) <= 7
    assert {0, 199} <= {*found.image.tolist()}  # the last pick and the first
    # Sampled rows that were picked are marked as picked, also beyond the seven.
    assert found.picked.tolist() == [image < 200 for image in found.image.tolist()]
    assert 5 <= int(found.with_features.sum()) <= 8


def test_empty_sample_and_no_features() -> None:
    empty = sample_pixels(
        "pool",
        torch.tensor([[2, 2]]),
        lambda _: torch.zeros(2, 2, dtype=torch.bool),
        lambda _: torch.full((2, 2), VOID),
        5,
        3,
    )
    assert len(empty) == empty.total == 0
    full = sample_images("source", torch.tensor([1, 0]), 3)
    nothing = SampleOutputs(torch.zeros(0, 2), torch.zeros(0, 0))
    found = make_snapshot(0, 9, (empty, nothing), (full, SampleOutputs(torch.eye(2), torch.zeros(2, 0))))
    assert (len(found), found.round, found.features.shape, found.z.shape) == (2, 0, (0, 0), (0, 2))
    assert found.top_classes.tolist() == [[0, 1], [1, 0]]  # only two classes


def test_log_u_dis_of_large_evidence_is_finite() -> None:
    full = sample_images("source", torch.tensor([1, 0]), 3)
    z = torch.tensor([[120.0, 120.0], [0.0, 0.0]])
    nothing = sample_images("pool", torch.zeros(0, dtype=torch.long), 3)
    found = make_snapshot(
        1, 1, (nothing, SampleOutputs(z[:0], torch.zeros(0, 1))), (full, SampleOutputs(z, torch.ones(2, 1)))
    )
    assert found.u_dis[0] == 0
    assert found.log_u_dis[0] == pytest.approx(-120 + np.log(0.25), rel=1e-5)  # (C - 1) / 2 alpha_0, C = 2
    assert found.features.shape == (0, 0)  # two equal rows have no components


@pytest.mark.parametrize(("rows", "columns"), [(40, 6), (6, 40), (90, 70)])
def test_pca_matches_svd(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator) * torch.logspace(0, -2, columns) + 3
    found = pca(x, max_components=5)
    assert found.scores.shape == (rows, 5)
    u, s, _ = np.linalg.svd(x.double().numpy() - x.double().numpy().mean(0), full_matrices=False)
    np.testing.assert_allclose(found.explained_variance_ratio, (s**2 / (s**2).sum())[:5], rtol=1e-9)
    np.testing.assert_allclose(found.scores.abs(), np.abs(u * s)[:, :5], rtol=1e-6, atol=1e-9)
    farthest = found.scores.abs().argmax(0)
    assert bool((found.scores[farthest, torch.arange(5)] > 0).all())
    assert torch.equal(pca(x, max_components=5).scores, found.scores)
    # Fewer dimensions than components: components of rounding error are dropped.
    flat = torch.randn(rows, 2, generator=generator) @ torch.randn(2, columns, generator=generator)
    assert len(pca(flat.double()).explained_variance_ratio) == 2
