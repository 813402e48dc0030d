"""Which predictions may go unseen, and whether the promise is kept."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom

from ducats.domain import VOID
from ducats.errors import UserError
from ducats.inference import calibrating
from ducats.inference.rule import (
    Rule,
    fewest,
    find,
    fingerprint,
    load_rule,
    lowest_risk,
    sizes_tried,
    upper_bound,
)
from ducats.ledger import Notes, Request
from ducats.rundir import RunDir


@pytest.mark.parametrize(("count", "errors"), [(45, 0), (44, 0), (105, 2), (300, 9), (7, 7)])
def test_the_bound_is_where_so_few_errors_become_improbable(count: int, errors: int) -> None:
    bound = upper_bound(count, errors, 0.9)
    if errors == count:
        assert bound == 1
    else:
        assert binom.cdf(errors, count, bound) == pytest.approx(0.1)


@pytest.mark.parametrize("spare", [0, 1, 2])
@pytest.mark.parametrize("risk", [0.01, 0.05, 0.3])
def test_the_fewest_that_pass(risk: float, spare: int) -> None:
    count = fewest(risk, 0.9, spare)
    assert upper_bound(count, spare, 0.9) <= risk < upper_bound(count - 1, spare, 0.9)


def test_by_hand() -> None:
    # 200 images; errors among the least certain, from the 121st on each fourth one.
    uncertainty = np.arange(200.0)
    wrong = (uncertainty >= 120) & (uncertainty % 4 == 1)
    tried = sizes_tried(200, 0.05, 0.9)
    assert (tried[0], tried[-1], len(tried)) == (77, 200, 21)
    passing = []
    for size in tried:
        if binom.cdf(wrong[:size].sum(), size, 0.05) > 0.1:
            break
        passing.append(size)
    assert passing == [77, 83, 89, 95, 102, 108, 114, 120, 126, 132]
    found = find(uncertainty[::-1], wrong[::-1], 0.05, 0.9)  # whatever the order
    assert found is not None
    assert (found.images, found.wrong, found.last) == (132, 3, 131.0)


def test_equal_uncertainties_are_accepted_together() -> None:
    uncertainty = np.repeat([0.0, 1.0], (70, 80))
    wrong = uncertainty > 0
    found = find(uncertainty, wrong, 0.05, 0.9)
    assert found is None  # of 150, the first that is tried lies among the wrong
    assert find(np.zeros(50), np.zeros(50, bool), 0.05, 0.9) == (50, 0, 0.0)


def test_what_cannot_be_shown_is_not() -> None:
    right = np.zeros(44, bool)
    assert find(np.arange(44.0), right, 0.05, 0.9) is None
    assert lowest_risk(np.arange(44.0), right, 0.9) == 0.051
    assert lowest_risk(np.arange(44.0), ~right, 0.9) is None


@pytest.mark.parametrize("rising", [False, True])
def test_the_promise_is_kept_as_often_as_it_says(rising: bool) -> None:
    """The error of all that a rule would accept is known here; it is above the risk in a tenth of the cases.

    With errors that do not depend on the uncertainty and are just above the risk, any rule breaks its
    promise: the hardest case. With errors that rise, the error of the accepted is the integral below the
    threshold.
    """
    random, risk, confidence, broken, rules, times = np.random.default_rng(7), 0.1, 0.9, 0, 0, 1000
    for _ in range(times):
        uncertainty = random.random(300)
        chance = 0.4 * uncertainty if rising else np.full(300, risk + 1e-9)
        found = find(uncertainty, random.random(300) < chance, risk, confidence)
        if found is not None:
            rules += 1
            error = 0.2 * found.last if rising else risk + 1e-9
            broken += error > risk
    assert broken <= (1 - confidence) * times + 3 * np.sqrt(0.09 * times)
    assert rules > (0.6 if rising else 0.03) * times  # and it does not keep it by never promising


# ---- the rule


def rule(folder: Path, **more: object) -> Rule:
    known = {
        "by": "u_dis",
        "threshold": 0.25,
        "risk": 0.05,
        "confidence": 0.9,
        "images": 200,
        "accepted": 156,
    }
    known |= {
        "wrong": 3,
        "bound": 0.042,
        "on": "a folder",
        "cautions": ("so so",),
        "model": fingerprint(folder),
    }
    return Rule(**{**known, **more})  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_a_rule_is_read_as_it_was_written(folder: Path) -> None:
    assert load_rule(folder) is None
    made = rule(folder, threshold=float(np.float32(0.1)))
    path = made.save(folder)
    assert load_rule(folder) == made
    said = json.loads(path.read_text())
    assert said["coverage"] == 0.78
    assert said["in_words"] == (
        "accept 78 % of images (u_dis at most 0.1), of which at most 5 % are wrong with 90 % confidence; the "
        "rest goes to people"
    )
    assert made.accepts(made.threshold)
    assert not made.accepts(made.threshold + 1e-9)
    other = rule(folder, by="probability")
    assert "(probability at least 0.25)" in other.in_words()
    assert other.accepts(0.3)
    assert not other.accepts(0.2)


def test_a_rule_for_other_weights_or_a_spoilt_one_is_refused(folder: Path) -> None:
    path = rule(folder).save(folder)
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(UserError, match="found for other weights: run `ducats triage` again"):
        load_rule(folder)
    for text in ("{", "[]", "{}", path.read_text().replace('"u_dis"', '"mood"')):
        path.write_text(text)
        with pytest.raises(UserError, match="was spoilt"):
            load_rule(folder)


# ---- labels that were bought


def test_bought_labels_count_with_what_was_said_before(folder: Path) -> None:
    home = RunDir(folder)
    ledger = home.ledger([f"{number}.png" for number in range(6)])
    for number, (image, label, guess) in enumerate(
        [([4, 1], [0, VOID], [0, 1]), ([2, 0], [1, 1], [0, 1])], 1
    ):
        request = Request(number, torch.tensor(image), torch.zeros(2, dtype=torch.long))
        home.keep_request(request)
        u_dis = np.array([0.1, 0.2], np.float32) + number
        same = dict.fromkeys(("probability", "u_dis_above", "u_data_above"), np.full(2, 0.5, np.float32))
        guessed = np.array(guess, np.int16)
        segment = np.full(2, -1, np.int32)
        home.keep_notes(number, Notes(guess=guessed, u_dis=u_dis, u_data=u_dis + 1, segment=segment, **same))
        ledger.append(request, torch.tensor(label))
    seen = calibrating._bought(home, "u_dis")
    np.testing.assert_allclose(seen.value, [1.1, 1.2, 2.1, 2.2], rtol=1e-6)
    assert seen.wrong.tolist() == [
        False,
        True,
        True,
        False,
    ]  # void is no class: whatever was guessed is wrong
    np.testing.assert_allclose(calibrating._bought(home, "entropy").value, [3.2, 3.4, 5.2, 5.4], rtol=1e-6)
    assert len(seen.cautions) == 2


def test_bought_labels_without_notes_are_refused(folder: Path) -> None:
    home = RunDir(folder)
    request = Request(1, torch.tensor([0]), torch.zeros(1, dtype=torch.long))
    home.ledger(["0.png"]).append(request, torch.tensor([0]))
    with pytest.raises(UserError, match=r"no notes of what its model said.*--data"):
        calibrating._bought(home, "u_dis")
