"""Audit labels of pixels: a random sample of what no query selects; figures, accounting and training."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Runner, quick_pixels
from ducats.data.domain import UNLABELLED, VOID, AdaptationData
from ducats.ledger import Ledger, Request, RequestWriter, load_ledger, load_request
from ducats.run import audit_draw
from ducats.run.audit_draw import random_pixels, unanswered_pixels, write_with_audit
from ducats.run.checkpoint import load_model
from ducats.run.factory import load_data
from ducats.runfolder.pixel_runs import PixelRuns
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator
from present import present

AREAS = torch.tensor([12, 20, 8])
SIZES = [[3, 4], [4, 5], [2, 4]]
AUDIT = ("acquisition.audit=20", "evaluation.split=unlabelled")


def test_every_order_of_the_pixels_is_equally_likely() -> None:
    orders = Counter[tuple[tuple[int, int], ...]]()
    for seed in range(1200):
        blocks = list(random_pixels(torch.tensor([2, 1]), seed))
        image, position = (np.concatenate(column).tolist() for column in zip(*blocks, strict=True))
        orders[tuple(zip(image, position, strict=True))] += 1
    expected = itertools.permutations([(0, 0), (0, 1), (1, 0)])
    assert set(orders) == set(expected)
    assert all(abs(count - 200) < 4 * np.sqrt(200) for count in orders.values())


def complete(
    folder: Path, round_number: int, ledger: Ledger, picks: PixelRuns, count: int, seed: int
) -> Request:
    """A request with audit pixels; position 0 of each image is void, and known to be."""

    def known_labels_of(image: int) -> torch.Tensor:
        labels = torch.full((int(AREAS[image]),), UNLABELLED)
        labels[ledger.image_labels(image).position] = 0
        labels[0] = VOID
        return labels

    run_folder = RunFolder(folder)
    with RequestWriter(run_folder.request_path(round_number), round_number) as writer:
        write_with_audit(
            writer,
            picks,
            count=count,
            areas=AREAS,
            seed=seed,
            audited=ledger.audit_pixels(),
            known_labels_of=known_labels_of,
            unanswered_of=unanswered_pixels(run_folder, ledger, round_number - 1),
        )
    return present(load_request(run_folder, round_number))


def runs(picks: dict[int, list[int]], unit_size: int = 1) -> PixelRuns:
    image = np.repeat(list(picks), [len(positions) for positions in picks.values()])
    position = np.concatenate([np.array(positions) for positions in picks.values()])
    return PixelRuns.from_locations(image, position, np.full(len(image) // unit_size, unit_size))


def ledger_of(folder: Path, seed: int) -> tuple[Ledger, list[Request]]:
    """Two rounds of a query that knows no audit: regions of two pixels, then single pixels."""
    ledger = Ledger(folder / "labels", ["a", "b", "c"], SIZES)
    requests = []
    for round_number, picks in ((1, runs({0: [1, 2, 5, 6], 1: [3, 4]}, 2)), (2, runs({1: [8, 9, 10]}))):
        requests.append(complete(folder, round_number, ledger, picks, 4, seed))
        ledger.append(requests[-1], requests[-1].position % 3)
    return ledger, requests


def test_the_audit_is_a_uniform_sample_of_what_was_not_selected(tmp_path: Path) -> None:
    selected = {(0, 1), (0, 2), (0, 5), (0, 6), (1, 3), (1, 4), (1, 8), (1, 9), (1, 10)}
    inclusions, n_released = Counter[tuple[int, int]](), 0
    for seed in range(80):
        ledger, requests = ledger_of(tmp_path / str(seed), seed)
        audit = ledger.audit_pixels()
        locations = set(zip(audit.image.tolist(), audit.position.tolist(), strict=True))
        trained_on = {(i, p) for i in range(3) for p in ledger.image_labels(i).position.tolist()}
        assert trained_on == selected  # also what was released from the audit
        assert len(locations) == 8
        assert len(ledger) == 9 + 8  # whatever was released
        assert audit.label.tolist() == (audit.position % 3).tolist()
        inclusions.update(locations)
        n_released += len(requests[1].marks.released_image)
        assert ledger.audit_pixels(1).image.size == 4
    assert n_released > 8
    eligible = {(i, p) for i in range(3) for p in range(1, int(AREAS[i]))} - selected
    assert set(inclusions) == eligible
    expected = 80 * 8 / len(eligible)
    assert max(abs(count - expected) for count in inclusions.values()) < 4 * np.sqrt(expected)


def test_audit_pixels_are_mixed_among_the_units_of_an_image(tmp_path: Path) -> None:
    places = Counter[int]()
    for seed in range(60):
        folder = tmp_path / str(seed)
        ledger = Ledger(folder / "labels", ["a", "b", "c"], SIZES)
        request = complete(folder, 1, ledger, runs({1: [1, 2, 6, 7]}, 2), 30, seed)
        (block,) = [block for block in request.blocks() if block.image == 1]
        is_audit = torch.from_numpy(request.marks.mask(len(request)))
        assert request.picks.position.tolist() == [1, 2, 6, 7]
        assert present(request.picks.unit_sizes).tolist() == [2, 2]
        assert sorted(block.unit_sizes.tolist())[-2:] == [2, 2]
        positions = request.position[(request.image == 1) & ~is_audit].tolist()
        places[block.position.tolist().index(positions[0])] += 1
    assert len(places) > 5


def test_an_audit_label_of_a_selected_region_is_not_asked_for_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "labels", ["a", "b", "c"], SIZES)
    first = complete(tmp_path, 1, ledger, runs({0: [1]}), 20, seed=0)
    ledger.append(first, first.position % 3)
    audited = ledger.audit_pixels().position[ledger.audit_pixels().image == 1].tolist()
    free = [p for p in range(1, 20) if p not in audited]
    second = complete(tmp_path, 2, ledger, runs({1: [audited[0], free[0], audited[1], audited[2]]}, 2), 2, 0)
    assert second.picks.position.tolist() == [free[0]]
    assert present(second.marks).released_position.tolist() == sorted(audited[:3])
    assert len(second.marks.index) == 2 + 3
    ledger.append(second, second.position % 3)
    assert sorted(ledger.image_labels(1).position.tolist()) == sorted([*audited[:3], free[0]])


def test_picks_that_nobody_labelled_in_time_are_left_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "labels", ["a", "b", "c"], SIZES)
    request = complete(tmp_path, 1, ledger, runs({0: [1, 2, 3], 1: [5]}), 6, seed=0)
    is_open = (request.image == 0) & (request.position == 2)
    answered = request.subset(~is_open)
    assert answered.marks.mask(len(answered)).sum() == 6
    ledger.append(answered, answered.position % 3)
    unanswered_of = unanswered_pixels(RunFolder(tmp_path), ledger, 1)
    assert [unanswered_of(image).tolist() for image in range(3)] == [[2], [], []]
    later = complete(tmp_path, 2, ledger, runs({1: [6]}), 100, seed=0)
    assert (0, 2) not in zip(later.image.tolist(), later.position.tolist(), strict=True)
    assert len(ledger) + len(later) == int(AREAS.sum()) - 3 - 1  # all but void and unanswered pixels


def test_figures_contain_the_truth_and_are_exact_if_all_pixels_are_in_the_audit(run_pixels: Runner) -> None:
    run_folder = run_pixels("acquisition={budget: 95%, audit: 2300}", "evaluation.split=unlabelled")
    stages = {stage["epoch"]: stage for stage in run_folder.stages()}
    audits = run_folder.read_records("audit")
    assert [audit["stage"] for audit in audits] == [0, 1, 2]
    for audit in audits:
        truth = stages[audit["epoch"]]
        assert audit["low"] - 1e-6 <= truth["accuracy"] <= audit["high"] + 1e-6
        assert audit["miou"]["low"] - 1e-6 <= truth["mean_iou"] <= audit["miou"]["high"] + 1e-6
        for interval, iou in zip(audit["classes"].values(), truth["class_iou"], strict=True):
            assert iou is None or interval["low"] - 1e-6 <= iou <= interval["high"] + 1e-6
        assert audit["pixels"] == truth["pixels"]
    last, truth = audits[-1], run_folder.stages()[-1]
    assert last["labels"] == last["pixels"]
    assert [last[name] for name in ("low", "accuracy", "high")] == pytest.approx([truth["accuracy"]] * 3)
    for interval, iou in zip(last["classes"].values(), truth["class_iou"], strict=True):
        assert iou is None or [interval["low"], interval["high"]] == pytest.approx([iou, iou])
    gain = audits[-1]["accuracy"] - audits[-2]["accuracy"]
    assert audits[-1]["gain"]["low"] - 0.02 <= gain <= audits[-1]["gain"]["high"] + 0.02


def data_of(settings: tuple[str, ...]) -> AdaptationData:
    return load_data(quick_pixels(*settings))


def corrupted(data: AdaptationData, ledger: Ledger) -> AdaptationData:
    """The data with other labels where the audit is."""
    audit, maps = ledger.audit_pixels(), present(data.ground_truth)[:].clone()
    flat = maps.view(len(maps), -1)
    index = torch.from_numpy(audit.image), torch.from_numpy(audit.position)
    flat[index] = (flat[index].clamp(min=0) + 1) % len(data.classes)
    return replace(data, ground_truth=maps)


@pytest.mark.parametrize("unit", ["pixel", "region"])
def test_no_audit_label_affects_training_or_selection(run_pixels: Runner, unit: str) -> None:
    settings = (*AUDIT, f"task.unit={unit}")
    data = data_of(settings)
    first = run_pixels(*settings, folder="first", data=data)
    ledger = load_ledger(first)
    assert len(ledger) == 5 * 26  # the audit is part of the budget
    assert len(ledger.audit_pixels().image) == 20
    second = run_pixels(*settings, folder="second", data=corrupted(data, ledger))
    for round_number in (1, 2):
        requests = [present(load_request(run, round_number)) for run in (first, second)]
        assert requests[0].position.tolist() == requests[1].position.tolist()
    weights, other_weights = load_model(first), load_model(second)
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    figures, other_figures = (run.read_records("audit")[-1] for run in (first, second))
    assert figures["accuracy"] != other_figures["accuracy"]
    released = run_pixels(*settings, "acquisition.release_audit=true", folder="released", data=data)
    assert released.read_records("audit") == first.read_records("audit")[:2]
    weights_with_audit = load_model(released)
    assert any(not torch.equal(weights[name], weights_with_audit[name]) for name in weights)


@pytest.mark.parametrize("unit", ["pixel", "region"])
def test_nothing_depends_on_which_pixels_are_in_the_audit(
    run_pixels: Runner, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    settings = (*AUDIT, f"task.unit={unit}")
    first = run_pixels(*settings, folder="first")
    monkeypatch.setattr(audit_draw, "make_generator", lambda seed, *names: make_generator(seed + 1, *names))
    second = run_pixels(*settings, folder="second")
    ledgers = [load_ledger(run) for run in (first, second)]
    assert ledgers[0].audit_pixels().position.tolist() != ledgers[1].audit_pixels().position.tolist()
    for image in range(len(ledgers[0].keys)):
        trained_on = [sorted(ledger.image_labels(image).position.tolist()) for ledger in ledgers]
        assert trained_on[0] == trained_on[1]
    weights, other_weights = load_model(first), load_model(second)
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def test_released_labels_are_judged_as_audit_labels(run_pixels: Runner) -> None:
    """With a single round, the first figures come after it."""
    settings = "acquisition={budget: 5%, after_epochs: [1], audit: 20}"
    kept = run_pixels(settings, folder="kept")
    released = run_pixels(settings, "acquisition.release_audit=true", folder="released")
    assert released.read_records("audit") == kept.read_records("audit")[:1]


def test_a_rule_on_the_miou_ends_the_queries(run_pixels: Runner) -> None:
    run_folder = run_pixels("acquisition={budget: 60%, audit: 600, until: miou>0.5%}")
    assert "mIoU is at least" in run_folder.read_records("stop")[0]["reason"]
    assert load_ledger(run_folder).spent(2) == load_ledger(run_folder).spent(1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("task.unit=image", "acquisition={budget: 2, audit: 1}"), "whole label maps"),
        (("task.unit=image", "acquisition={budget: 2, until: miou>5%}"), "needs audit labels"),
    ],
)
def test_whole_label_maps_have_no_audit(settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        quick_pixels(*settings)
