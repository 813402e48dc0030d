"""Audit labels of a run: drawn at random, paid for, never trained on; their figures and the stop rule."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Runner, quick
from ducats.acquisition.budget import split_audit
from ducats.acquisition.stop_rule import StopRule
from ducats.data.domain import UNLABELLED, VOID
from ducats.data.toy import toy
from ducats.ledger import Ledger, Request, load_ledger, load_request
from ducats.run import audit_draw
from ducats.run.audit_draw import add_audit_images
from ducats.run.audit_figures import gain_on_sample, image_figures
from ducats.run.checkpoint import load_model
from ducats.runfolder.audit_files import PoolPredictions
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator
from present import present

KEYS = [f"{number:02d}" for number in range(40)]
AUDIT = ("acquisition={budget: 16, rounds: 2, audit: 6}",)


def request(round_number: int, images: list[int]) -> Request:
    return Request(round_number, torch.tensor(images), torch.zeros(len(images), dtype=torch.long))


def ledger_of(folder: Path, seed: int) -> tuple[Ledger, int]:
    """A ledger of two rounds, in which a query that knows no audit selects images 0, 1, … 9.

    Also returns how many audit images of the first round the second one selected.
    """
    ledger = Ledger(folder, KEYS)
    for round_number, picks in ((1, [0, 1, 2, 3, 4]), (2, [5, 6, 7, 8, 9])):
        complete = add_audit_images(request(round_number, picks), ledger, 4, seed)
        ledger.append(complete, complete.image % 3)
    return ledger, len(complete.marks.released_image)


def test_the_audit_is_a_uniform_sample_of_what_was_not_trained_on(tmp_path: Path) -> None:
    inclusions, n_released = Counter[int](), 0
    for seed in range(300):
        ledger, released = ledger_of(tmp_path / str(seed), seed)
        trained_on, audited = ledger.targets() != UNLABELLED, ledger.audit_labels() != UNLABELLED
        assert trained_on.nonzero().squeeze(1).tolist() == list(range(10))  # released images are trained on
        assert not (trained_on & audited).any()
        assert len(ledger) == 18  # 2 rounds of 5 picks and 4 audit images, whatever was released
        inclusions.update(audited.nonzero().squeeze(1).tolist())
        assert int(audited.sum()) == 8
        n_released += released
    assert n_released > 100  # audit images that the query selected later
    expected = 300 * 8 / 30
    frequencies = np.array([inclusions[image] for image in range(10, 40)])
    assert np.abs(frequencies - expected).max() < 4 * np.sqrt(expected)


def test_annotators_cannot_tell_the_audit_by_its_position(tmp_path: Path) -> None:
    positions = Counter[int]()
    for seed in range(200):
        mixed = add_audit_images(request(1, list(range(6))), Ledger(tmp_path / str(seed), KEYS), 2, seed)
        positions.update(mixed.marks.index.tolist())
        assert sorted(mixed.picks.image.tolist()) == list(range(6))
    assert sorted(positions) == list(range(8))
    assert max(positions.values()) < 2 * min(positions.values())


def test_figures_match_a_plain_count(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, 3)
    random = np.random.default_rng(0)
    truth = np.arange(40) % 3
    predicted = np.where(random.random(40) < 0.8, truth, (truth + 1) % 3)
    before = np.where(random.random(40) < 0.9, predicted, (truth + 2) % 3)
    now, earlier = (PoolPredictions(p, np.full(40, 0.7)) for p in (predicted, before))
    figures = image_figures(ledger, stage=1, rounds=2, n_stages=3, classes="abc", now=now, before=earlier)
    audit = (ledger.audit_labels() >= 0).nonzero().squeeze(1).tolist()
    selected = list(range(5, 10))  # selected in round 2: all labelled, not trained on in stage 1
    rest = [image for image in range(40) if image >= 10]
    share = np.mean([predicted[image] == truth[image] for image in audit])
    known = sum(predicted[image] == truth[image] for image in selected)
    assert figures["labels"] == len(audit)
    assert figures["images"] == len(rest) + len(selected) == 35
    assert figures["accuracy"] == pytest.approx((len(rest) * share + known) / 35, abs=1e-6)
    actual = np.mean([predicted[image] == truth[image] for image in rest + selected])
    assert figures["low"] <= actual <= figures["high"]
    n_changed = sum(predicted[image] != before[image] for image in rest)
    assert figures["gain"]["high"] - figures["gain"]["low"] <= 2 * n_changed / 35 + 1e-6
    gain = np.mean([int(predicted[i] == truth[i]) - int(before[i] == truth[i]) for i in rest + selected])
    assert figures["gain"]["low"] <= gain <= figures["gain"]["high"]
    same = image_figures(ledger, stage=1, rounds=2, n_stages=3, classes="abc", now=now, before=now)
    assert same["gain"] == {"estimate": 0.0, "low": 0.0, "high": 0.0}  # nothing has changed


def test_void_answers_are_left_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, KEYS)
    complete = add_audit_images(request(1, [0, 1]), ledger, 8, seed=0)
    is_void = torch.from_numpy(complete.marks.mask(len(complete))).cumsum(0) == 1  # the first audit image
    labels = torch.where(is_void & torch.from_numpy(complete.marks.mask(len(complete))), VOID, 0)
    ledger.append(complete, labels)
    now = PoolPredictions(np.zeros(40, np.int64), np.full(40, 0.9))
    figures = image_figures(ledger, stage=1, rounds=1, n_stages=2, classes="ab", now=now, before=None)
    assert (figures["labels"], figures["void"], figures["images"]) == (7, 1, 37)
    assert figures["accuracy"] == 1.0


def test_the_number_of_void_images_is_not_known(tmp_path: Path) -> None:
    """50 of 250 images are selected, and wrong; of the others, 150 are void and 50 correct."""
    keys = [f"{number:03d}" for number in range(250)]
    truth = torch.where(torch.arange(250) >= 100, VOID, 0)
    ledger = Ledger(tmp_path, keys)
    complete = add_audit_images(request(1, list(range(50))), ledger, 60, seed=0)
    ledger.append(complete, truth[complete.image])
    predicted = np.where(np.arange(250) < 50, 1, 0)
    now = PoolPredictions(predicted, np.full(250, 0.9))
    figures = image_figures(ledger, stage=0, rounds=1, n_stages=2, classes="ab", now=now, before=None)
    assert figures["low"] <= 0.5 <= figures["high"]
    assert figures["classes"]["a"]["low"] <= 0.5  # 50 of 100 images are correct
    changed = PoolPredictions(np.where(np.arange(250) < 60, 1, predicted), now.probability)
    gained = image_figures(ledger, stage=0, rounds=1, n_stages=2, classes="ab", now=changed, before=now)
    assert gained["gain"]["low"] <= -0.1 <= gained["gain"]["high"]  # 10 of 100 images are lost


def test_voids_among_images_whose_prediction_is_unchanged_count_for_the_gain(tmp_path: Path) -> None:
    """Of 40 images, the audit judges 5 and finds 1 void; 24 others are void, too, and 10 are gained."""
    ledger = Ledger(tmp_path, KEYS)
    complete = add_audit_images(request(1, []), ledger, 6, seed=0)
    ledger.append(complete, torch.where(torch.arange(6) == 0, VOID, 0))
    is_audit = (ledger.audit_labels() != UNLABELLED).numpy()
    gained = np.flatnonzero(~is_audit)[:10]
    now, before = np.zeros(40, np.int64), np.zeros(40, np.int64)
    before[gained] = 1
    interval = gain_on_sample(now, before, ledger.audit_labels().numpy(), np.ones(40, bool), level=0.95)
    assert interval.low <= 10 / 15 <= interval.high


def test_selected_images_without_an_answer_are_left_out(tmp_path: Path) -> None:
    """A query that finds all errors, half of which nobody labels in time, must not flatter the model."""
    missed, truth = 0, np.zeros(300, np.int64)
    now = PoolPredictions((np.arange(300) < 90).astype(np.int64), np.full(300, 0.9))  # 90 images are wrong
    for seed in range(20):
        ledger = Ledger(tmp_path / str(seed), [f"{number:03d}" for number in range(300)])
        complete = add_audit_images(request(1, list(range(80))), ledger, 40, seed)
        picks = complete.picks.image
        unanswered = torch.isin(complete.image, picks[: len(picks) // 2])
        answered = complete.subset(~unanswered)
        ledger.append(answered, torch.from_numpy(truth)[answered.image])
        mask = np.isin(np.arange(300), complete.image[unanswered].numpy())
        figures = image_figures(
            ledger, stage=0, rounds=1, n_stages=2, classes="ab", now=now, before=None, unanswered=mask
        )
        actual = 1 - np.mean((now.predicted != truth)[~mask])
        missed += not figures["low"] <= actual <= figures["high"]
        later = add_audit_images(request(2, [299]), ledger, 20, seed, torch.from_numpy(mask))
        assert not mask[later.image.numpy()].any()
    assert missed <= 1


def test_a_run_of_the_whole_pool_has_nothing_left_to_judge(run_quickly: Runner) -> None:
    settings = "acquisition={budget: 80, rounds: 2, audit: 6}"  # toy has 80 images
    run_folder = run_quickly(settings)
    assert run_folder.finished
    labels = load_ledger(run_folder)
    assert len(labels) == 80
    assert all(record["labels"] > 0 for record in run_folder.read_records("audit"))


def test_no_audit_label_affects_training_or_selection(run_quickly: Runner) -> None:
    data = toy()
    first = run_quickly(*AUDIT, folder="first", data=data)
    ledger = load_ledger(first)
    assert (len(ledger), int((ledger.audit_labels() != UNLABELLED).sum())) == (16, 6)
    audited = ledger.audit_labels() != UNLABELLED
    truth = present(data.ground_truth)[:].clone()
    truth[audited] = (truth[audited] + 1) % len(data.classes)
    corrupted = replace(data, ground_truth=truth)
    second = run_quickly(*AUDIT, folder="second", data=corrupted)
    for round_number in (1, 2):
        requests = [present(load_request(run, round_number)) for run in (first, second)]
        assert requests[0].image.tolist() == requests[1].image.tolist()
    weights, other_weights = load_model(first), load_model(second)
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    figures, other_figures = (run.read_records("audit") for run in (first, second))
    assert [record["stage"] for record in figures] == [0, 1, 2]
    assert figures[-1]["accuracy"] != other_figures[-1]["accuracy"]


def test_nothing_depends_on_which_images_are_in_the_audit(
    run_quickly: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_quickly(*AUDIT, folder="first")
    monkeypatch.setattr(audit_draw, "make_generator", lambda seed, *names: make_generator(seed + 1, *names))
    second = run_quickly(*AUDIT, folder="second")
    for round_number in (1, 2):
        requests = [present(load_request(run, round_number)) for run in (first, second)]
        trained_on = [
            sorted([*one.picks.image.tolist(), *one.marks.released_image.tolist()]) for one in requests
        ]
        assert trained_on[0] == trained_on[1]
    audited = [load_ledger(run).audit_labels() >= 0 for run in (first, second)]
    assert not torch.equal(*audited)
    weights, other_weights = load_model(first), load_model(second)
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def test_released_audit_labels_are_trained_on_after_the_last_round(run_quickly: Runner) -> None:
    kept = run_quickly(*AUDIT, folder="kept")
    released = run_quickly(*AUDIT, "acquisition.release_audit=true", folder="released")
    assert [record["stage"] for record in released.read_records("audit")] == [0, 1]
    assert kept.read_records("audit")[:2] == released.read_records("audit")
    weights, other_weights = load_model(kept), load_model(released)
    assert any(not torch.equal(weights[name], other_weights[name]) for name in weights)


def test_the_stop_rule_ends_the_queries(run_quickly: Runner) -> None:
    settings = "acquisition={budget: 24, rounds: 3, after_epochs: [1, 2, 3], audit: 6, until: gain<99}"
    run_folder = run_quickly(settings)
    ledger = load_ledger(run_folder)
    assert [ledger.spent(rounds) for rounds in (1, 2, 3)] == [8, 8, 8]  # by the gain of the first round
    # A decision by the audit makes further models depend on it: only the final one is judged.
    assert [record["stage"] for record in run_folder.read_records("audit")] == [0, 1, 3]
    (stop,) = run_folder.read_records("stop")
    assert stop["round"] == 2
    assert "the last round gained at most" in stop["reason"]


@pytest.mark.parametrize(("figures", "stops"), [((0.94, 0.99), False), ((0.96, 0.99), True)])
def test_a_rule_must_hold_for_the_whole_interval(figures: tuple[float, float], stops: bool) -> None:
    low, high = figures
    assert bool(StopRule.parse("accuracy>95%").reason({"low": low, "high": high})) is stops
    gain = {"low": 0.0, "high": 1.0, "gain": {"low": -0.1, "high": 1 - low}}
    assert bool(StopRule.parse("gain<5").reason(gain)) is stops


@pytest.mark.parametrize("rule", ["gain>1", "accuracy", "accuracy>101", "f1>3"])
def test_unknown_rules_are_refused(rule: str) -> None:
    with pytest.raises(UserError, match=r"gain<0\.5"):
        quick(f"acquisition.until={rule}")


def test_defaults_of_the_audit() -> None:
    even = (40,) * 5
    assert split_audit("auto", even, is_needed=False, has_test=True) == ()
    assert split_audit("auto", even, is_needed=True, has_test=True) == (4,) * 5
    assert sum(split_audit("auto", (100,) * 5, is_needed=False, has_test=False)) == 50
    assert split_audit("auto", (10, 10), is_needed=False, has_test=False) == ()
    assert split_audit("auto", (1,) * 60, is_needed=False, has_test=False) == ()  # no label left to train on
    assert split_audit("auto", (20, 40, 80), is_needed=False, has_test=False) == (3, 6, 11)
    assert split_audit("auto", (), is_needed=True, has_test=False) == ()
    with pytest.raises(UserError, match="more than a third"):
        split_audit("auto", (10, 10), is_needed=True, has_test=False)
    with pytest.raises(UserError, match="without one to train on"):
        split_audit(10, (5, 5), is_needed=False, has_test=False)
