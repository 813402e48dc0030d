"""Minimal run folders with a few hand-written records."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ducats.report import find_runs
from ducats.report.run_reader import Run
from ducats.runfolder.run_folder import FORMAT_KEY, RUN_FORMAT


def stage_record(number: int, labels: int, accuracy: float | None, ece: float = 0.1) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": "stage", "stage": number, "epoch": 2 * (number + 1), "labels": labels}
    if accuracy is not None:
        record |= {"accuracy": accuracy, "mean_class_accuracy": accuracy - 0.01, "ece": ece}
        record |= {"nll": 0.5, "brier": 0.2, "aurc": 0.05, "class_accuracy": [accuracy, None]}
        record["reliability"] = {
            "upper": [0.5, 1.0],
            "count": [0, 10],
            "confidence": [None, 0.9],
            "accuracy": [None, accuracy],
        }
    return record | {"seconds": 10.0 + number}


def write_run(
    folder: Path,
    method: str = "duc",
    seed: int = 0,
    accuracies: Sequence[float | None] = (0.5, 0.7),
    *,
    ece: float = 0.1,
    finished: bool = True,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a classification run with 10 labels per round."""
    stages = [stage_record(index, 10 * index, accuracy, ece) for index, accuracy in enumerate(accuracies)]
    identity = {"method": method, "seed": seed, **(config or {})}
    return write_run_folder(folder, identity, stages, n_epochs=4, finished=finished)


def write_run_folder(
    folder: Path,
    config: Mapping[str, Any],
    stages: Sequence[Mapping[str, Any]],
    *,
    n_epochs: int = 0,
    finished: bool = True,
) -> Path:
    """Write config, records and environment of a run."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    losses = [{"kind": "epoch", "epoch": e, "losses": {"source/nll": 1 / e}} for e in range(1, n_epochs + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*losses, *stages]))
    environment = {FORMAT_KEY: RUN_FORMAT, "python": "3.11.7", "versions": {"torch": "2.6.0"}}
    (folder / "environment.json").write_text(json.dumps(environment))
    if finished:
        (folder / "model.safetensors").touch()
    return folder


def write_runs(root: Path, accuracies: Mapping[str, Sequence[float]]) -> list[Run]:
    """Write one run per accuracy of the last stage; the index of the accuracy is the seed."""
    for method, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            write_run(root / f"{method}-{seed}", method, seed, [0.4, accuracy])
    return [run for method in accuracies for run in find_runs(sorted(root.glob(f"{method}-[0-9]*")))]
