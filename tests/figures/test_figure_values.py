"""Values in figures, compared with hand-computed values and other libraries."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

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

from ducats import figures, snapshot_files
from ducats.figures import gallery, histogram, pixels, simplex, tsne
from ducats.figures.base import PreparedFigure
from ducats.figures.entropies import match_samples
from ducats.figures.points import SELECTED_COLOUR, auroc, most_frequent_classes, source_neighbour_share
from ducats.figures.style import MATPLOTLIB_STYLE
from ducats.figures.u_dis import domain_uncertainties
from ducats.figures.uncertainties import find_threshold
from ducats.report import Run, read_run
from synthetic_runs import write_pixel_run, write_run
from synthetic_snapshots import SnapshotSpec, write_snapshot

AnyArray = np.ndarray[Any, Any]


def draw_on_figure(drawing: PreparedFigure) -> Figure:
    with matplotlib.rc_context(MATPLOTLIB_STYLE):
        figure = Figure(figsize=drawing.size)
        drawing.draw(figure)
    return figure


def scatter_collections(axes: Axes) -> list[PathCollection]:
    return [each for each in axes.collections if isinstance(each, PathCollection)]


def count_points(collection: PathCollection) -> int:
    return len(np.asarray(collection.get_offsets()))


def count_coloured_points(figure: Figure, colour: str) -> int:
    """Count the points of a colour on all axes."""
    found = [each for axes in figure.axes for each in scatter_collections(axes)]
    return sum((count_points(each) for each in found if _face_colour(each) == to_rgba(colour)[:3]), 0)


def _face_colour(found: PathCollection) -> tuple[float, ...]:
    colours = np.asarray(found.get_facecolor()).reshape(-1, 4)
    return tuple(colours[0, :3].tolist()) if len(colours) else ()


# -- densities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [(1.0, 1.0, 1.0), (0.3, 2.0, 7.0), (1e-3, 1e-3, 1e-3), (1e6, 2e6, 3e6)])
def test_log_density_matches_scipy(alpha: tuple[float, ...]) -> None:
    points = np.array([[0.2, 0.3, 0.5], [0.01, 0.01, 0.98], [1 / 3, 1 / 3, 1 / 3]])
    expected = [dirichlet(alpha).logpdf(point / point.sum()) for point in points]
    assert simplex.dirichlet_log_density(np.array(alpha), points) == pytest.approx(expected, rel=1e-9)


def test_renormalised_dirichlet_components_are_dirichlet() -> None:
    """Three of five components, renormalised, are Dirichlet distributed with the same three alphas."""
    draws = np.random.default_rng(0).dirichlet([2.0, 0.7, 5.0, 3.0, 0.2], 200_000)[:, :3]
    shares = draws / draws.sum(1, keepdims=True)
    alone = dirichlet([2.0, 0.7, 5.0])
    assert shares.mean(0) == pytest.approx(alone.mean(), abs=3e-3)
    assert shares.var(0) == pytest.approx(alone.var(), abs=3e-3)


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 30.0, 1e6])
def test_triangle_is_never_empty(alpha: float) -> None:
    below = simplex.density_grid(np.array([alpha, 2 * alpha, alpha]), 60)
    inside = ~np.isnan(below)
    assert inside.mean() == pytest.approx(0.5, abs=0.02)  # a triangle in its bounding box
    assert np.nanmax(below) == 0
    assert np.isfinite(below[inside]).all()
    assert ((below > -simplex.MAX_LOG_DENSITY_DROP) & inside).sum() >= 1


def test_concentrated_density_gets_a_dot(tmp_path: Path) -> None:
    wide, narrow, corner, middle = (2.0, 3.0, 4.0), (30.0, 40.0, 20.0), (2e4, 30.0, 1.0), (1e6, 2e6, 1e6)
    found = [simplex.is_concentrated(np.array(alpha)) for alpha in (wide, narrow, corner, middle)]
    assert found == [False, False, True, True]
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
    below = simplex.density_grid(np.array([9.0, 1.5, 1.5]), 100)  # mode 8/9 of the lower left corner
    y, x = np.unravel_index(np.nanargmax(below), below.shape)
    assert (x + 0.5) / 100 == pytest.approx(0.5 / 9 + 0.25 / 9, abs=0.01)
    assert (y + 0.5) / 100 == pytest.approx(math.sqrt(3) / 2 * 0.5 / 9, abs=0.01)


# -- hand-made pool ----------------------------------------------------------------------------------------


def float32_array(given: list[float]) -> AnyArray:
    return np.array(given, np.float32)


def write_hand_made_run(
    folder: Path, u_dis: list[float], u_data: list[float], picked: list[int], pool: int
) -> Run:
    """Write a run with one round whose snapshot has these samples, the first ones of the pool."""
    write_run(folder, rounds=1, per_round=len(picked), pool=pool, settings=["query.params.kappa=2"])
    n = len(u_dis)
    flags = {name: np.zeros(n, bool) for name in ("known", "picked")}
    flags["picked"][picked] = True
    zeros = np.zeros(n)
    moment = SnapshotSpec(
        1, 4, pool, 0, ~flags["known"], np.arange(n), zeros, ~flags["known"], flags["picked"], flags["known"],
        zeros - 1, np.zeros((n, 3)), np.eye(n),
    )  # fmt: skip
    write_snapshot(folder, moment)
    path = snapshot_files.snapshot_path(folder, 1)
    columns = dict(np.load(path))
    columns |= {
        "u_dis": float32_array(u_dis),
        "log_u_dis": np.log(float32_array(u_dis)),
        "u_data": float32_array(u_data),
    }
    np.savez(path, **columns)
    return read_run(folder)


U_DIS, U_DATA = [0.1, 0.5, 0.3, 0.2, 0.4, 0.05], [0.9, 0.1, 0.6, 0.7, 0.8, 0.2]


def test_threshold_is_the_lowest_value_kept(tmp_path: Path) -> None:
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, [2, 4], pool=6)
    found = find_threshold(run, snapshot_files.load_snapshots(run.folder)[0])
    assert found is not None
    # kappa 2 times 2 labels: 0.5, 0.4, 0.3 and 0.2 are kept; of them 0.8 and 0.7 have the highest U_data.
    assert (found.axis, found.n_kept, found.n_candidates, found.exact) == ("u_dis", 4, 6, True)
    assert found.value == pytest.approx(0.2)


def test_swapped_order_thresholds_u_data(tmp_path: Path) -> None:
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, [2, 4], pool=6)
    run.config["query"]["params"]["order"] = "data_dis"
    found = find_threshold(run, snapshot_files.load_snapshots(run.folder)[0])
    assert found is not None
    assert (found.axis, found.exact) == ("u_data", True)
    assert found.value == pytest.approx(0.6)


def test_threshold_with_share_of_the_pool(tmp_path: Path) -> None:
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, [4], pool=6)
    run.config["query"]["params"]["share"] = 0.25  # 2 * 0.25 * 6 = 3
    found = find_threshold(run, snapshot_files.load_snapshots(run.folder)[0])
    assert found is not None
    assert found.n_kept == 3
    assert found.value == pytest.approx(0.3)


def test_threshold_is_estimated_from_a_sample(tmp_path: Path) -> None:
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, [2, 4], pool=60)
    found = find_threshold(run, snapshot_files.load_snapshots(run.folder)[0])
    assert found is not None
    assert (found.n_kept, found.n_candidates, found.exact) == (4, 60, False)
    assert found.value == pytest.approx(math.exp(np.quantile(np.log(U_DIS), 1 - 4 / 60)), rel=1e-5)
    run.config["query"]["params"]["epsilon"] = 1e-7  # ranks by a slightly different value
    assert "about" in figures.prepare_figure("uncertainties", [run], round=1).description


def test_no_threshold_for_other_queries(tmp_path: Path) -> None:
    run = write_hand_made_run(tmp_path / "run", U_DIS, U_DATA, [0, 2, 4], pool=6)
    found = snapshot_files.load_snapshots(run.folder)[0]
    assert find_threshold(run, found) is None  # 2 * 3 candidates of 6: all are kept
    run.config["query"]["name"] = "entropy"
    assert find_threshold(run, found) is None
    of_pixels = read_run(write_pixel_run(tmp_path / "pixels", rounds=1))
    assert find_threshold(of_pixels, snapshot_files.load_snapshots(of_pixels.folder)[0]) is None


def test_selected_samples_are_marked_and_labelled_ones_left_out(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", rounds=3, per_round=7, pool=60, source=30))
    figure = draw_on_figure(figures.prepare_figure("uncertainties", [run]))
    assert count_coloured_points(figure, SELECTED_COLOUR) == 21
    shown = [sum((count_points(each) for each in scatter_collections(axes)), 0) for axes in figure.axes]
    assert shown == [60, 53, 46]
    assert (
        count_coloured_points(draw_on_figure(figures.prepare_figure("features", [run])), SELECTED_COLOUR)
        == 21
    )
    assert (
        count_coloured_points(
            draw_on_figure(figures.prepare_figure("features", [run], round=2)), SELECTED_COLOUR
        )
        == 7
    )


def test_simplex_pair_has_equal_entropy_and_different_u_dis(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_hand_made_run(folder, [0.1, 0.5, 0.3, 0.2, 0.4, 0.05], [1.9, 1.5, 1.7, 1.2, 1.6, 0.05], [1], pool=6)
    path = snapshot_files.snapshot_path(folder, 1)
    entropy = float32_array([2.0, 2.0, 2.0, 1.4, 2.0, 0.1])
    np.savez(path, **(dict(np.load(path)) | {"entropy": entropy}))
    found = snapshot_files.load_snapshot(path)
    assert simplex.select_contrasting_rows(found, np.zeros(6, bool)) == [5, 1, 0]
    # Rows with a thumbnail differ nearly as much.
    assert simplex.select_contrasting_rows(found, np.array([1, 0, 0, 0, 1, 0], bool)) == [5, 4, 0]


# -- two domains -------------------------------------------------------------------------------------------


def test_auroc_matches_sklearn() -> None:
    draw = np.random.default_rng(0)
    low, high = draw.integers(0, 20, 50), draw.integers(5, 30, 70)  # with ties
    truth = np.repeat([0, 1], [50, 70])
    assert auroc(low, high) == pytest.approx(roc_auc_score(truth, np.concatenate([low, high])))
    assert auroc(low[:0], high) is None


def test_medians_and_auroc_of_first_and_last_snapshot(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", rounds=2, pool=60, source=30))
    first, *_, last = snapshot_files.load_snapshots(run.folder)
    for shown, found in zip(domain_uncertainties(run), (first, last), strict=True):
        assert np.median(shown.target) == np.median(found.log_u_dis[found.is_target])
        assert np.median(shown.source) == np.median(found.log_u_dis[~found.is_target])
        assert shown.auroc == pytest.approx(roc_auc_score(found.is_target, found.log_u_dis))
    text = figures.draw_svg("u_dis", [run])
    assert f"target: n=60, median {np.median(first.log_u_dis[first.is_target]):.2f}" in text


def test_source_neighbour_share_matches_sklearn() -> None:
    draw = np.random.default_rng(0)
    features, target = draw.standard_normal((200, 5)), draw.random(200) < 0.6
    near = NearestNeighbors(n_neighbors=11).fit(features).kneighbors(features[target], return_distance=False)
    share, mixed = source_neighbour_share(features, target) or (0, 0)
    assert share == pytest.approx((~target[near[:, 1:]]).mean())
    assert mixed == pytest.approx((~target).sum() / 199)
    assert source_neighbour_share(features, np.ones(200, bool)) is None


def test_tsne_keeps_labelled_samples_first(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", rounds=2, per_round=4, pool=60, source=30))
    laid = tsne.embed_run(run, 20)
    assert laid.coordinates.shape == (20, 2)
    assert laid.is_labelled.sum() == 8
    assert laid.domain_mixing == source_neighbour_share(
        *_last_features(run)
    )  # of all samples, not of the embedded ones


def _last_features(run: Run) -> tuple[AnyArray, AnyArray]:
    found = snapshot_files.load_snapshots(run.folder)[-1]
    return found.features.astype(np.float32), found.is_target[found.feature_rows]


def test_samples_of_two_runs_are_matched_by_location(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=1, pool=60, source=30, n_snapshot=40)
    write_run(tmp_path / "b", "random", 1, rounds=1, pool=60, source=30, n_snapshot=20)
    first, second = (snapshot_files.load_snapshots(tmp_path / name)[0] for name in "ab")
    found = match_samples(first, second)
    both = {
        (bool(t), int(i))
        for t, i, s in zip(second.is_target, second.image, second.sampled, strict=True)
        if s and i in set(first.image[first.sampled & (first.is_target == t)])
    }
    assert len(found.point_entropy) == len(both) > 30
    by_address = dict(zip(zip(first.is_target, first.image, strict=True), first.entropy, strict=True))
    expected = sorted(float(by_address[address]) for address in both)
    assert sorted(found.point_entropy.tolist()) == pytest.approx(expected)
    assert found.class_index[~found.is_target].tolist() == sorted_labels(second, both)


def sorted_labels(found: snapshot_files.Snapshot, both: set[tuple[bool, int]]) -> list[int]:
    rows = [
        row
        for row in range(len(found))
        if not found.is_target[row] and (False, int(found.image[row])) in both
    ]
    return [int(found.label[row]) for row in sorted(rows, key=lambda row: int(found.image[row]))]


def test_most_frequent_classes_come_first() -> None:
    assert most_frequent_classes(np.array([3, 1, 1, 2, 2, 5]), 3) == [1, 2, 3]


# -- selected samples --------------------------------------------------------------------------------------


def test_histogram_counts_labels_of_the_ledger(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", rounds=3, pool=80, source=30))
    found = histogram.count_labels(run)
    assert (found.rounds, found.counts.shape, found.counts.sum()) == ((1, 2, 3), (3, 10), 30)
    labels = np.load(run.folder / "labels" / "round-02.npz")["label"]
    assert found.counts[1].tolist() == np.bincount(labels, minlength=10).tolist()
    end = snapshot_files.load_snapshots(run.folder)[-1]
    guesses = end.predicted[end.is_target]
    assert histogram.prediction_shares(end, found.classes) == pytest.approx(
        np.bincount(guesses, minlength=10) / 80
    )


def test_one_round_is_singular(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", rounds=1, pool=60, source=30))
    assert figures.prepare_figure("histogram", [run]).description.startswith(
        "Labels of the selected samples by class: 10 in 1 round;"
    )


def test_rare_classes_share_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_run(write_run(tmp_path / "run", rounds=2, pool=80, source=30))
    whole = histogram.count_labels(run)
    monkeypatch.setattr(histogram, "MAX_CLASS_BARS", 4)
    found = histogram.count_labels(run)
    assert len(found.classes) == 4
    assert found.classes[-1] is None
    assert found.counts.sum() == 20
    most = sorted(whole.counts.sum(0).tolist(), reverse=True)[:3]
    assert sorted(found.counts.sum(0)[:3].tolist(), reverse=True) == most
    assert histogram.prediction_shares(
        snapshot_files.load_snapshots(run.folder)[0], found.classes
    ).sum() == pytest.approx(1)


def test_panel_titles_fit_in_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        read_run(write_run(tmp_path / method, method, rounds=1, pool=80, source=30))
        for method in ("duc", "random")
    ]
    monkeypatch.setattr(tsne, "_fit_tsne", lambda features: features[:, :2])
    figure = draw_on_figure(figures.prepare_figure("tsne", runs))
    figure.set_layout_engine("constrained")
    figure.draw_without_rendering()
    left, right = (axes.title.get_window_extent() for axes in figure.axes)
    assert figure.bbox.x0 <= left.x0 < left.x1 < right.x0 < right.x1 <= figure.bbox.x1


def test_gallery_keeps_the_order_of_the_ledger(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", rounds=1, per_round=12, pool=80, source=30))
    found = snapshot_files.load_snapshots(run.folder)[0]
    bought = np.load(run.folder / "labels" / "round-01.npz")
    keys = json.loads((run.folder / "pool.json").read_text())
    picks = gallery.first_selected_images(run, found)
    assert [pick.image_name for pick in picks] == [keys[image] for image in bought["image"][:10]]
    assert [pick.label for pick in picks] == [str(label) for label in bought["label"][:10]]
    row = int(np.flatnonzero(found.is_target & (found.image == bought["image"][3]))[0])
    assert (picks[3].u_dis, picks[3].u_data) == (found.u_dis[row], found.u_data[row])
    assert all(pick.thumbnail is not None for pick in picks)


def test_labelled_pixels_are_highlighted(tmp_path: Path) -> None:
    run = read_run(write_pixel_run(tmp_path / "run", rounds=2, per_image=3, size=(12, 20)))
    one = pixels.select_images(run, ["streets/002.png"])[0]
    assert (one.size, [len(position) for position in one.positions]) == ((12, 20), [3, 3])
    bought = np.load(run.folder / "labels" / "round-02.npz")
    second = bought["position"][6:9]
    new = pixels.round_overlay(one, 1)
    lit = {(y, x) for y, x in zip(*np.nonzero((new[..., :3] == pixels.NEW_COLOUR).all(-1)), strict=True)}
    assert lit == {divmod(int(position), 20) for position in second}
    assert (new[..., 3] > 0).sum() == 6
    assert (pixels.round_overlay(one, 0)[..., 3] > 0).sum() == 3


def test_wide_image_is_scaled_down(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (160, 80), "red").save(path)
    position = (np.array([0, 999 * 2000 + 1999]),)
    one = pixels.LabelledImage("a", path, (1000, 2000), position, (np.array([0, -2]),))
    picture = pixels.class_overlay(one, {0: (1, 2, 3), -2: pixels.VOID_PIXEL_COLOUR})
    assert picture.shape == (110, 220, 4)
    assert picture[0, 0].tolist() == [1, 2, 3, 255]
    assert picture[-1, -1].tolist() == [*pixels.VOID_PIXEL_COLOUR, 255]
    # Two of two million would be invisible: each is drawn as five by five, clipped to nine in a corner.
    assert pixels.enlargement_radius(one) == 2
    assert (picture[..., 3] > 0).sum() == 18
    assert pixels.enlargement_radius(replace(one, positions=(np.arange(300),))) == 0
