"""Records for synthetic run folders: stages with consistent metrics, losses, times."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ducats import config
from ducats.utils.npz_columns import AnyArray

N_BINS = 15


def rising_scores(method: str, seed: int, rounds: int) -> list[float]:
    top = {"duc": 0.9, "random": 0.82}.get(method, 0.86) + 0.005 * (seed % 3)
    return [round(0.5 + (top - 0.5) * (1 - (1 - stage / rounds) ** 2), 3) for stage in range(rounds + 1)]


def stage_record(stage: int, epoch: int, labels: int, accuracy: float, classes: int) -> dict[str, Any]:
    """Return a stage record computed from 1000 synthetic predictions with the given accuracy."""
    rng = np.random.default_rng([stage, 21])
    confidence = rng.beta(6, 2.5, 1000)
    is_correct = np.zeros(1000, bool)
    is_correct[np.argsort(-(confidence + rng.normal(0, 0.2, 1000)))[: round(1000 * accuracy)]] = True
    label = rng.integers(0, classes, 1000)
    per_class = [float(is_correct[label == k].mean()) for k in range(classes)]
    return {
        "kind": "stage",
        "stage": stage,
        "epoch": epoch,
        "labels": labels,
        "evaluated_on": "held_out",
        "images": 1000,
        "accuracy": accuracy,
        "mean_class_accuracy": float(np.mean(per_class)),
        "mean_iou": round(accuracy**1.5, 6),
        **_errors(confidence, is_correct),
        "class_accuracy": per_class,
        "reliability": _reliability(confidence, is_correct),
    }


def _errors(confidence: AnyArray, is_correct: AnyArray) -> dict[str, float]:
    table = _reliability(confidence, is_correct)
    gaps = [
        n * abs(c - a)
        for n, c, a in zip(table["count"], table["confidence"], table["accuracy"], strict=True)
        if n
    ]
    probability = np.where(is_correct, confidence, 1 - confidence).clip(1e-6)
    risk = np.cumsum(~is_correct[np.argsort(-confidence)]) / np.arange(1, len(is_correct) + 1)
    return {
        "ece": sum(gaps) / len(confidence),
        "nll": float(-np.log(probability).mean()),
        "brier": float(((1 - probability) ** 2).mean()),
        "aurc": float(risk.mean()),
    }


def _reliability(confidence: AnyArray, is_correct: AnyArray) -> dict[str, list[Any]]:
    bin_index = np.ceil(confidence * N_BINS).clip(1, N_BINS).astype(int) - 1
    bin_masks = [bin_index == index for index in range(N_BINS)]
    return {
        "upper": [(index + 1) / N_BINS for index in range(N_BINS)],
        "count": [int(mask.sum()) for mask in bin_masks],
        "confidence": [float(confidence[mask].mean()) if mask.any() else None for mask in bin_masks],
        "accuracy": [float(is_correct[mask].mean()) if mask.any() else None for mask in bin_masks],
    }


def _temperature_scaled(record: Mapping[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng([record["stage"], 22])
    is_correct = rng.random(1000) < record["accuracy"]
    confidence = np.clip(np.where(is_correct, rng.beta(9, 2, 1000), rng.beta(3, 3, 1000)), 0.1, 1.0)
    errors = _errors(confidence, is_correct)
    shown_errors = {key: errors[key] for key in ("ece", "nll", "brier")}
    fit = {"temperature": 1.3 + 0.1 * record["stage"], "labels": record["labels"]}
    return {**fit, **shown_errors, "reliability": _reliability(confidence, is_correct)}


def write_records(
    folder: Path,
    run_config: config.Config,
    stages: Sequence[dict[str, Any]],
    *,
    finished: bool,
) -> None:
    """Write the records in chronological order and, if finished, the final model file."""
    lines: list[dict[str, Any]] = []
    for stage in stages:
        stage["peak_memory_bytes"] = 300_000_000 + 1_000_000 * stage["stage"]
        if stage["stage"]:
            stage["temperature_scaled"] = _temperature_scaled(stage)
    for epoch in range(run_config.train.epochs + 1 if finished else stages[-1]["epoch"] + 1):
        if epoch:
            losses = {"source/nll": 2.0 / (epoch + 1), "source/kl": 0.3 / epoch}
            losses |= {"unlabelled/u_dis": 0.5 / epoch, "unlabelled/u_data": 0.2 + 0.1 / epoch}
            if epoch > stages[0]["epoch"]:
                losses["labelled/nll"] = 1.5 / epoch
            lines.append({"kind": "epoch", "epoch": epoch, "losses": losses, "seconds": 0.5})
        lines += [stage for stage in stages if stage["epoch"] == epoch]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        (folder / "model.safetensors").touch()


def change_records(folder: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Path:
    """Rewrite the stage records of a run."""
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [change(record) if record["kind"] == "stage" else record for record in records]
    path.write_text("".join(json.dumps(record) + "\n" for record in changed))
    return folder


def without(*keys: str) -> Callable[[dict[str, Any]], Mapping[str, Any]]:
    """Return a change of records that drops some values."""
    return lambda record: {key: value for key, value in record.items() if key not in keys}
