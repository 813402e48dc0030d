"""Values in figures, compared with hand-computed values and other libraries."""

import json
import math
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import dirichlet
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from ducats.report import figures, read_run
from ducats.report.figures import gallery, histogram, pixels, simplex, tsne
from ducats.report.figures.base import PreparedFigure
from ducats.report.figures.entropies import match_samples
from ducats.report.figures.points import SELECTED_COLOUR, auroc, most_frequent_classes, source_neighbour_share
from ducats.report.figures.style import MATPLOTLIB_STYLE
from ducats.report.figures.u_dis import domain_uncertainties
from ducats.report.figures.uncertainties import find_threshold
from ducats.report.run_reader import Run
from ducats.runfolder import snapshot_files
from ducats.utils.npz_columns import AnyArray
from synthetic_runs import write_pixel_run, write_run
from synthetic_snapshots import write_snapshot


def draw_on_figure(prepared: PreparedFigure) -> Figure:
    with matplotlib.rc_context(MATPLOTLIB_STYLE):
        figure = Figure(figsize=prepared.size)
        prepared.draw(figure)
    return figure


def scatter_collections(axes: Axes) -> list[PathCollection]:
    return [each for each in axes.collections if isinstance(each, PathCollection)]


def count_points(collection: PathCollection) -> int:
    return len(np.asarray(collection.get_offsets()))


def count_coloured_points(figure: Figure, colour: str) -> int:
    """Count the points of a colour on all axes."""
    collections = [each for axes in figure.axes for each in scatter_collections(axes)]
    return sum((count_points(each) for each in collections if _face_colour(each) == to_rgba(colour)[:3]), 0)


