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
    SnapshotSpec,
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
    run_config = _load_config(method, seed, rounds, rounds * per_round, ("data/digits",), settings)
    label_epochs = query_epochs(run_config)
    identity = run_config.identity() | {"method": name or method}
    _write_run_files(folder, identity, _data_record(classes, (16,), source, pool, data))
    (folder / "pool.json").write_text(json.dumps([f"target/{index:04d}" for index in range(pool)], indent=0))
    pool_labels = np.random.default_rng(11).integers(0, len(classes), pool)
    source_labels = np.random.default_rng(12).integers(0, len(classes), source)
    pool_samples = samples(pool_labels, len(classes), True, 1)
    source_samples = samples(source_labels, len(classes), False, 1)
    snapshot_rows = _sample_indices(pool, pool if n_snapshot is None else n_snapshot)
    selected: list[AnyArray] = []
    stages = rounds + 1 if finished else rounds
    for stage in range(stages):
        new_selection = np.zeros(0, np.int64)
        if stage < rounds:
            new_selection = _select(
                run_config,
                pool_samples,
                np.concatenate([*selected, new_selection]),
                per_round,
                stage / rounds,
                seed,
            )
        if snapshots:
            spec = _snapshot_spec(
                pool_samples,
                source_samples,
                snapshot_rows,
                _sample_indices(source, source),
                selected,
                new_selection,
                len(classes),
                stage / rounds,
            )
            spec.round = stage + 1 if stage < rounds else 0
            spec.epoch = label_epochs[stage] if stage < rounds else run_config.train.epochs
            write_snapshot(folder, spec)
            for image in new_selection.tolist() if thumbnails else ():
                write_thumbnail(folder, image, int(pool_labels[image]))
        if stage < rounds:
            columns = {"image": new_selection.astype(np.int32)}
            seconds = None if seconds_per_label is None else np.full(per_round, seconds_per_label, np.float32)
            _write_round(folder, stage + 1, columns, pool_labels[new_selection], seconds)
            selected.append(new_selection)
    scores = rising_scores(method, seed, rounds) if accuracies is None else accuracies
    records = [
        stage_record(
            stage,
            [*label_epochs, run_config.train.epochs][stage],
            per_round * stage,
            scores[stage],
            len(classes),
        )
        | (
            {}
            if seconds_per_label is None or not stage
            else {"annotation_seconds": seconds_per_label * per_round * stage}
        )
        | {"seconds": round(2.0 * (stage + 1) + 0.1 * seed, 3)}
        for stage in range(stages)
    ]
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
    run_config = _load_config(
        method, seed, rounds, f"{rounds * per_image}/image", ("data/streets",), settings
    )
    label_epochs = query_epochs(run_config)
    identity = run_config.identity() | {"method": name or method}
    _write_run_files(folder, identity, _data_record(classes, size, pool // 2, pool, data))
    keys = [f"streets/{index:03d}.png" for index in range(pool)]
    pool_record = {"resolution": "network", "size": list(size), "keys": keys}
    (folder / "pool.json").write_text(json.dumps(pool_record, indent=0))
    area = size[0] * size[1]
    label_maps = np.stack([_label_map(index, size, len(classes)) for index in range(pool + pool // 2)])
    pool_samples = samples(label_maps[:pool].reshape(-1), len(classes), True, 2)
    source_samples = samples(label_maps[pool:].reshape(-1), len(classes), False, 2)
    snapshot_rows, source_rows = (
        _sample_indices(pool * area, 100 * pool),
        _sample_indices(pool // 2 * area, 50 * pool),
    )
    if snapshots:
        for image in range(min(6, pool)):
            write_map_thumbnail(
                folder, image, label_maps[image], np.array(class_colours(classes), np.float64)
            )
    selected: list[AnyArray] = []
    stages = rounds + 1 if finished else rounds
    for stage in range(stages):
        new_selection = np.zeros(0, np.int64)
        if stage < rounds:
            all_selected = np.concatenate([*selected, new_selection])
            for image in range(pool):
                within = np.arange(image * area, (image + 1) * area)
                selected_here = np.flatnonzero(np.isin(within, all_selected))
                chosen = _select(
                    run_config, pool_samples[within], selected_here, per_image, stage / rounds, seed
                )
                new_selection = np.concatenate([new_selection, within[chosen]])
        if snapshots:
            spec = _snapshot_spec(
                pool_samples,
                source_samples,
                snapshot_rows,
                source_rows,
                selected,
                new_selection,
                len(classes),
                stage / rounds,
            )
            spec.image, spec.position = np.divmod(spec.image, area)
            spec.round = stage + 1 if stage < rounds else 0
            spec.epoch = label_epochs[stage] if stage < rounds else run_config.train.epochs
            write_snapshot(folder, spec)
        if stage < rounds:
            columns = {
                "image": np.arange(pool, dtype=np.int32),
                "count": np.full(pool, per_image, np.uint32),
                "position": (new_selection % area).astype(np.uint32),
            }
            _write_round(folder, stage + 1, columns, pool_samples.label[new_selection], None)
            selected.append(new_selection)
    scores = [value - 0.2 for value in rising_scores(method, seed, rounds)] if ious is None else ious
    records = []
    for stage in range(stages):
        n_labels = per_image * pool * stage
        record = stage_record(
            stage,
            [*label_epochs, run_config.train.epochs][stage],
            n_labels,
            min(1.0, scores[stage] + 0.2),
            len(classes),
        )
        per_class = [
            round(scores[stage] + 0.01 * (k - (len(classes) - 1) / 2), 6) for k in range(len(classes))
        ]
        record |= {
            "clicks": n_labels,
            "pixels": 3 * area,
            "resolution": "original",
            "headline_metric": "mean_iou",
        }
        record |= {"mean_iou": scores[stage], "class_iou": per_class}
        records.append(record | {"seconds": round(3.0 * (stage + 1) + 0.1 * seed, 3)})
    write_records(folder, run_config, records, finished=finished)
    return folder


def _load_config(
    method: str,
    seed: int,
    rounds: int,
    budget: int | str,
    layers: Sequence[str],
    settings: Sequence[str],
) -> config.Config:
    configs_folder = Path(config.__file__).parents[1] / "configs"
    layer = next(
        (
            f"{kind}/{method}"
            for kind in ("methods", "ablation")
            if (configs_folder / kind / f"{method}.yaml").exists()
        ),
        "methods/duc",
    )
    acquisition = f"acquisition={{budget: {budget}, rounds: {rounds}, after_epochs: null}}"
    return config.load_config([*layers, layer], [f"seed={seed}", "train.epochs=20", acquisition, *settings])


def _data_record(
    classes: Sequence[str], size: tuple[int, ...], source: int, pool: int, name: str
) -> dict[str, Any]:
    sides: object = size[0] if len(size) == 1 else list(size)
    counts = {"source": source, "pool": pool, "test": 1000}
    domains = {part: {"images": count, "digest": f"{name}-{part}"} for part, count in counts.items()}
    return {"classes": list(classes), "channels": 1 if len(size) == 1 else 3, "size": sides, **domains}


def _write_run_files(folder: Path, identity: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True)
    json_identity = json.loads(json.dumps(identity))
    (folder / "config.yaml").write_text(yaml.safe_dump(json_identity, sort_keys=False, allow_unicode=True))
    (folder / "data.yaml").write_text(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))
    environment = {
        FORMAT_KEY: RUN_FORMAT,
        "python": "3.11.7",
        "platform": "Linux",
        "cores": 2,
        "device": "x86_64",
        "versions": VERSIONS,
    }
    (folder / "environment.json").write_text(json.dumps(environment, indent=1))


def _sample_indices(total: int, count: int) -> AnyArray:
    """Return random indices, the same ones for every run."""
    indices: AnyArray = np.sort(np.random.default_rng(5).permutation(total)[:count])
    return indices


def _select(
    run_config: config.Config, pool: Samples, selected: AnyArray, budget: int, adapted: float, seed: int
) -> AnyArray:
    """Select samples: in two rounds for the query ``duc``, else at random."""
    candidates = np.setdiff1d(np.arange(len(pool)), selected)
    if run_config.query.name != "duc":
        found: AnyArray = np.random.default_rng([seed, len(selected)]).permutation(candidates)[:budget]
        return found
    columns = columns_from_log_alpha(
        log_alpha(features(pool[candidates], adapted), 1 + int(pool.label.max()))
    )
    kappa = float(run_config.query.params.get("kappa", 10))
    first_round = np.argsort(-columns["u_dis"], kind="stable")[: max(int(np.ceil(kappa * budget)), budget)]
    best = first_round[np.argsort(-columns["u_data"][first_round], kind="stable")[:budget]]
    return candidates[best]


def _snapshot_spec(
    pool: Samples,
    source: Samples,
    snapshot_rows: AnyArray,
    source_rows: AnyArray,
    selected: Sequence[AnyArray],
    new_selection: AnyArray,
    classes: int,
    adapted: float,
) -> SnapshotSpec:
    labelled = np.concatenate([*selected, np.zeros(0, np.int64)])
    rows = np.concatenate([snapshot_rows, np.setdiff1d(new_selection, snapshot_rows)])
    is_labelled = np.isin(rows, labelled)
    label = np.concatenate([source.label[source_rows], np.where(is_labelled, pool.label[rows], -1)])
    raw = np.concatenate([features(source[source_rows], adapted), features(pool[rows], adapted)])
    no_source_rows = np.zeros(len(source_rows), bool)
    return SnapshotSpec(
        round=0,
        epoch=0,
        pool=len(pool),
        source=len(source),
        target=np.concatenate([no_source_rows, np.ones(len(rows), bool)]),
        image=np.concatenate([source_rows, rows]),
        position=np.zeros(len(source_rows) + len(rows)),
        sampled=np.concatenate([~no_source_rows, np.isin(rows, snapshot_rows)]),
        picked=np.concatenate([no_source_rows, np.isin(rows, new_selection)]),
        known=np.concatenate([no_source_rows, is_labelled]),
        label=label,
        z=log_alpha(raw, classes),
        raw=raw,
    )


def _write_round(
    folder: Path, number: int, columns: Mapping[str, AnyArray], label: AnyArray, seconds: AnyArray | None
) -> None:
    for part, extra in (
        ("requests", {"round": np.int64(number)}),
        ("labels", {"label": label.astype(np.int8)}),
    ):
        path = folder / part / f"round-{number:02d}.npz"
        path.parent.mkdir(exist_ok=True)
        seconds_column = {"seconds": seconds} if seconds is not None and part == "labels" else {}
        np.savez(path, allow_pickle=False, **columns, **extra, **seconds_column)


def _label_map(number: int, size: tuple[int, int], classes: int) -> AnyArray:
    """Return a label map with horizontal bands and some boxes on them."""
    rng = np.random.default_rng([number, 31])
    bands = np.sort(rng.integers(0, 3, 3)) % classes
    label_map = np.repeat(bands, -(-size[0] // 3))[: size[0], None].repeat(size[1], 1)
    for _ in range(4):
        y, x = (int(rng.integers(0, side - 4)) for side in size)
        label_map[y : y + rng.integers(3, 9), x : x + rng.integers(3, 9)] = rng.integers(0, classes)
    return label_map
