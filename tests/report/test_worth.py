"""Was it worth it: differences, bands and guesses by hand, and the sentences that are made of them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ducats.report.chapter.gain import Against, Band, against_random, gain
from ducats.report.chapter.outlook import Outlook, extrapolate, outlook
from ducats.report.chapter.worth import amount, compared, next_batch, points, worth
from ducats.report.kinds import IMAGES, PIXELS
from ducats.report.read import Run

DATA = {"test": {"images": 200, "keys": "a"}}


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
    pixels: bool = False,
    finished: bool = True,
    **more: Any,
) -> Run:
    """A run whose stages have these scores."""
    stages = []
    for place, score in enumerate(scores):
        stage = {"kind": "stage", "stage": place, "epoch": (epochs or range(1, 99))[place]}
        stage |= {"labels": per_round * place, "images": images, "measured_on": "held_out", "seconds": 1.0}
        stage |= {"headline": "mean_iou", "mean_iou": score} if pixels else {"accuracy": score}
        stages.append(stage | more)
    config = {"method": method, "seed": seed, "query": {"name": query or method}, "objective": objective}
    return Run(Path(f"{method}-{seed}"), method, seed, config, tuple(stages), finished=finished, data=data)


# -- differences and their bands -------------------------------------------------------------------------


def test_a_gain_is_last_less_first_with_agresti_and_caffos_band() -> None:
    found = gain(run([0.8, 0.7, 0.9]))
    assert found is not None
    assert (found.before, found.after, found.labels) == (0.8, 0.9, 20)
    # (160 + 1) / 202 and (180 + 1) / 202 right: one right and one wrong answer are added to each.
    p, q = 161 / 202, 181 / 202
    reach = 1.959964 * math.sqrt(p * (1 - p) / 202 + q * (1 - q) / 202)
    assert found.band is not None
    assert found.band.low == pytest.approx(q - p - reach)
    assert found.band.high == pytest.approx(q - p + reach)
    assert found.band.by == "by the 200 images it was measured on"


def test_one_stage_has_no_gain_and_pixels_have_no_band() -> None:
    assert gain(run([0.8])) is None
    assert gain(run([])) is None
    found = gain(run([0.4, 0.5], pixels=True))
    assert found is not None
    assert found.band is None


def test_two_seeds_that_both_have_give_a_paired_band() -> None:
    ours = [run([0.5, score], seed=seed) for seed, score in enumerate((0.80, 0.84, 0.70))]
    theirs = [run([0.5, score], "random", seed) for seed, score in ((0, 0.76), (1, 0.78), (7, 0.10))]
    (found,) = against_random(ours[0], [*ours, *theirs])
    # Differences 0.04 and 0.06: mean 0.05, deviation 0.01414, t of one degree of freedom 12.706.
    assert (found.method, found.pairs, found.alike) == ("random", 2, True)
    assert found.difference == pytest.approx(0.05)
    assert found.band is not None
    assert found.band.low == pytest.approx(0.05 - 12.7062 * 0.0141421 / math.sqrt(2), abs=1e-5)
    assert found.band.high == pytest.approx(0.05 + 12.7062 * 0.0141421 / math.sqrt(2), abs=1e-5)
    assert found.band.by == "over the 2 seeds that both have"


def test_one_seed_is_compared_by_the_test_images_with_the_same_seed_if_there_is_one() -> None:
    theirs = [run([0.5, 0.6], "random", 0), run([0.5, 0.7], "random", 3)]
    (same,) = against_random(run([0.5, 0.8], seed=3), theirs)
    assert same.difference == pytest.approx(0.1)
    assert same.pairs == 1
    (other,) = against_random(run([0.5, 0.8], seed=9), theirs)
    assert other.difference == pytest.approx(0.2)
    assert other.pairs == 0
    assert other.band is not None
    assert "200 images" in other.band.by


def test_only_random_runs_on_the_same_data_with_as_many_labels_count() -> None:
    ours = run([0.5, 0.8])
    elsewhere = run([0.5, 0.6], "random", data={"test": {"images": 9, "keys": "b"}})
    fewer = run([0.5, 0.6], "random", per_round=9)
    unlike = run([0.5, 0.6], "entropy")
    assert against_random(ours, [ours, elsewhere, fewer, unlike]) == []
    assert against_random(run([0.5, 0.6], "random"), [ours]) == []


def test_a_run_under_way_is_compared_where_it_stands() -> None:
    half = run([0.5, 0.7], finished=False)
    (found,) = against_random(half, [run([0.5, 0.65, 0.9], "random")])
    assert found.difference == pytest.approx(0.05)


def test_a_method_that_trains_alike_is_told_apart_and_comes_last() -> None:
    alike = run([0.5, 0.7], "duc-random", query="random")
    plain = run([0.5, 0.6], "random", objective="softmax")
    found = against_random(run([0.5, 0.8]), [alike, plain])
    assert [(one.method, one.alike) for one in found] == [("random", False), ("duc-random", True)]


# -- the next batch --------------------------------------------------------------------------------------


def test_points_on_a_curve_that_levels_off_are_continued_along_it() -> None:
    labels = np.array([0.0, 10, 20, 30, 40])
    half = 40 * 10 ** (-1 + 2 * 20 / 60)  # one of the curves that are tried
    scores = 0.9 - 0.4 * 2 ** (-labels / half)
    guess, low, high = extrapolate(labels, scores, 40, 10, 0.0)
    exact = 0.4 * (2 ** (-40 / half) - 2 ** (-50 / half))
    assert guess == pytest.approx(exact, rel=1e-6)
    assert low == pytest.approx(exact, abs=1e-4)
    assert high == pytest.approx(exact, abs=1e-4)


def test_the_luck_of_the_test_set_widens_the_range() -> None:
    labels, scores = np.array([0.0, 10, 20, 30]), np.array([0.5, 0.6, 0.66, 0.7])
    _, low, high = extrapolate(labels, scores, 30, 10, 0.0)
    _, lower, higher = extrapolate(labels, scores, 30, 10, 0.02)
    assert lower < low
    assert high < higher


def test_a_long_last_step_is_training_and_left_out() -> None:
    scores = [0.5, 0.6, 0.66, 0.7, 0.9]
    found = outlook(run(scores, epochs=[10, 12, 14, 16, 50], images=100_000))
    assert (found.batch, found.stages, found.tail, found.why_not) == (10, 4, 34, "")
    assert 0 < found.guess < 0.03  # not the 20 points of the last step
    assert outlook(run(scores, epochs=[10, 12, 14, 16, 18], images=100_000)).tail == 0


def test_what_cannot_be_said_has_a_reason() -> None:
    assert outlook(run([0.5])).why_not == "no labels were bought"
    assert outlook(run([0.5, 0.6])).why_not == "it takes 3 stages, and there are 2"
    wild = run([0.1, 0.9, 0.2, 0.8, 0.3])
    assert outlook(wild).why_not == "what the batches so far brought scatters too much"


def test_nobody_is_promised_more_than_everything() -> None:
    found = outlook(run([0.90, 0.94, 0.98], images=10_000))
    assert found.high <= 1 - 0.98 + 1e-12


# -- words -----------------------------------------------------------------------------------------------


def test_a_clear_gain_over_random_was_worth_it() -> None:
    said = compared(Against("random", 0.041, 5, Band(0.012, 0.070, "over the 5 seeds that both have"), True))
    assert said == (
        "That is 4.1 points more than random, which trains alike and picks at random, reached (95%: 1.2 to "
        "7.0, over the 5 seeds that both have): choosing the labels was worth it."
    )


def test_a_difference_within_its_band_cannot_be_told_apart() -> None:
    said = compared(
        Against("random", 0.004, 1, Band(-0.010, 0.018, "by the 500 images it was measured on"), False)
    )
    assert said == (
        "It cannot be told apart from random: 0.4 points more (95%: −1.0 to 1.8, "
        "by the 500 images it was measured on)."
    )


def test_worse_than_random_is_said() -> None:
    said = compared(Against("random", -0.02, 3, Band(-0.03, -0.01, "over the 3 seeds that both have"), False))
    assert said.startswith("That is 2.0 points less than random reached (95%: −3.0 to −1.0")
    assert said.endswith("all in all it was not worth it; the two also train differently.")


def test_one_seed_of_pixels_says_that_more_are_needed() -> None:
    said = compared(Against("random", 0.012, 1, None, True))
    assert said.startswith("It is 1.2 points above random")
    assert said.endswith("run more seeds of both.")


def test_the_next_batch_in_words() -> None:
    said = next_batch(Outlook(13, 0.01, 0.004, 0.019, 5, 12), IMAGES)
    assert said == (
        "The next 13 labels would likely bring 0.4 to 1.9 points (best guess 1.0; guessed by a curve that "
        "levels off, through 5 stages; the step of the last 12 epochs is left out: it shows training more "
        "than labels)."
    )
    assert "−0.3 to 1.9 points, so perhaps nothing" in next_batch(Outlook(13, 0.01, -0.003, 0.019, 5), IMAGES)
    assert next_batch(Outlook(why_not="no labels were bought"), IMAGES) == (
        "What the next labels would bring cannot be said: no labels were bought."
    )


def test_amounts_and_points_in_words() -> None:
    assert (points(0.0104), points(0.0), points(0.123)) == ("1.0 point", "0.0 points", "12.3 points")
    assert (amount(1, IMAGES), amount(0, IMAGES)) == ("1 label", "no labels")
    assert amount(2000, PIXELS) == "2,000 labelled pixels"


def test_a_run_alone_says_what_it_cannot_know() -> None:
    found = worth(run([0.5, 0.56, 0.6, 0.623]), [])
    assert found.sentence.startswith("Accuracy rose from 50.0% to 62.3%: 12.3 points for 30 labels (95%: ")
    said = " ".join(found.remarks)
    assert "--method random" in said
    assert "from epoch 1 to 4" in said
    assert "--method source-only" in said


def test_a_run_without_labels_beside_it_shows_what_training_brings() -> None:
    free = run([0.58], "source-only", query="none")
    said = " ".join(worth(run([0.5, 0.6]), [free]).remarks)
    assert "source-only, which bought none, ended at 58.0%." in said


@pytest.mark.parametrize(
    ("scores", "more", "sentence"),
    [
        ([0.6, 0.5], {}, "Accuracy fell from 60.0% to 50.0%: 10.0 points for 10 labels (95%: "),
        ([0.6, 0.6], {}, "Accuracy stayed where it was, 60.0% to 60.0%: 0.0 points for 10 labels (95%: "),
        ([0.6], {}, "Accuracy is 60.0%; no labels bought."),
        ([0.6], {"finished": False}, "Accuracy is 60.0% before the first labels."),
        ([0.4, 0.5], {"pixels": True}, "mIoU rose from 40.0% to 50.0%: 10.0 points for 10 labelled pixels."),
        ([], {}, "Duc: not measured on a test set, so what its labels brought is not known."),
    ],
)
def test_the_first_sentence(scores: list[float], more: dict[str, Any], sentence: str) -> None:
    assert worth(run(scores, **more), []).sentence.startswith(sentence)


def test_facts_are_gain_per_label_with_bands_and_minutes_of_people() -> None:
    ours = run([0.5, 0.7], people_seconds=90.0)
    facts = {fact.name: fact for fact in worth(ours, [run([0.5, 0.6], "random")]).facts}
    assert facts["Accuracy before"].value == "50.00%"
    assert facts["Accuracy after"].value == "70.00%"
    assert facts["Labels"].value == "10"
    assert facts["Minutes of people"].value == "1.5"
    assert facts["Gain per label, points"].value == "+2.0"
    assert facts["Gain over random per label, points"].value == "+1.0"
    assert facts["Gain over random per label, points"].about.startswith("95%: +")
    streets = worth(run([0.4, 0.5], pixels=True, per_round=2000), []).facts
    assert [fact.value for fact in streets if fact.name == "Gain per 1,000 labelled pixels, points"] == [
        "+5.0"
    ]


def test_measuring_on_what_was_bought_is_said() -> None:
    said = " ".join(worth(run([0.5, 0.7], measured_on="target"), []).remarks)
    assert "those that it learnt from among them" in said
    assert "not bought yet" in " ".join(worth(run([0.5, 0.7], measured_on="unlabelled"), []).remarks)
