"""Figures of many runs: grouping, and means and deviations computed by hand."""

import inspect
import math
from pathlib import Path

import numpy as np
import pytest

from ducats.acquisition.queries import QUERIES
from ducats.objectives import duc
from ducats.report import figures, find_runs, read_run
from ducats.report.figures import calibration
from ducats.report.figures.run_settings import PARAM_DEFAULTS, SEGMENTATION_LAMBDA, get_setting, group_runs
from ducats.report.figures.score_by_setting import budget_curves, kappa_curves, scores_by_weights
from ducats.report.run_reader import Run
from synthetic_runs import write_pixel_run, write_run


def test_default_params_match_the_functions() -> None:
    for key, (names, value) in PARAM_DEFAULTS.items():
        section, _, param = key.split(".")
        for name in names:
            function = QUERIES[name].fn if section == "query" else {"duc": duc}[name]
            default = inspect.signature(function).parameters[param].default
            assert default == (None if param == "lambda_" else value)


def test_lambda_default_in_segmentation(tmp_path: Path) -> None:
    run = read_run(write_pixel_run(tmp_path / "run", rounds=1, snapshots=False))
    assert get_setting(run, "objective.params.lambda_") == SEGMENTATION_LAMBDA == 0.01
    assert get_setting(run, "objective.params.nothing") is None


def write_runs(root: Path, scores: dict[str, tuple[str, float]]) -> list[Run]:
    """Write runs of one round; ``scores`` maps a run name to a setting and the final accuracy."""
    for name, (setting_text, accuracy) in scores.items():
        seed = int(name[-1])
        settings = [setting_text] if setting_text else []
        write_run(
            root / name, "duc", seed, rounds=1, settings=settings, accuracies=[0.5, accuracy], snapshots=False
        )
    return find_runs([root])


def test_kappa_is_averaged_over_seeds_and_defaults_to_ten(tmp_path: Path) -> None:
    runs = write_runs(
        tmp_path,
        {
            "a0": ("query.params.kappa=1", 0.7),
            "b1": ("query.params.kappa=1", 0.8),
            "c0": ("", 0.9),
            "d0": ("query.params={kappa: 10, order: data_dis}", 0.6),
        },
    )
    plain, swapped = sorted(kappa_curves(runs), key=lambda curve: -curve.n_runs)
    assert plain.stats[1].mean == pytest.approx(75)
    assert plain.stats[1].std == pytest.approx(math.sqrt(50))
    assert plain.stats[10].mean == pytest.approx(90)
    assert plain.stats[10].std is None
    assert list(swapped.stats) == [10]
    assert "order data_dis" in swapped.label
    assert "75.0% at kappa 1 (2 seeds), 90.0% at kappa 10 (1 seed)" in plain.describe("kappa")


def test_beta_lambda_cells(tmp_path: Path) -> None:
    runs = write_runs(
        tmp_path,
        {
            "a0": ("objective.params.beta=0.1", 0.7),
            "b1": ("objective.params.beta=0.1", 0.8),
            "c0": ("objective.params={beta: 1.0, lambda_: 0.01}", 0.9),
        },
    )
    group = group_runs(runs, ("objective.params.beta", "objective.params.lambda_"), "beta_lambda")[0]
    assert scores_by_weights(group) == {
        (0.1, 0.05): pytest.approx([70, 80]),
        (1.0, 0.01): pytest.approx([90]),
    }
    text = figures.draw_svg("beta_lambda", runs)
    assert all(word in text for word in ("75.0", "± 7.1", "n=2", "90.0", "n=1"))


def test_budget_curve_starts_with_runs_without_labels(tmp_path: Path) -> None:
    for seed, (count, accuracy) in enumerate(((5, 0.6), (10, 0.7), (10, 0.8))):
        name = f"duc-budget-{count}"
        write_run(
            tmp_path / str(seed), seed=seed, rounds=1, per_round=count, accuracies=[0, accuracy],
            snapshots=False, name=name, pool=100,
        )  # fmt: skip
    write_run(tmp_path / "none", "d", rounds=1, per_round=0, accuracies=[0.5, 0.5], snapshots=False, pool=100)
    config = (tmp_path / "none" / "config.yaml").read_text()
    assert "name: duc" in config
    (curve,) = budget_curves(find_runs([tmp_path]))
    assert curve.label == "duc"
    assert {x: point.mean for x, point in curve.stats.items()} == pytest.approx({0: 50, 5: 60, 10: 75})
    assert "share of the pool (100), %" in figures.draw_svg("budget", find_runs([tmp_path]))


def test_unfinished_runs_are_skipped_if_any_is_finished(tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "runs", {"a0": ("query.params.kappa=1", 0.7), "b0": ("", 0.9)})
    half = read_run(write_run(tmp_path / "half", seed=5, rounds=1, finished=False, snapshots=False))
    (curve,) = kappa_curves([*runs, half])
    assert curve.n_runs == 2


def test_calibration_pools_seeds_and_shows_temperature_scaling(tmp_path: Path) -> None:
    for seed in (0, 1):
        accuracies = [0.5, 0.6, 0.7 + 0.1 * seed]
        write_run(tmp_path / str(seed), seed=seed, snapshots=False, accuracies=accuracies, rounds=2)
    runs = find_runs([tmp_path])
    first, last, scaled = calibration.calibration_panels(runs)
    errors = [run.stages[-1]["ece"] for run in runs]
    assert last.ece is not None
    assert last.ece.mean == pytest.approx(np.mean(errors))
    assert last.ece.std == pytest.approx(np.std(errors, ddof=1))
    assert first.n_predictions == 2000
    assert scaled.ece is not None
    scaled_errors = [run.stages[-1]["temperature_scaled"]["ece"] for run in runs]
    assert scaled.ece.mean == pytest.approx(np.mean(scaled_errors))
    text = f"ECE {100 * np.mean(errors):.1f} ± {100 * np.std(errors, ddof=1):.1f}%"
    assert text in figures.draw_svg("calibration", runs)
