"""Verdict on a run: gains, confidence intervals and extrapolation computed by hand, and their sentences."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_parser import present

from ducats.report.run_kinds import CLASSIFICATION, SEGMENTATION
from ducats.report.run_reader import Run
from ducats.report.run_section.extrapolation import GainForecast, extrapolate_gain, forecast_gain
from ducats.report.run_section.gain import (
    ConfidenceInterval,
    RandomComparison,
    compare_with_random,
    compute_gain,
)
from ducats.report.run_section.verdict import (
    comparison_sentence,
    forecast_sentence,
    format_label_count,
    format_points,
    make_verdict,
)

DATA = {"test": {"images": 200, "digest": "a"}}


def run(
    scores: Sequence[float],
    method: str = "duc",
    seed: int = 0,
    *,
    query: str | None = None,
    objective: str = "duc",
    images: int = 200,
    per_round: int = 10,
    epochs: Sequence[int] | None = None,
    data: Any = DATA,
    per_pixel: bool = False,
    finished: bool = True,
    **more: Any,
) -> Run:
    """Return a run whose stages have these scores."""
    stages = []
    for index, score in enumerate(scores):
        stage = {"kind": "stage", "stage": index, "epoch": (epochs or range(1, 99))[index]}
        stage |= {"labels": per_round * index, "images": images, "evaluated_on": "held_out", "seconds": 1.0}
        stage |= {"headline_metric": "mean_iou", "mean_iou": score} if per_pixel else {"accuracy": score}
        stages.append(stage | more)
    config = {"method": method, "seed": seed, "query": {"name": query or method}, "objective": objective}
    return Run(Path(f"{method}-{seed}"), method, seed, config, tuple(stages), finished=finished, data=data)


# -- differences and their intervals ---------------------------------------------------------------------


def test_gain_is_last_minus_first_with_agresti_caffo_interval() -> None:
    found = present(compute_gain(run([0.8, 0.7, 0.9])))
    # (160 + 1) / 202 and (180 + 1) / 202 correct: one correct and one wrong prediction are added to each.
    p, q = 161 / 202, 181 / 202
    half_width = 1.959964 * math.sqrt(p * (1 - p) / 202 + q * (1 - q) / 202)
    assert (found.before, found.after, found.labels) == (0.8, 0.9, 20)
    assert_interval(found.interval, q - p, half_width, "from 200 evaluated images")


def assert_interval(
    interval: ConfidenceInterval | None, centre: float, half_width: float, basis: str
) -> None:
    found = present(interval)
    assert (found.low, found.high) == pytest.approx((centre - half_width, centre + half_width), abs=1e-5)
    assert found.basis == basis


def test_one_stage_has_no_gain_and_segmentation_has_no_interval() -> None:
    assert compute_gain(run([0.8])) is None
    assert compute_gain(run([])) is None
    assert present(compute_gain(run([0.4, 0.5], per_pixel=True))).interval is None


def test_two_shared_seeds_give_a_paired_interval() -> None:
    ours = [run([0.5, score], seed=seed) for seed, score in enumerate((0.80, 0.84, 0.70))]
    theirs = [run([0.5, score], "random", seed) for seed, score in ((0, 0.76), (1, 0.78), (7, 0.10))]
    (found,) = compare_with_random(ours[0], [*ours, *theirs])
    # Differences 0.04 and 0.06: mean 0.05, deviation 0.01414, t of one degree of freedom 12.706.
    assert (found.method, found.n_pairs, found.same_training) == ("random", 2, True)
    assert found.difference == pytest.approx(0.05)
    assert_interval(found.interval, 0.05, 12.7062 * 0.0141421 / math.sqrt(2), "over 2 shared seeds")


def test_one_seed_is_compared_with_the_same_seed_if_there_is_one() -> None:
    theirs = [run([0.5, 0.6], "random", 0), run([0.5, 0.7], "random", 3)]
    for seed, difference, n_pairs in ((3, 0.1, 1), (9, 0.2, 0)):
        (found,) = compare_with_random(run([0.5, 0.8], seed=seed), theirs)
        assert (found.difference, found.n_pairs) == pytest.approx((difference, n_pairs))
        assert "200 evaluated images" in present(found.interval).basis


def test_only_random_runs_on_the_same_data_with_as_many_labels_count() -> None:
    ours = run([0.5, 0.8])
    elsewhere = run([0.5, 0.6], "random", data={"test": {"images": 9, "digest": "b"}})
    fewer = run([0.5, 0.6], "random", per_round=9)
    unlike = run([0.5, 0.6], "entropy")
    assert compare_with_random(ours, [ours, elsewhere, fewer, unlike]) == []
    assert compare_with_random(run([0.5, 0.6], "random"), [ours]) == []


def test_an_unfinished_run_is_compared_at_its_latest_stage() -> None:
    half = run([0.5, 0.7], finished=False)
    (found,) = compare_with_random(half, [run([0.5, 0.65, 0.9], "random")])
    assert found.difference == pytest.approx(0.05)


def test_a_method_with_the_same_training_is_marked_and_comes_last() -> None:
    same_training = run([0.5, 0.7], "duc-random", query="random")
    plain = run([0.5, 0.6], "random", objective="softmax")
    found = compare_with_random(run([0.5, 0.8]), [same_training, plain])
    assert [(c.method, c.same_training) for c in found] == [("random", False), ("duc-random", True)]


# -- the next batch --------------------------------------------------------------------------------------


def test_points_on_a_saturating_curve_are_extrapolated_exactly() -> None:
    labels = np.array([0.0, 10, 20, 30, 40])
    half_life = 40 * 10 ** (-1 + 2 * 20 / 60)  # one of the curves that are tried
    scores = 0.9 - 0.4 * 2 ** (-labels / half_life)
    estimate, low, high = extrapolate_gain(labels, scores, 40, 10, 0.0)
    exact = 0.4 * (2 ** (-40 / half_life) - 2 ** (-50 / half_life))
    assert estimate == pytest.approx(exact, rel=1e-6)
    assert low == pytest.approx(exact, abs=1e-4)
    assert high == pytest.approx(exact, abs=1e-4)


def test_sampling_error_of_the_test_set_widens_the_range() -> None:
    labels, scores = np.array([0.0, 10, 20, 30]), np.array([0.5, 0.6, 0.66, 0.7])
    _, low, high = extrapolate_gain(labels, scores, 30, 10, 0.0)
    _, lower, higher = extrapolate_gain(labels, scores, 30, 10, 0.02)
    assert lower < low
    assert high < higher


def test_a_long_last_step_is_left_out() -> None:
    scores = [0.5, 0.6, 0.66, 0.7, 0.9]
    found = forecast_gain(run(scores, epochs=[10, 12, 14, 16, 50], images=100_000))
    assert (found.n_labels, found.n_stages, found.excluded_epochs, found.reason_missing) == (10, 4, 34, "")
    assert 0 < found.estimate < 0.03  # not the 20 points of the last step
    assert forecast_gain(run(scores, epochs=[10, 12, 14, 16, 18], images=100_000)).excluded_epochs == 0


def test_a_missing_estimate_has_a_reason() -> None:
    assert forecast_gain(run([0.5])).reason_missing == "no labels were acquired"
    assert forecast_gain(run([0.5, 0.6])).reason_missing == "at least 3 stages are needed, but there are 2"
    wild = run([0.1, 0.9, 0.2, 0.8, 0.3])
    assert forecast_gain(wild).reason_missing == "the gains of the batches so far vary too much"


def test_the_estimated_score_does_not_exceed_one() -> None:
    found = forecast_gain(run([0.90, 0.94, 0.98], images=10_000))
    assert found.high <= 1 - 0.98 + 1e-12


# -- sentences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference", "interval", "same_training", "phrases"),
    [
        (
            *(0.041, (0.012, 0.070), True),
            ("4.1 points above random, which trains the same way", "CI 1.2 to 7.0, over 5", "beats random"),
        ),
        (0.004, (-0.010, 0.018), False, ("0.4 points above random (95% CI −1.0 to 1.8", "not significant")),
        (-0.02, (-0.03, -0.01), True, ("2.0 points below random", "loses to random")),
        (-0.02, (-0.03, -0.01), False, ("the method is worse as a whole", "also differ in training")),
        (0.012, None, True, ("1.2 points above random", "run more seeds")),
    ],
)
def test_comparison_with_random_selection(
    difference: float, interval: tuple[float, float] | None, same_training: bool, phrases: tuple[str, ...]
) -> None:
    confidence = ConfidenceInterval(*interval, "over 5 shared seeds") if interval else None
    text = comparison_sentence(RandomComparison("random", difference, 5, confidence, same_training))
    assert all(phrase in text for phrase in phrases)


@pytest.mark.parametrize(
    ("forecast", "phrases"),
    [
        (
            GainForecast(13, 0.01, 0.004, 0.019, 5),
            ["next 13 labels would likely add 0.4 to 1.9 points (best estimate 1.0", "fitted to 5 stages"],
        ),
        (GainForecast(13, 0.01, 0.004, 0.019, 5, 12), ["last 12 epochs are left out"]),
        (GainForecast(13, 0.01, -0.003, 0.019, 5), ["−0.3 to 1.9 points, possibly nothing"]),
        (GainForecast(reason_missing="no labels were acquired"), ["estimated: no labels were acquired"]),
    ],
)
def test_sentences_about_the_next_batch(forecast: GainForecast, phrases: list[str]) -> None:
    text = forecast_sentence(forecast, CLASSIFICATION)
    assert all(phrase in text for phrase in phrases)


def test_format_of_label_counts_and_points() -> None:
    points = [format_points(share) for share in (0.0104, 0.0, 0.123)]
    assert points == ["1.0 point", "0.0 points", "12.3 points"]
    assert [format_label_count(n, CLASSIFICATION) for n in (1, 0)] == ["1 label", "no labels"]
    assert format_label_count(2000, SEGMENTATION) == "2,000 labelled pixels"


def test_a_single_run_asks_for_runs_to_compare_with() -> None:
    found = make_verdict(run([0.5, 0.56, 0.6, 0.623]), [])
    assert found.sentence.startswith("Accuracy rose by 12.3 points, from 50.0% to 62.3%, with 30 labels (")
    text = " ".join(found.remarks)
    assert all(words in text for words in ("random labels", "from epoch 1 to 4", "--method source-only"))


@pytest.mark.parametrize(
    ("more", "others", "remark"),
    [
        # A run without labels shows the effect of training.
        ({}, [run([0.58], "source-only", query="none")], "source-only reached 58.0% with no labels."),
        ({"evaluated_on": "target"}, [], "including those that it was trained on"),
        ({"evaluated_on": "unlabelled"}, [], "not labelled yet"),
    ],
)
def test_remarks(more: dict[str, Any], others: list[Run], remark: str) -> None:
    assert remark in " ".join(make_verdict(run([0.5, 0.7], **more), others).remarks)


@pytest.mark.parametrize(
    ("scores", "more", "phrase"),
    [
        ([0.6, 0.5], {}, "Accuracy fell by 10.0 points, from 60.0% to 50.0%, with 10 labels (95% CI "),
        ([0.6, 0.6], {}, "changed by less than 0.05 points"),
        ([0.6], {}, "Accuracy is 60.0% with no labels"),
        ([0.6], {"finished": False}, "60.0% before the first labels"),
        ([0.4, 0.5], {"per_pixel": True}, "mIoU rose by 10.0 points"),
        ([0.4, 0.5], {"per_pixel": True}, "with 10 labelled pixels."),
        ([], {}, "not evaluated on a test set"),
    ],
)
def test_main_sentence(scores: list[float], more: dict[str, Any], phrase: str) -> None:
    assert phrase in make_verdict(run(scores, **more), []).sentence


def test_key_figures_have_gain_per_label_and_annotation_minutes() -> None:
    ours = run([0.5, 0.7], annotation_seconds=90.0, annotation_units=30, timed_units=20)
    found = make_verdict(ours, [run([0.5, 0.6], "random")]).key_figures
    assert {figure.name: figure.value for figure in found} == {
        "Accuracy before": "50.00%",
        "Accuracy after": "70.00%",
        "Labels": "10",
        "Annotation minutes": "1.5 (20 of 30 answers timed)",
        "Gain per label, points": "+2.0",
        "Gain over random per label, points": "+1.0",
    }
    assert found[-1].note.startswith("95% CI +")
    streets = make_verdict(run([0.4, 0.5], per_pixel=True, per_round=2000), []).key_figures
    assert ("Gain per 1,000 labelled pixels, points", "+5.0") in [(f.name, f.value) for f in streets]
