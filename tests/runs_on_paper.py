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
from ducats.palette import class_colours
from records_on_paper import rising, stage_record, write_records
from synthetic_snapshots import (
    Samples,
    SnapshotSpec,
    _Array,
    columns_from_log_alpha,
    features,
    log_alpha,
    samples,
    write_map_thumbnail,
    write_snapshot,
    write_thumbnail,
)

DIGITS = tuple("0123456789")
STREET = ("road", "building", "pole", "sky", "person", "car")
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
    sample: int | None = None,
    classes: Sequence[str] = DIGITS,
    settings: Sequence[str] = (),
    name: str | None = None,
    finished: bool = True,
    snapshots: bool = True,
    pictures: bool = True,
    before: bool = False,
    people: float | None = None,
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
        sample: number of pool images in a snapshot; None means all.
        classes: class names, at most 15.
        settings: as for ``--set``, e.g. ``query.params.kappa=5``.
        name: method name in tables; None means ``method``.
        finished: if False, the run ends after the query of the last round.
        snapshots: write snapshots.
        pictures: write thumbnails of the selected images.
        before: use an old format without snapshots, temperature scaling and memory in the records.
        people: annotation seconds per label.
        data: identifies the test set; runs on different data cannot be compared.
    """
    settled = _settled(method, seed, rounds, rounds * per_round, ("data/digits",), settings)
    after = query_epochs(settled)
    identity = settled.identity() | {"method": name or method}
    _begin(folder, identity, _data(classes, (16,), source, pool, data))
    (folder / "pool.json").write_text(json.dumps([f"target/{place:04d}" for place in range(pool)], indent=0))
    pool_labels = np.random.default_rng(11).integers(0, len(classes), pool)
    source_labels = np.random.default_rng(12).integers(0, len(classes), source)
    of_pool = samples(pool_labels, len(classes), True, 1)
    of_source = samples(source_labels, len(classes), False, 1)
    shown = _some(pool, pool if sample is None else sample)
    asked: list[_Array] = []
    stages = rounds + 1 if finished else rounds
    for stage in range(stages):
        picks = np.zeros(0, np.int64)
        if stage < rounds:
            picks = _picks(settled, of_pool, np.concatenate([*asked, picks]), per_round, stage / rounds, seed)
        if snapshots and not before:
            moment = _moment(
                of_pool, of_source, shown, _some(source, source), asked, picks, len(classes), stage / rounds
            )
            moment.round = stage + 1 if stage < rounds else 0
            moment.epoch = after[stage] if stage < rounds else settled.train.epochs
            write_snapshot(folder, moment)
            for image in picks.tolist() if pictures else ():
                write_thumbnail(folder, image, int(pool_labels[image]))
        if stage < rounds:
            columns = {"image": picks.astype(np.int32)}
            seconds = None if people is None else np.full(per_round, people, np.float32)
            _buy(folder, stage + 1, columns, pool_labels[picks], seconds)
            asked.append(picks)
    reached = rising(method, seed, rounds) if accuracies is None else accuracies
    records = [
        stage_record(
            stage, [*after, settled.train.epochs][stage], per_round * stage, reached[stage], len(classes)
        )
        | ({} if people is None or not stage else {"annotation_seconds": people * per_round * stage})
        | {"seconds": round(2.0 * (stage + 1) + 0.1 * seed, 3)}
        for stage in range(stages)
    ]
    write_records(folder, settled, records, before=before, finished=finished)
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
    classes: Sequence[str] = STREET,
    settings: Sequence[str] = (),
    name: str | None = None,
    finished: bool = True,
    snapshots: bool = True,
    before: bool = False,
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
    settled = _settled(method, seed, rounds, f"{rounds * per_image}/image", ("data/streets",), settings)
    after = query_epochs(settled)
    identity = settled.identity() | {"method": name or method}
    _begin(folder, identity, _data(classes, size, pool // 2, pool, data))
    keys = [f"streets/{place:03d}.png" for place in range(pool)]
    known = {"resolution": "network", "size": list(size), "keys": keys}
    (folder / "pool.json").write_text(json.dumps(known, indent=0))
    area = size[0] * size[1]
    maps = np.stack([_scene(place, size, len(classes)) for place in range(pool + pool // 2)])
    of_pool = samples(maps[:pool].reshape(-1), len(classes), True, 2)
    of_source = samples(maps[pool:].reshape(-1), len(classes), False, 2)
    shown, of_source_shown = _some(pool * area, 100 * pool), _some(pool // 2 * area, 50 * pool)
    if snapshots and not before:
        for image in range(min(6, pool)):
            write_map_thumbnail(folder, image, maps[image], np.array(class_colours(classes), np.float64))
    asked: list[_Array] = []
    stages = rounds + 1 if finished else rounds
    for stage in range(stages):
        picks = np.zeros(0, np.int64)
        if stage < rounds:
            taken = np.concatenate([*asked, picks])
            for image in range(pool):
                within = np.arange(image * area, (image + 1) * area)
                old = np.flatnonzero(np.isin(within, taken))
                picked = _picks(settled, of_pool[within], old, per_image, stage / rounds, seed)
                picks = np.concatenate([picks, within[picked]])
        if snapshots and not before:
            moment = _moment(
                of_pool, of_source, shown, of_source_shown, asked, picks, len(classes), stage / rounds
            )
            moment.image, moment.position = np.divmod(moment.image, area)
            moment.round = stage + 1 if stage < rounds else 0
            moment.epoch = after[stage] if stage < rounds else settled.train.epochs
            write_snapshot(folder, moment)
        if stage < rounds:
            columns = {
                "image": np.arange(pool, dtype=np.int32),
                "count": np.full(pool, per_image, np.uint32),
                "position": (picks % area).astype(np.uint32),
            }
            _buy(folder, stage + 1, columns, of_pool.label[picks], None)
            asked.append(picks)
    reached = [value - 0.2 for value in rising(method, seed, rounds)] if ious is None else ious
    records = []
    for stage in range(stages):
        spent = per_image * pool * stage
        record = stage_record(
            stage, [*after, settled.train.epochs][stage], spent, min(1.0, reached[stage] + 0.2), len(classes)
        )
        per_class = [
            round(reached[stage] + 0.01 * (k - (len(classes) - 1) / 2), 6) for k in range(len(classes))
        ]
        record |= {"clicks": spent, "pixels": 3 * area, "resolution": "original", "headline": "mean_iou"}
        record |= {"mean_iou": reached[stage], "class_iou": per_class}
        records.append(record | {"seconds": round(3.0 * (stage + 1) + 0.1 * seed, 3)})
    write_records(folder, settled, records, before=before, finished=finished)
    return folder


def _settled(
    method: str,
    seed: int,
    rounds: int,
    budget: int | str,
    more: Sequence[str],
    settings: Sequence[str],
) -> config.Config:
    home = Path(config.__file__).parents[1] / "configs"
    layer = next(
        (f"{kind}/{method}" for kind in ("methods", "ablation") if (home / kind / f"{method}.yaml").exists()),
        "methods/duc",
    )
    ask = f"acquisition={{budget: {budget}, rounds: {rounds}, after: null}}"
    return config.load_config([*more, layer], [f"seed={seed}", "train.epochs=20", ask, *settings])


def _data(classes: Sequence[str], size: tuple[int, ...], source: int, pool: int, name: str) -> dict[str, Any]:
    sides: object = size[0] if len(size) == 1 else list(size)
    counts = {"source": source, "pool": pool, "test": 1000}
    about = {part: {"images": count, "keys": f"{name}-{part}"} for part, count in counts.items()}
    return {"classes": list(classes), "channels": 1 if len(size) == 1 else 3, "size": sides, **about}


def _begin(folder: Path, identity: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True)
    plain = json.loads(json.dumps(identity))
    (folder / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    (folder / "data.yaml").write_text(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))
    environment = {
        "python": "3.11.7",
        "platform": "Linux",
        "cores": 2,
        "device": "x86_64",
        "versions": VERSIONS,
    }
    (folder / "environment.json").write_text(json.dumps(environment, indent=1))


def _some(total: int, wanted: int) -> _Array:
    """Return random indices, the same ones for every run."""
    found: _Array = np.sort(np.random.default_rng(5).permutation(total)[:wanted])
    return found


def _picks(
    settled: config.Config, pool: Samples, asked: _Array, budget: int, adapted: float, seed: int
) -> _Array:
    """Select samples: in two rounds for the query ``duc``, else at random."""
    left = np.setdiff1d(np.arange(len(pool)), asked)
    if settled.query.name != "duc":
        found: _Array = np.random.default_rng([seed, len(asked)]).permutation(left)[:budget]
        return found
    thought = columns_from_log_alpha(log_alpha(features(pool[left], adapted), 1 + int(pool.label.max())))
    kappa = float(settled.query.params.get("kappa", 10))
    passed = np.argsort(-thought["u_dis"], kind="stable")[: max(int(np.ceil(kappa * budget)), budget)]
    best = passed[np.argsort(-thought["u_data"][passed], kind="stable")[:budget]]
    return left[best]


def _moment(
    pool: Samples,
    source: Samples,
    shown: _Array,
    source_shown: _Array,
    asked: Sequence[_Array],
    picks: _Array,
    classes: int,
    adapted: float,
) -> SnapshotSpec:
    bought = np.concatenate([*asked, np.zeros(0, np.int64)])
    rows = np.concatenate([shown, np.setdiff1d(picks, shown)])
    known = np.isin(rows, bought)
    label = np.concatenate([source.label[source_shown], np.where(known, pool.label[rows], -1)])
    raw = np.concatenate([features(source[source_shown], adapted), features(pool[rows], adapted)])
    first = np.zeros(len(source_shown), bool)
    return SnapshotSpec(
        round=0,
        epoch=0,
        pool=len(pool),
        source=len(source),
        target=np.concatenate([first, np.ones(len(rows), bool)]),
        image=np.concatenate([source_shown, rows]),
        position=np.zeros(len(source_shown) + len(rows)),
        sampled=np.concatenate([~first, np.isin(rows, shown)]),
        picked=np.concatenate([first, np.isin(rows, picks)]),
        known=np.concatenate([first, known]),
        label=label,
        z=log_alpha(raw, classes),
        raw=raw,
    )


def _buy(
    folder: Path, number: int, columns: Mapping[str, _Array], label: _Array, seconds: _Array | None
) -> None:
    for part, more in (
        ("requests", {"round": np.int64(number)}),
        ("labels", {"label": label.astype(np.int8)}),
    ):
        path = folder / part / f"round-{number:02d}.npz"
        path.parent.mkdir(exist_ok=True)
        timed = {"seconds": seconds} if seconds is not None and part == "labels" else {}
        np.savez(path, allow_pickle=False, **columns, **more, **timed)


def _scene(number: int, size: tuple[int, int], classes: int) -> _Array:
    """Return a label map with horizontal bands and some boxes on them."""
    draw = np.random.default_rng([number, 31])
    bands = np.sort(draw.integers(0, 3, 3)) % classes
    found = np.repeat(bands, -(-size[0] // 3))[: size[0], None].repeat(size[1], 1)
    for _ in range(4):
        y, x = (int(draw.integers(0, side - 4)) for side in size)
        found[y : y + draw.integers(3, 9), x : x + draw.integers(3, 9)] = draw.integers(0, classes)
    return found