def _face_colour(collection: PathCollection) -> tuple[float, ...]:
    colours = np.asarray(collection.get_facecolor()).reshape(-1, 4)
    return tuple(colours[0, :3].tolist()) if len(colours) else ()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with twelve labels in each of three rounds."""
    return read_run(
        write_run(tmp_path_factory.mktemp("runs") / "run", rounds=3, per_round=12, pool=80, source=30)
    )


# -- densities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [(1.0, 1.0, 1.0), (0.3, 2.0, 7.0), (1e-3, 1e-3, 1e-3), (1e6, 2e6, 3e6)])
def test_log_density_matches_scipy(alpha: tuple[float, ...]) -> None:
    points = np.array([[0.2, 0.3, 0.5], [0.01, 0.01, 0.98], [1 / 3, 1 / 3, 1 / 3]])
    expected = [dirichlet(alpha).logpdf(point / point.sum()) for point in points]
    assert simplex.dirichlet_log_density(np.array(alpha), points) == pytest.approx(expected, rel=1e-9)


def test_renormalised_dirichlet_components_are_dirichlet() -> None:
    """Three of five components, renormalised, are Dirichlet distributed with the same three alphas."""
    samples = np.random.default_rng(0).dirichlet([2.0, 0.7, 5.0, 3.0, 0.2], 200_000)[:, :3]
    shares = samples / samples.sum(1, keepdims=True)
    marginal = dirichlet([2.0, 0.7, 5.0])
    assert shares.mean(0) == pytest.approx(marginal.mean(), abs=3e-3)
    assert shares.var(0) == pytest.approx(marginal.var(), abs=3e-3)


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 30.0, 1e6])
def test_triangle_is_never_empty(alpha: float) -> None:
    log_densities = simplex.density_grid(np.array([alpha, 2 * alpha, alpha]), 60)
    inside = ~np.isnan(log_densities)
    assert inside.mean() == pytest.approx(0.5, abs=0.02)  # a triangle in its bounding box
    assert np.nanmax(log_densities) == 0
    assert np.isfinite(log_densities[inside]).all()
    assert ((log_densities > -simplex.MAX_LOG_DENSITY_DROP) & inside).sum() >= 1


def test_concentrated_density_gets_a_dot(tmp_path: Path) -> None:
    wide, narrow, corner, middle = (2.0, 3.0, 4.0), (30.0, 40.0, 20.0), (2e4, 30.0, 1.0), (1e6, 2e6, 1e6)
    concentrated = [simplex.is_concentrated(np.array(alpha)) for alpha in (wide, narrow, corner, middle)]
    assert concentrated == [False, False, True, True]
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, [4], pool=6)
    path = snapshot_files.snapshot_path(run.folder, 1)
    columns = dict(np.load(path))
    for alpha, dots in ((wide, 0), (middle, 3)):
        logs = np.tile(np.log(alpha).astype(np.float32), (6, 1))
        np.savez(path, **(columns | {"log_alpha": logs}))
        figure = draw_on_figure(figures.prepare_figure("simplex", [run]))
        marked = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "o"]
        assert sum(line.get_markerfacecolor() not in ("none", "None") for line in marked) == dots
        assert ("dot:" in figure.get_supxlabel()) == (dots > 0)


def test_density_maximum_is_at_the_mode() -> None:
    log_densities = simplex.density_grid(np.array([9.0, 1.5, 1.5]), 100)  # mode 8/9 of the lower left corner
    y, x = np.unravel_index(np.nanargmax(log_densities), log_densities.shape)
    assert (x + 0.5) / 100 == pytest.approx(0.5 / 9 + 0.25 / 9, abs=0.01)
    assert (y + 0.5) / 100 == pytest.approx(math.sqrt(3) / 2 * 0.5 / 9, abs=0.01)


# -- hand-made pool ----------------------------------------------------------------------------------------


def float32_array(values: list[float]) -> AnyArray:
    return np.array(values, np.float32)


def write_hand_made_run(
    folder: Path, u_dis: list[float], u_data: list[float], picked: list[int], pool: int
) -> Run:
    """Write a run with one round whose snapshot has these samples, the first ones of the pool."""
    write_run(folder, rounds=1, per_round=len(picked), pool=pool, settings=["query.params.kappa=2"])
    n = len(u_dis)
    none, zeros, index = np.zeros(n, bool), np.zeros(n), np.arange(n)
    columns: dict[str, AnyArray] = {"is_target": ~none, "sampled": ~none, "is_labelled": none}
    columns |= {"picked": np.isin(index, picked), "image": index, "position": zeros, "label": zeros - 1}
    write_snapshot(
        folder, round=1, epoch=4, pool=pool, source=0, z=np.zeros((n, 3)), raw=np.eye(n), **columns
    )
    path = snapshot_files.snapshot_path(folder, 1)
    values = {"u_dis": float32_array(u_dis), "log_u_dis": np.log(float32_array(u_dis))}
    np.savez(path, **(dict(np.load(path)) | values | {"u_data": float32_array(u_data)}))
    return read_run(folder)


U_DIS, U_DATA = [0.1, 0.5, 0.3, 0.2, 0.4, 0.05], [0.9, 0.1, 0.6, 0.7, 0.8, 0.2]


def assert_threshold(run: Run, axis: str, value: float, n_kept: int, n_candidates: int, exact: bool) -> None:
    found = find_threshold(run, snapshot_files.load_snapshots(run.folder)[0])
    assert found is not None
    assert (found.axis, found.n_kept, found.n_candidates, found.exact) == (axis, n_kept, n_candidates, exact)
    assert found.value == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("picked", "params", "axis", "value", "n_kept"),
    [
        # kappa 2 times 2 labels: 0.5, 0.4, 0.3 and 0.2 are kept; of them 0.8 and 0.7 have the highest U_data.
        ([2, 4], {}, "u_dis", 0.2, 4),
        ([2, 4], {"order": "data_dis"}, "u_data", 0.6, 4),
        ([4], {"pool_fraction": 0.25}, "u_dis", 0.3, 3),  # 2 * 0.25 * 6 = 3
    ],
)
def test_threshold_is_the_lowest_value_kept(
    tmp_path: Path, picked: list[int], params: dict[str, object], axis: str, value: float, n_kept: int
) -> None:
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, picked, pool=6)
    run.config["query"]["params"] |= params
    assert_threshold(run, axis, value, n_kept, 6, exact=True)


def test_threshold_is_estimated_from_a_sample(tmp_path: Path) -> None:
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, [2, 4], pool=60)
    quantile = math.exp(np.quantile(np.log(U_DIS), 1 - 4 / 60))
    assert_threshold(run, "u_dis", quantile, 4, 60, exact=False)
    run.config["query"]["params"]["epsilon"] = 1e-7  # ranks by a slightly different value
    assert "about" in figures.prepare_figure("uncertainties", [run], round=1).description


def test_no_threshold_for_other_queries(tmp_path: Path) -> None:
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, [0, 2, 4], pool=6)
    snapshot = snapshot_files.load_snapshots(run.folder)[0]
    assert find_threshold(run, snapshot) is None  # 2 * 3 candidates of 6: all are kept
    run.config["query"]["name"] = "entropy"
    assert find_threshold(run, snapshot) is None
    pixel_run = read_run(write_pixel_run(tmp_path / "pixels", rounds=1))
    assert find_threshold(pixel_run, snapshot_files.load_snapshots(pixel_run.folder)[0]) is None


def test_selected_samples_are_marked_and_labelled_ones_left_out(run: Run) -> None:
    figure = draw_on_figure(figures.prepare_figure("uncertainties", [run]))
    assert count_coloured_points(figure, SELECTED_COLOUR) == 36
    point_counts = [
        sum((count_points(each) for each in scatter_collections(axes)), 0) for axes in figure.axes
    ]
    assert point_counts == [80, 68, 56]
    for round_number, n_selected in ((None, 36), (2, 12)):
        figure = draw_on_figure(figures.prepare_figure("features", [run], round=round_number))
        assert count_coloured_points(figure, SELECTED_COLOUR) == n_selected


def test_simplex_pair_has_equal_entropy_and_different_u_dis(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_hand_made_run(folder, [0.1, 0.5, 0.3, 0.2, 0.4, 0.05], [1.9, 1.5, 1.7, 1.2, 1.6, 0.05], [1], pool=6)
    path = snapshot_files.snapshot_path(folder, 1)
    entropy = float32_array([2.0, 2.0, 2.0, 1.4, 2.0, 0.1])
    np.savez(path, **(dict(np.load(path)) | {"entropy": entropy}))
    snapshot = snapshot_files.load_snapshot(path)
    assert simplex.select_contrasting_rows(snapshot, np.zeros(6, bool)) == [5, 1, 0]
    # Rows with a thumbnail differ nearly as much.
    assert simplex.select_contrasting_rows(snapshot, np.array([1, 0, 0, 0, 1, 0], bool)) == [5, 4, 0]


# -- two domains -------------------------------------------------------------------------------------------


def test_auroc_matches_sklearn() -> None:
    random = np.random.default_rng(0)
    low, high = random.integers(0, 20, 50), random.integers(5, 30, 70)  # with ties
    is_high = np.repeat([0, 1], [50, 70])
    assert auroc(low, high) == pytest.approx(roc_auc_score(is_high, np.concatenate([low, high])))
    assert auroc(low[:0], high) is None


def test_medians_and_auroc_of_first_and_last_snapshot(run: Run) -> None:
    first, *_, last = snapshot_files.load_snapshots(run.folder)
    for uncertainties, snapshot in zip(domain_uncertainties(run), (first, last), strict=True):
        assert np.median(uncertainties.target) == np.median(snapshot.log_u_dis[snapshot.is_target])
        assert np.median(uncertainties.source) == np.median(snapshot.log_u_dis[~snapshot.is_target])
        assert uncertainties.auroc == pytest.approx(roc_auc_score(snapshot.is_target, snapshot.log_u_dis))
    text = figures.draw_svg("u_dis", [run])
    assert f"target: n=80, median {np.median(first.log_u_dis[first.is_target]):.2f}" in text


def test_source_neighbour_share_matches_sklearn() -> None:
    random = np.random.default_rng(0)
    features, target = random.standard_normal((200, 5)), random.random(200) < 0.6
    near = NearestNeighbors(n_neighbors=11).fit(features).kneighbors(features[target], return_distance=False)
    share, mixed = source_neighbour_share(features, target) or (0, 0)
    assert share == pytest.approx((~target[near[:, 1:]]).mean())
    assert mixed == pytest.approx((~target).sum() / 199)
    assert source_neighbour_share(features, np.ones(200, bool)) is None


def test_tsne_keeps_labelled_samples_first(run: Run) -> None:
    embedding = tsne.embed_run(run, 40)
    assert embedding.coordinates.shape == (40, 2)
    assert embedding.is_labelled.sum() == 36
    snapshot = snapshot_files.load_snapshots(run.folder)[-1]  # all samples, not only the embedded ones
    features, is_target = snapshot.features.astype(np.float32), snapshot.is_target[snapshot.feature_rows]
    assert embedding.domain_mixing == source_neighbour_share(features, is_target)


def test_samples_of_two_runs_are_matched_by_location(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=1, pool=60, source=30, n_snapshot=40)
    write_run(tmp_path / "b", "random", 1, rounds=1, pool=60, source=30, n_snapshot=20)
    first, second = (snapshot_files.load_snapshots(tmp_path / name)[0] for name in "ab")
    pairs = match_samples(first, second)
    common = {
        (bool(t), int(i))
        for t, i, s in zip(second.is_target, second.image, second.sampled, strict=True)
        if s and i in set(first.image[first.sampled & (first.is_target == t)])
    }
    assert len(pairs.point_entropy) == len(common) > 30
    entropy_by_location = dict(
        zip(zip(first.is_target, first.image, strict=True), first.entropy, strict=True)
    )
    expected = sorted(float(entropy_by_location[location]) for location in common)
    assert sorted(pairs.point_entropy.tolist()) == pytest.approx(expected)
    assert pairs.class_index[~pairs.is_target].tolist() == sorted_labels(second, common)


def sorted_labels(snapshot: snapshot_files.Snapshot, common: set[tuple[bool, int]]) -> list[int]:
    rows = [
        row
        for row in range(len(snapshot))
        if not snapshot.is_target[row] and (False, int(snapshot.image[row])) in common
    ]
    return [int(snapshot.label[row]) for row in sorted(rows, key=lambda row: int(snapshot.image[row]))]


def test_most_frequent_classes_come_first() -> None:
    assert most_frequent_classes(np.array([3, 1, 1, 2, 2, 5]), 3) == [1, 2, 3]


# -- selected samples --------------------------------------------------------------------------------------


def test_histogram_counts_labels_of_the_ledger(run: Run) -> None:
    label_counts = histogram.count_labels(run)
    assert label_counts.rounds == (1, 2, 3)
    assert (label_counts.counts.shape, label_counts.counts.sum()) == ((3, 10), 36)
    labels = np.load(run.folder / "labels" / "round-02.npz")["label"]
    assert label_counts.counts[1].tolist() == np.bincount(labels, minlength=10).tolist()
    end = snapshot_files.load_snapshots(run.folder)[-1]
    predictions = end.predicted[end.is_target]
    assert histogram.prediction_shares(end, label_counts.classes) == pytest.approx(
        np.bincount(predictions, minlength=10) / 80
    )


def test_rare_classes_share_a_bar(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    all_counts = histogram.count_labels(run)
    monkeypatch.setattr(histogram, "MAX_CLASS_BARS", 4)
    label_counts = histogram.count_labels(run)
    assert len(label_counts.classes) == 4
    assert label_counts.classes[-1] is None
    assert label_counts.counts.sum() == 36
    most = sorted(all_counts.counts.sum(0).tolist(), reverse=True)[:3]
    assert sorted(label_counts.counts.sum(0)[:3].tolist(), reverse=True) == most
    assert histogram.prediction_shares(
        snapshot_files.load_snapshots(run.folder)[0], label_counts.classes
    ).sum() == pytest.approx(1)


def test_titles_fit_and_one_round_is_singular(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("duc", "random")
    runs = [read_run(write_run(tmp_path / name, name, rounds=1, pool=80, source=30)) for name in names]
    one_round = figures.prepare_figure("histogram", runs[:1]).description
    assert one_round.startswith("Labels of the selected samples by class: 10 in 1 round;")
    monkeypatch.setattr(tsne, "_fit_tsne", lambda features: features[:, :2])
    figure = draw_on_figure(figures.prepare_figure("tsne", runs))
    figure.set_layout_engine("constrained")
    figure.draw_without_rendering()
    left, right = (axes.title.get_window_extent() for axes in figure.axes)
    assert figure.bbox.x0 <= left.x0 < left.x1 < right.x0 < right.x1 <= figure.bbox.x1


def test_gallery_keeps_the_order_of_the_ledger(run: Run) -> None:
    snapshot = snapshot_files.load_snapshots(run.folder)[0]
    labels = np.load(run.folder / "labels" / "round-01.npz")
    keys = json.loads((run.folder / "pool.json").read_text())
    picks = gallery.first_selected_images(run, snapshot)
    assert [pick.image_name for pick in picks] == [keys[image] for image in labels["image"][:10]]
    assert [pick.label for pick in picks] == [str(label) for label in labels["label"][:10]]
    row = int(np.flatnonzero(snapshot.is_target & (snapshot.image == labels["image"][3]))[0])
    assert (picks[3].u_dis, picks[3].u_data) == (snapshot.u_dis[row], snapshot.u_data[row])
    assert all(pick.thumbnail is not None for pick in picks)


def test_labelled_pixels_are_highlighted(tmp_path: Path) -> None:
    run = read_run(write_pixel_run(tmp_path / "run", rounds=2, per_image=3, size=(12, 20)))
    labelled_image = pixels.select_images(run, ["streets/002.png"])[0]
    assert labelled_image.size == (12, 20)
    assert [len(position) for position in labelled_image.positions] == [3, 3]
    labels = np.load(run.folder / "labels" / "round-02.npz")
    second = labels["position"][6:9]
    new = pixels.round_overlay(labelled_image, 1)
    highlighted = {
        (y, x) for y, x in zip(*np.nonzero((new[..., :3] == pixels.NEW_COLOUR).all(-1)), strict=True)
    }
    assert highlighted == {divmod(int(position), 20) for position in second}
    assert (new[..., 3] > 0).sum() == 6
    assert (pixels.round_overlay(labelled_image, 0)[..., 3] > 0).sum() == 3


def test_wide_image_is_scaled_down() -> None:
    image, position = Image.new("RGB", (160, 80), "red"), (np.array([0, 999 * 2000 + 1999]),)
    labelled_image = pixels.LabelledImage("a", image, (1000, 2000), position, (np.array([0, -2]),))
    overlay = pixels.class_overlay(labelled_image, {0: (1, 2, 3), -2: pixels.VOID_COLOUR})
    assert overlay.shape == (110, 220, 4)
    assert overlay[0, 0].tolist() == [1, 2, 3, 255]
    assert overlay[-1, -1].tolist() == [*pixels.VOID_COLOUR, 255]
    # Two of two million would be invisible: each is drawn as five by five, clipped to nine in a corner.
    assert pixels.enlargement_radius(labelled_image) == 2
    assert (overlay[..., 3] > 0).sum() == 18
    assert pixels.enlargement_radius(replace(labelled_image, positions=(np.arange(300),))) == 0
