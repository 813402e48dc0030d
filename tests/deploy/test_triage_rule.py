"""Triage rules and their guarantee."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom

from ducats.data.domain import VOID
from ducats.deploy import triage_calibration
from ducats.deploy.triage_rule import (
    TriageRule,
    candidate_sizes,
    clopper_pearson_upper,
    find_acceptance_threshold,
    hash_weights,
    load_triage_rule,
    lowest_reachable_risk,
    min_images,
)
from ducats.ledger import Request, open_ledger, save_request
from ducats.runfolder.hints import AnnotatorHints
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError


@pytest.mark.parametrize(("count", "errors"), [(45, 0), (44, 0), (105, 2), (300, 9), (7, 7)])
def test_upper_bound_matches_the_binomial_distribution(count: int, errors: int) -> None:
    bound = clopper_pearson_upper(count, errors, 0.9)
    if errors == count:
        assert bound == 1
    else:
        assert binom.cdf(errors, count, bound) == pytest.approx(0.1)


@pytest.mark.parametrize("n_errors", [0, 1, 2])
@pytest.mark.parametrize("risk", [0.01, 0.05, 0.3])
def test_min_images_is_the_smallest_number_that_passes(risk: float, n_errors: int) -> None:
    count = min_images(risk, 0.9, n_errors)
    assert (
        clopper_pearson_upper(count, n_errors, 0.9) <= risk < clopper_pearson_upper(count - 1, n_errors, 0.9)
    )


def test_find_by_hand() -> None:
    # 200 images; from the 121st on, every fourth is wrong.
    uncertainty = np.arange(200.0)
    wrong = (uncertainty >= 120) & (uncertainty % 4 == 1)
    tried = [size for size in candidate_sizes(200) if size >= min_images(0.05, 0.9, n_errors=1)]
    assert (tried[0], tried[-1], len(tried)) == (79, 200, 19)
    passing = []
    for size in tried:
        if binom.cdf(wrong[:size].sum(), size, 0.05) > 0.1:
            break
        passing.append(size)
    assert passing == [79, 84, 88, 93, 98, 103, 108, 114, 120, 126, 133]
    accepted = find_acceptance_threshold(uncertainty[::-1], wrong[::-1], 0.05, 0.9)  # in any order
    assert accepted == (133, 3, 132.0)


def test_ties_are_accepted_together() -> None:
    uncertainty = np.repeat([0.0, 1.0], (70, 80))
    wrong = uncertainty > 0
    accepted = find_acceptance_threshold(uncertainty, wrong, 0.05, 0.9)
    assert accepted is None  # the first threshold tested is among the wrong ones
    assert find_acceptance_threshold(np.zeros(50), np.zeros(50, bool), 0.05, 0.9) == (50, 0, 0.0)


def test_too_few_images() -> None:
    right = np.zeros(44, bool)
    assert find_acceptance_threshold(np.arange(44.0), right, 0.05, 0.9) is None
    assert lowest_reachable_risk(np.arange(44.0), right, 0.9) == 0.051
    assert lowest_reachable_risk(np.arange(44.0), ~right, 0.9) is None
    assert lowest_reachable_risk(np.zeros(0), np.zeros(0, bool), 0.9) is None


@pytest.mark.parametrize("decimals", [1, 2, 9])  # with many ties, few, none
def test_higher_risk_accepts_at_least_as_many_images(decimals: int) -> None:
    random = np.random.default_rng(decimals)
    for _ in range(12):
        total = int(random.integers(1, 400))
        uncertainty = random.random(total).round(decimals)
        wrong = random.random(total) < random.choice([0.0, 0.02, 0.3]) * uncertainty
        accepted = [
            find_acceptance_threshold(uncertainty, wrong, risk, 0.9) for risk in np.linspace(0.005, 0.6, 30)
        ]
        images = [0 if found is None else found.images for found in accepted]
        assert images == sorted(images)


def test_every_risk_above_the_lowest_reachable_is_reachable() -> None:
    random = np.random.default_rng(1)
    uncertainty = random.random(150)
    wrong = random.random(150) < 0.3 * uncertainty
    lowest = lowest_reachable_risk(uncertainty, wrong, 0.9)
    assert lowest is not None
    for thousandths in range(1, 1000, 7):
        found = find_acceptance_threshold(uncertainty, wrong, thousandths / 1000, 0.9)
        assert (found is not None) == (thousandths >= round(1000 * lowest))


@pytest.mark.parametrize("rising", [False, True])
def test_guarantee_holds_with_the_stated_confidence(rising: bool) -> None:
    """The true error of the accepted predictions exceeds the risk in at most a tenth of the cases.

    The hardest case is an error rate just above the risk that does not depend on the uncertainty: every rule
    breaks the guarantee. If the error rate rises, the error of the accepted predictions is its integral below
    the threshold.
    """
    random, risk, confidence, broken, rules, times = np.random.default_rng(7), 0.1, 0.9, 0, 0, 500
    for _ in range(times):
        uncertainty = random.random(300)
        chance = 0.4 * uncertainty if rising else np.full(300, risk + 1e-9)
        accepted = find_acceptance_threshold(uncertainty, random.random(300) < chance, risk, confidence)
        if accepted is not None:
            rules += 1
            error = 0.2 * accepted.max_uncertainty if rising else risk + 1e-9
            broken += error > risk
    assert broken <= (1 - confidence) * times + 3 * np.sqrt(0.09 * times)
    assert rules > (0.6 if rising else 0.03) * times  # rules are found often enough


# ---- the rule


def make_rule(folder: Path, **overrides: object) -> TriageRule:
    fields: dict[str, object] = {"criterion": "u_dis", "threshold": 0.25, "risk": 0.05, "confidence": 0.9}
    fields |= {"images": 200, "accepted": 156, "wrong": 3, "error_bound": 0.042, "calibrated_on": "a folder"}
    fields |= {"warnings": ("a warning",), "weights_sha256": hash_weights(folder)}
    return TriageRule(**{**fields, **overrides})  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_rule_round_trip(folder: Path) -> None:
    assert load_triage_rule(folder) is None
    rule = make_rule(folder, threshold=float(np.float32(0.1)))
    path = rule.save(folder)
    assert load_triage_rule(folder) == rule
    content = json.loads(path.read_text())
    assert content["coverage"] == 0.78
    summary = "accept 78 % of images (u_dis at most 0.1), of which at most 5 % are wrong with 90 % confidence"
    assert content["description"].startswith(summary)
    assert rule.accepts(rule.threshold)
    assert not rule.accepts(rule.threshold + 1e-9)
    other = make_rule(folder, criterion="probability")
    assert "(probability at least 0.25)" in other.describe()
    assert other.accepts(0.3)
    assert not other.accepts(0.2)


def test_corrupt_rule_or_rule_for_other_weights(folder: Path) -> None:
    path = make_rule(folder).save(folder)
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(UserError, match="computed for other weights"):
        load_triage_rule(folder)
    for text in ("{", "[]", "{}", path.read_text().replace('"u_dis"', '"mood"')):
        path.write_text(text)
        with pytest.raises(UserError, match="is corrupt"):
            load_triage_rule(folder)


# ---- acquired labels


def test_acquired_labels_use_the_predictions_before_labelling(folder: Path) -> None:
    run_folder = RunFolder(folder)
    run_folder.data_path.write_text("classes: [cat, dog]\n")
    ledger = open_ledger(run_folder, [f"{number}.png" for number in range(6)])
    for number, (image, label, guess) in enumerate(
        [([4, 1], [0, VOID], [0, 1]), ([2, 0], [1, 1], [0, 1])], 1
    ):
        request = Request(number, torch.tensor(image), torch.zeros(2, dtype=torch.long))
        save_request(run_folder, request)
        u_dis = np.array([0.1, 0.2], np.float32) + number
        same = dict.fromkeys(
            ("probability", "u_dis_quantile", "u_data_quantile"), np.full(2, 0.5, np.float32)
        )
        predicted = np.array(guess, np.int16)
        segment = np.full(2, -1, np.int32)
        run_folder.save_hints(
            number, AnnotatorHints(guess=predicted, u_dis=u_dis, u_data=u_dis + 1, segment=segment, **same)
        )
        ledger.append(request, torch.tensor(label))
    calibration_data = triage_calibration._from_acquired_labels(run_folder, "u_dis")
    np.testing.assert_allclose(calibration_data.criterion_values, [1.1, 1.2, 2.1, 2.2], rtol=1e-6)
    # Void is not a class, so any prediction is wrong.
    assert calibration_data.is_wrong.tolist() == [False, True, True, False]
    np.testing.assert_allclose(
        triage_calibration._from_acquired_labels(run_folder, "entropy").criterion_values,
        [3.2, 3.4, 5.2, 5.4],
        rtol=1e-6,
    )
    assert len(calibration_data.warnings) == 2


def test_acquired_labels_without_saved_predictions(folder: Path) -> None:
    run_folder = RunFolder(folder)
    run_folder.data_path.write_text("classes: [cat, dog]\n")
    request = Request(1, torch.tensor([0]), torch.zeros(1, dtype=torch.long))
    open_ledger(run_folder, ["0.png"]).append(request, torch.tensor([0]))
    with pytest.raises(UserError, match=r"no saved predictions.*--data"):
        triage_calibration._from_acquired_labels(run_folder, "u_dis")
