"""Synthetic run folders in the format of real ones, written in milliseconds without training or torch.

``write_run`` writes a classification run, ``write_pixel_run`` a segmentation run. Values given by a test
(accuracies, labels per round) are recorded unchanged; all others are consistent with them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ducats import config
from ducats.config.schema import query_epochs
from ducats.runfolder.run_folder import FORMAT_KEY, RUN_FORMAT
from ducats.utils.npz_columns import AnyArray
from ducats.utils.palette import class_colours
from synthetic_records import rising_scores, stage_record, write_records
from synthetic_snapshots import (
    Samples,
    columns_from_log_alpha,
    features,
    log_alpha,
    samples,
    write_map_thumbnail,
    write_snapshot,
    write_thumbnail,
)

DIGITS = tuple("0123456789")
STREET_CLASSES = ("road", "building", "pole", "sky", "person", "car")
VERSIONS = {"ducats": "0.1.0.dev0", "torch": "2.6.0", "numpy": "2.0.0"}


def write_run(
    folder: Path,
    method: str = "duc",
    seed: int = 0,
    *,
    accuracies: Sequence[float] | None = None,
    rounds: int = 5,
    per_round: int = 10,
    pool: int = 300,
    source: int = 120,
    n_snapshot: int | None = None,
    classes: Sequence[str] = DIGITS,
    settings: Sequence[str] = (),
    name: str | None = None,
    finished: bool = True,
    snapshots: bool = True,
    thumbnails: bool = True,
    seconds_per_label: float | None = None,
    data: str = "synthetic",
) -> Path:
    """Write a classification run.

    Args:
        folder: created here.
        method: name of a config in configs/methods or ablation; queries other than ``duc`` select at random.
        accuracies: one per stage, ``rounds + 1`` in total; None gives rising values.
        per_round: labels per round.
        pool: number of target images.
        source: number of source images.
        n_snapshot: number of pool images in a snapshot; None means all.
        classes: class names, at most 15.
        settings: as for ``--set``, e.g. ``query.params.kappa=5``.
        name: method name in tables; None means ``method``.
        finished: if False, the run ends after the query of the last round.
        snapshots: write snapshots.
        thumbnails: write thumbnails of the selected images.
        seconds_per_label: annotation seconds per label.
        data: identifies the test set; runs on different data cannot be compared.
    """
    run_config = _load_config("data/digits", method, seed, rounds, rounds * per_round, settings)
    keys = [f"target/{index:04d}" for index in range(pool)]
    _write_run_files(
        folder, run_config, name or method, _data_record(classes, (16,), source, pool, data), keys
    )
    pool_labels = np.random.default_rng(11).integers(0, len(classes), pool)
    source_labels = np.random.default_rng(12).integers(0, len(classes), source)
    selections = _write_rounds(
        folder,
        run_config,
        samples(pool_labels, len(classes), True, 1),
        samples(source_labels, len(classes), False, 1),
        groups=[np.arange(pool)],
        per_group=per_round,
        n_rows=(pool if n_snapshot is None else n_snapshot, source),
        n_classes=len(classes),
        finished=finished,
        snapshots=snapshots,
        seconds_per_label=seconds_per_label,
    )
    if snapshots and thumbnails:
        for image in np.concatenate(selections).tolist():
            write_thumbnail(folder, image, int(pool_labels[image]))
    scores = rising_scores(method, seed, rounds) if accuracies is None else accuracies
    epochs = _stage_epochs(run_config, finished=finished)
    records = []
    for stage, epoch in enumerate(epochs):
        record = stage_record(stage, epoch, per_round * stage, scores[stage], len(classes))
        if seconds_per_label is not None and stage:
            record["annotation_seconds"] = seconds_per_label * per_round * stage
            record |= {"annotation_units": per_round * stage + 1, "timed_units": per_round * stage}
        records.append(record | {"seconds": round(2.0 * (stage + 1) + 0.1 * seed, 3)})
    write_records(folder, run_config, records, finished=finished)
    return folder


def write_pixel_run(
    folder: Path,
    method: str = "duc",
    seed: int = 0,
    *,
    ious: Sequence[float] | None = None,
    rounds: int = 3,
    per_image: int = 8,
    pool: int = 6,
    size: tuple[int, int] = (24, 40),
    classes: Sequence[str] = STREET_CLASSES,
    settings: Sequence[str] = (),
    name: str | None = None,
    finished: bool = True,
    snapshots: bool = True,
    data: str = "synthetic",
) -> Path:
    """Write a segmentation run that labels ``per_image`` pixels of every pool image in each round.

    See ``write_run`` for the other arguments.

    Args:
        ious: mIoU of each stage, ``rounds + 1`` in total; None gives rising values.
        per_image: labelled pixels per image and round.
        pool: number of target images; there are half as many source images.
        size: height and width of all images.
    """
    budget = f"{rounds * per_image}/image"
    run_config = _load_config("data/streets", method, seed, rounds, budget, settings)
    keys = [f"streets/{index:03d}.png" for index in range(pool)]
    pool_record = {"resolution": "network", "size": list(size), "keys": keys}
    data_record = _data_record(classes, size, pool // 2, pool, data)
    _write_run_files(folder, run_config, name or method, data_record, pool_record)
    area = size[0] * size[1]
    label_maps = np.stack([_label_map(index, size, len(classes)) for index in range(pool + pool // 2)])
    if snapshots:
        colours = np.array(class_colours(classes), np.float64)
        for image in range(min(6, pool)):
            write_map_thumbnail(folder, image, label_maps[image], colours)
    _write_rounds(
        folder,
        run_config,
        samples(label_maps[:pool].reshape(-1), len(classes), True, 2),
        samples(label_maps[pool:].reshape(-1), len(classes), False, 2),
        groups=np.arange(pool * area).reshape(pool, area),
        per_group=per_image,
        n_rows=(100 * pool, 50 * pool),
        n_classes=len(classes),
        finished=finished,
        snapshots=snapshots,
    )
    scores = [value - 0.2 for value in rising_scores(method, seed, rounds)] if ious is None else ious
    records = []
    for stage, epoch in enumerate(_stage_epochs(run_config, finished=finished)):
        n_labels, iou = per_image * pool * stage, scores[stage]
        centre = (len(classes) - 1) / 2
        records.append(
            stage_record(stage, epoch, n_labels, min(1.0, iou + 0.2), len(classes))
            | {"clicks": n_labels, "pixels": 3 * area, "resolution": "original"}
            | {"headline_metric": "mean_iou", "mean_iou": iou}
            | {"class_iou": [round(iou + 0.01 * (k - centre), 6) for k in range(len(classes))]}
            | {"seconds": round(3.0 * (stage + 1) + 0.1 * seed, 3)}
        )
    write_records(folder, run_config, records, finished=finished)
    return folder


def _stage_epochs(run_config: config.Config, *, finished: bool) -> list[int]:
    """Return the epoch of each stage: one before each round, and one after the last epoch."""
    rounds = query_epochs(run_config)
    return [*rounds, run_config.train.epochs] if finished else [*rounds]


def _write_rounds(
    folder: Path,
    run_config: config.Config,
    pool: Samples,
    source: Samples,
    *,
    groups: Sequence[AnyArray] | AnyArray,
    per_group: int,
    n_rows: tuple[int, int],
    n_classes: int,
    finished: bool,
    snapshots: bool,
    seconds_per_label: float | None = None,
) -> list[AnyArray]:
    """Write requests, labels and snapshots, and return the selected samples of each round.

    Args:
        pool: pool images, or the pixels of all of them.
        groups: all images, or the pixels of each image; each round selects ``per_group`` samples of each.
        n_rows: number of pool and source samples in a snapshot.
    """
    rows = _sample_indices(len(pool), n_rows[0]), _sample_indices(len(source), n_rows[1])
    rounds = len(query_epochs(run_config))
    area = 1 if len(groups) == 1 else len(groups[0])
    selections = [np.zeros(0, np.int64)]
    for stage, epoch in enumerate(_stage_epochs(run_config, finished=finished)):
        labelled, new_selection = np.concatenate(selections), np.zeros(0, np.int64)
        if stage < rounds:
            new_selection = np.concatenate(
                [_select(run_config, pool, group, labelled, per_group, stage / rounds) for group in groups]
            )
            _write_round(folder, stage + 1, new_selection, area, pool.label, seconds_per_label)
        if snapshots:
            columns = _snapshot_columns(
                pool, source, rows, labelled, new_selection, n_classes, stage / rounds
            )
            columns["image"], columns["position"] = np.divmod(columns["image"], area)
            number = stage + 1 if stage < rounds else 0
            write_snapshot(folder, round=number, epoch=epoch, pool=len(pool), source=len(source), **columns)
        selections.append(new_selection)
    return selections


def _load_config(
    data: str, method: str, seed: int, rounds: int, budget: int | str, settings: Sequence[str]
) -> config.Config:
    candidates = [f"{kind}/{method}" for kind in ("methods", "ablation")]
    configs = config.configs_folder()
    layer = next((name for name in candidates if (configs / f"{name}.yaml").exists()), "methods/duc")
    acquisition = f"acquisition={{budget: {budget}, rounds: {rounds}, after_epochs: null}}"
    return config.load_config([data, layer], [f"seed={seed}", "train.epochs=20", acquisition, *settings])


def _data_record(
    classes: Sequence[str], size: tuple[int, ...], source: int, pool: int, name: str
) -> dict[str, Any]:
    sides: object = size[0] if len(size) == 1 else list(size)
    counts = {"source": source, "pool": pool, "test": 1000}
    domains = {part: {"images": count, "digest": f"{name}-{part}"} for part, count in counts.items()}
    return {"classes": list(classes), "channels": 1 if len(size) == 1 else 3, "size": sides, **domains}


def _write_run_files(
    folder: Path, run_config: config.Config, method: str, data: Mapping[str, Any], pool: Any
) -> None:
    folder.mkdir(parents=True)
    identity = json.loads(json.dumps(run_config.identity() | {"method": method}))
    for name, content in (("config.yaml", identity), ("data.yaml", dict(data))):
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    machine = {"python": "3.11.7", "platform": "Linux", "cores": 2, "device": "x86_64"}
    environment = {FORMAT_KEY: RUN_FORMAT, **machine, "versions": VERSIONS}
    (folder / "environment.json").write_text(json.dumps(environment, indent=1))
    (folder / "pool.json").write_text(json.dumps(pool, indent=0))


def _sample_indices(total: int, count: int) -> AnyArray:
    """Return random indices, the same ones for every run."""
    indices: AnyArray = np.sort(np.random.default_rng(5).permutation(total)[:count])
    return indices


def _select(
    run_config: config.Config,
    pool: Samples,
    group: AnyArray,
    labelled: AnyArray,
    budget: int,
    adapted: float,
) -> AnyArray:
    """Select samples of a group: in two rounds for the query ``duc``, else at random."""
    candidates = np.setdiff1d(group, labelled)
    if run_config.query.name != "duc":
        rng = np.random.default_rng([run_config.seed, len(group) - len(candidates)])
        found: AnyArray = rng.permutation(candidates)[:budget]
        return found
    n_classes = 1 + int(pool.label[group].max())
    columns = columns_from_log_alpha(log_alpha(features(pool[candidates], adapted), n_classes))
    kappa = float(run_config.query.params.get("kappa", 10))
    first_round = np.argsort(-columns["u_dis"], kind="stable")[: max(int(np.ceil(kappa * budget)), budget)]
    best = first_round[np.argsort(-columns["u_data"][first_round], kind="stable")[:budget]]
    return candidates[best]


def _snapshot_columns(
    pool: Samples,
    source: Samples,
    sampled_rows: tuple[AnyArray, AnyArray],
    labelled: AnyArray,
    new_selection: AnyArray,
    classes: int,
    adapted: float,
) -> dict[str, AnyArray]:
    snapshot_rows, source_rows = sampled_rows
    rows = np.concatenate([snapshot_rows, np.setdiff1d(new_selection, snapshot_rows)])
    is_labelled = np.isin(rows, labelled)
    label = np.concatenate([source.label[source_rows], np.where(is_labelled, pool.label[rows], -1)])
    raw = np.concatenate([features(source[source_rows], adapted), features(pool[rows], adapted)])
    no_source_rows = np.zeros(len(source_rows), bool)
    return {
        "is_target": np.concatenate([no_source_rows, np.ones(len(rows), bool)]),
        "image": np.concatenate([source_rows, rows]),
        "sampled": np.concatenate([~no_source_rows, np.isin(rows, snapshot_rows)]),
        "picked": np.concatenate([no_source_rows, np.isin(rows, new_selection)]),
        "is_labelled": np.concatenate([no_source_rows, is_labelled]),
        "label": label,
        "z": log_alpha(raw, classes),
        "raw": raw,
    }


def _write_round(
    folder: Path,
    number: int,
    selection: AnyArray,
    area: int,
    labels: AnyArray,
    seconds_per_label: float | None,
) -> None:
    image, position = np.divmod(selection, area)
    columns = {"image": image.astype(np.int32)}
    if area > 1:
        images, counts = np.unique(image, return_counts=True)
        columns = {"image": images.astype(np.int32), "count": counts.astype(np.uint32)}
        columns["position"] = position.astype(np.uint32)
    answers = {"label": labels[selection].astype(np.int8)}
    if seconds_per_label is not None:
        answers["seconds"] = np.full(len(selection), seconds_per_label, np.float32)
    for part, extra in (("requests", {"round": np.int64(number)}), ("labels", answers)):
        path = folder / part / f"round-{number:02d}.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, allow_pickle=False, **columns, **extra)


def _label_map(number: int, size: tuple[int, int], classes: int) -> AnyArray:
    """Return a label map with horizontal bands and some boxes on them."""
    rng = np.random.default_rng([number, 31])
    bands = np.sort(rng.integers(0, 3, 3)) % classes
    label_map = np.repeat(bands, -(-size[0] // 3))[: size[0], None].repeat(size[1], 1)
    for _ in range(4):
        y, x = (int(rng.integers(0, side - 4)) for side in size)
        label_map[y : y + rng.integers(3, 9), x : x + rng.integers(3, 9)] = rng.integers(0, classes)
    return label_map
