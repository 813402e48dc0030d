"""Gain over random labels: heads that are trained on random labels, and judged by the audit."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import FROZEN, Runner
from ducats.annotation.change_classes import merge_class
from ducats.data.toy import toy
from ducats.ledger import Ledger, Request
from ducats.run import random_gain
from ducats.run.audit_draw import add_audit_images
from ducats.run.context import RunContext
from ducats.run.random_gain import FOLDS, RandomLabels, draw_random_labels
from ducats.runfolder.records import describe_random_gain
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.progress import Event
from ducats.utils.randomness import make_generator
from ranks import outcome

LARGE_AUDIT = ("acquisition={budget: 30, rounds: 2, after_epochs: [1, 2], audit: 20}", *FROZEN)
N_IMAGES, N_SELECTED, N_AUDIT = 60, 15, 25
NONE = torch.zeros(N_IMAGES, dtype=torch.bool)


def draw(folder: Path, seed: int) -> tuple[Ledger, RandomLabels | str]:
    """Random labels for a ledger in which the query selects the first images."""
    ledger = Ledger(folder, [f"{number:02d}" for number in range(N_IMAGES)])
    picks = Request(1, torch.arange(N_SELECTED), torch.zeros(N_SELECTED, dtype=torch.long))
    complete = add_audit_images(picks, ledger, N_AUDIT, seed)
    ledger.append(complete, complete.image % 3)
    audits = [{"stage": 0, "epoch": 1}, {"stage": 1, "epoch": 4}]
    generator = make_generator(seed, "test")
    return ledger, draw_random_labels(ledger, audits, unanswered=NONE, generator=generator)


def test_each_head_gets_a_random_sample_and_judges_other_images(tmp_path: Path) -> None:
    inclusions, n_seeds = Counter[int](), 200
    for seed in range(n_seeds):
        ledger, drawn = draw(tmp_path / str(seed), seed)
        assert isinstance(drawn, RandomLabels)
        assert (drawn.stage, drawn.epoch, drawn.counts) == (1, 4, (0, N_SELECTED))
        audited = (ledger.audit_labels() >= 0).nonzero().squeeze(1)
        for head in range(FOLDS):
            image = drawn.image[head]
            assert len(image.unique()) == N_SELECTED
            assert torch.equal(drawn.label[head], image % 3)
            judged = audited[drawn.judge[audited] == head]
            assert len(judged) == N_AUDIT // FOLDS
            assert not torch.isin(judged, image).any()
            inclusions.update(image.tolist())
    expected = n_seeds * FOLDS * N_SELECTED / N_IMAGES
    frequencies = np.array([inclusions[image] for image in range(N_IMAGES)]) / expected
    assert (
        np.abs(frequencies[:N_SELECTED].mean() - 1) < 0.1
    )  # selected images are neither favoured nor avoided
    assert np.abs(frequencies - 1).max() < 0.4


def test_heads_are_trained_as_the_run_was(run_quickly: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the labels of the run itself, they predict the same, and nothing is gained."""

    def own_labels(context: RunContext) -> RandomLabels:
        ledger = context.ledger
        assert ledger is not None
        counts = tuple(int((ledger.targets(rounds) >= 0).sum()) for rounds in range(3))
        first, both = (ledger.targets(rounds) >= 0 for rounds in (1, 2))
        image = torch.cat([first.nonzero().squeeze(1), (both & ~first).nonzero().squeeze(1)])
        label = ledger.targets()[image]
        judge = torch.arange(len(ledger.keys)) % FOLDS
        return RandomLabels(2, 4, counts, image.repeat(FOLDS, 1), label.repeat(FOLDS, 1), judge)

    monkeypatch.setattr(random_gain, "draw", own_labels)
    settings = (*LARGE_AUDIT, "train.ema_decay=0.9")
    (same,) = run_quickly(*settings, folder="same").read_records("random_gain")
    assert (same["estimate"], same["low"], same["high"]) == (0.0, 0.0, 0.0)
    assert same["labels"] == same["all_labels"] == 10
    monkeypatch.undo()
    (other,) = run_quickly(*settings, folder="other").read_records("random_gain")
    assert other["low"] <= other["estimate"] <= other["high"]
    assert other["low"] < other["high"]


def test_a_killed_run_finds_the_same_gain(run_quickly: Runner) -> None:
    expected = outcome(run_quickly(*LARGE_AUDIT).path)
    assert any(line["kind"] == "random_gain" and "low" in line for line in expected["lines"])

    class KilledError(BaseException):
        pass

    def kill(event: Event) -> None:
        if event.phase == "train" and event.epoch == 3:
            raise KilledError

    with pytest.raises(KilledError):
        run_quickly(*LARGE_AUDIT, folder="killed", on_event=kill)
    assert outcome(run_quickly(*LARGE_AUDIT, folder="killed").path) == expected


def test_it_says_why_the_gain_is_not_known(run_quickly: Runner) -> None:
    (trained,) = run_quickly(*LARGE_AUDIT[:1]).read_records("random_gain")
    assert "frozen features only" in trained["unknown"]
    few = "acquisition={budget: 30, rounds: 2, after_epochs: [1, 2], audit: 6}"
    (record,) = run_quickly(few, *FROZEN, folder="few").read_records("random_gain")
    assert "12 labels after its first round" in record["unknown"]
    assert "not known" in describe_random_gain(record)
    assert not run_quickly(*LARGE_AUDIT, method="random", folder="random").read_records("random_gain")


def test_it_is_not_known_if_classes_are_merged_before_the_end(
    run_quickly: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy()

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ducats.run.loop.record_random_gain", stop)
        with pytest.raises(KeyboardInterrupt):
            run_quickly(*LARGE_AUDIT, data=data)
    merge_class(RunFolder(tmp_path / "run"), data.classes[0], data.classes[1], "ada")
    (record,) = run_quickly(*LARGE_AUDIT, data=data).read_records("random_gain")
    assert "merged" in record["unknown"]


@pytest.mark.parametrize(
    ("limits", "phrase"),
    [((0.01, 0.1), "labels were better"), ((-0.2, -0.1), "worse"), ((-0.1, 0.1), "Not significant")],
)
def test_the_sentence_depends_on_the_interval(limits: tuple[float, float], phrase: str) -> None:
    low, high = limits
    record = {"labels": 8, "all_labels": 8, "estimate": (low + high) / 2, "low": low, "high": high}
    assert phrase in describe_random_gain(record)
