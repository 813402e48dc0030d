"""Runs on several processes give the results of one process."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from selection_worker import picked_images, picked_pixels

from conftest import QUICK, QUICK_PIXELS, Runner
from ducats.ledger import load_ledger
from ducats.report import stage_table
from ducats.runfolder import records
from ducats.runfolder.records import audit_intervals
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ranks import command, in_ranks, run_in_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_two_processes_select_the_images_and_pixels_that_one_selects(tmp_path: Path) -> None:
    def save_picks(processes: int) -> None:
        fabric = make_fabric("cpu", processes)
        fabric.launch()
        found = {
            # Uneven shares or an odd number of batches; fewer batches than processes.
            **{f"{count} images": picked_images(fabric, count) for count in (83, 5)},
            **{f"pixels of {count} images": picked_pixels(fabric, count) for count in (5, 2)},
        }
        if fabric.is_global_zero:
            (tmp_path / f"{processes}.json").write_text(json.dumps(found))

    save_picks(1)
    done = in_ranks(lambda _: save_picks(2), tmp_path / "output")
    assert done.codes == [0, 0], done.outputs
    one, two = (json.loads((tmp_path / f"{processes}.json").read_text()) for processes in (1, 2))
    for name, picks in one.items():
        assert picks == two[name], name
    assert "index more than once" in two["pixels of 5 images"]["broken"]


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        # Gradient sums round differently on two processes, so compare a query before training.
        (("acquisition={budget: 5%, after_epochs: [0]}", "train.batch_size=4"), 1),
        # A query without a model selects the same in all rounds.
        (("query={name: random}", "task.unit=region", "train.batch_size=4", "acquisition.audit=8"), 2),
        (("acquisition={budget: 5%, after_epochs: [0], audit: 8}", "train.batch_size=4"), 1),
    ],
)
def test_a_segmentation_run_labels_the_same_pixels_on_two_processes(
    run_pixels: Runner, tmp_path: Path, settings: tuple[str, ...], rounds: int
) -> None:
    two = tmp_path / "two"
    more = ("-c", "data/streets", "--devices", "2")
    done = run_in_ranks(command((*QUICK_PIXELS, *settings), two, *more), tmp_path / "output")
    assert done.codes == [0, 0], done.outputs
    run_folders = [run_pixels(*settings), RunFolder(two)]
    ledgers = [list(load_ledger(run_folder).entries()) for run_folder in run_folders]
    assert ledgers[0] == ledgers[1]
    assert load_ledger(run_folders[0]).n_rounds == rounds
    assert len(ledgers[0]) == 5 * 26
    for number in range(1, rounds + 1):
        files = [
            (run_folder.path / "labels" / f"round-{number:02d}.npz").read_bytes()
            for run_folder in run_folders
        ]
        assert files[0] == files[1]
    first = [run_folder.stages()[0] for run_folder in run_folders]
    assert all(one[name] == other[name] for one, other in [first] for name in ("labels", "clicks", "pixels"))
    losses = [
        [r["losses"] for r in records.read_records(h.metrics_path) if r["kind"] == "epoch"]
        for h in run_folders
    ]
    assert losses[0][-1].keys() == losses[1][-1].keys()
    if rounds == 1:
        assert first[0]["mean_iou"] == first[1]["mean_iou"]  # of the same untrained model
        audits = [run_folder.read_records("audit")[:1] for run_folder in run_folders]
        assert len(audits[0]) == len(audits[1]) == ("audit" in settings[0])
        for one, other in zip(*audits, strict=True):
            assert one["pixels"] == other["pixels"]
            for name, interval in audit_intervals(one).items():
                assert interval == pytest.approx(audit_intervals(other)[name])


def test_invalid_settings_raise_before_other_processes_start(tmp_path: Path) -> None:
    bad = command((*QUICK, "query.params.kapa=3"), tmp_path / "run", "--processes", "2")
    done = run_in_ranks(bad, tmp_path / "output", 1, lambda *_: {})
    assert done.codes == [2]
    assert done.outputs[0].count("has no parameter 'kapa'") == 1


def test_system_errors_on_rank_0_are_reported_as_with_one_process(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = command(QUICK, tmp_path / "file" / "run")
    alone = run_in_ranks(run, tmp_path / "output", 1, lambda *_: {})
    both = run_in_ranks([*run, "--devices", "2"], tmp_path / "output")
    assert (alone.codes, both.codes) == ([2], [2, 2])
    assert f"ducats: cannot write {tmp_path / 'file' / 'run'}: Not a directory" in alone.outputs[0]
    texts = [re.sub(r"training: about .*", "", text) for text in (*alone.outputs, *both.outputs)]  # measured
    assert texts[1:] == [texts[0], ""]


def test_auxiliary_modules_may_be_unused_in_a_step(tmp_path: Path) -> None:
    """Once the whole pool is labelled, a discriminator has no unlabelled target images."""
    out = tmp_path / "run"
    settings = ("query={name: aada}", "objective={name: adversarial, params: {hidden: 8}}")
    label_all = ("train={epochs: 2, steps_per_epoch: 2}", "acquisition={after_epochs: [1], budget: 80}")
    done = run_in_ranks(command((*QUICK, *settings, *label_all), out, "--devices", "2"), tmp_path / "output")
    assert done.codes == [0, 0], done.outputs
    assert len(load_ledger(RunFolder(out))) == 80


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("oracle.name=human", 3, "round 1 waits for 10 labels"),
        ("train.lr=1e30", 2, "became nan"),
        ("train.batch_size=3", 2, "must be a multiple of 2 processes"),
    ],
)
def test_an_error_ends_all_processes_with_one_message(
    tmp_path: Path, setting: str, code: int, words: str
) -> None:
    settings = (*QUICK, setting, "train.schedule.name=constant")
    done = run_in_ranks(command(settings, tmp_path / "run", "--devices", "2"), tmp_path / "output")
    assert done.codes == [code, code], done.outputs
    assert "".join(done.outputs).count(words) == 1


def test_a_process_may_finish_before_the_others(tmp_path: Path) -> None:
    def linger(rank: int) -> None:
        genuine = stage_table.terminal_stage_table

        def table(*arguments: Any) -> Any:
            time.sleep(0.3)
            return genuine(*arguments)

        setattr(stage_table, "terminal_stage_table", table)  # noqa: B010 - as monkeypatch would set it

    run = command(
        (*QUICK, "train.epochs=1", "acquisition.rounds=0", "acquisition.after_epochs=null"),
        tmp_path / "run",
        "--devices",
        "2",
    )
    done = run_in_ranks(run, tmp_path / "output", setup=linger)
    assert done.codes == [0, 0], done.outputs
    assert "0 labels acquired" in done.outputs[0]
