"""Train a small run for scoring tests, and write pools for it."""

from pathlib import Path

import numpy as np

from conftest import quick
from ducats.acquisition.streaming_top_k import ScoredSamples
from ducats.deploy import TrainedModel, load_trained_model
from ducats.run import run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from synthetic_pools import image_bytes, write_file, write_tar

SIZES = ((10, 8), (8, 8), (17, 9), (8, 20))


def train_run(folder: Path, *settings: str, method: str = "duc") -> TrainedModel:
    """Train for about a second and return the model; its scoring batch size is 8."""
    config = quick("engine.scoring_batch_size=8", *settings, method=method)
    run_folder = RunFolder(folder)
    components, plan = build_run(config, run_folder)
    fabric = make_fabric("cpu")
    fabric.launch()
    run(components, plan, folder, fabric=fabric, identity=config.identity())
    return load_trained_model(folder, trust_code=True)


def write_image_folder(folder: Path, count: int = 37) -> Path:
    """Write images of several sizes into subfolders."""
    for number in range(count):
        image_format = "JPEG" if number % 3 else "PNG"
        suffix = "jpg" if number % 3 else "png"
        write_file(
            folder / str(number % 4) / f"{number:03d}.{suffix}",
            image_bytes(number, SIZES[number % 4], image_format=image_format),
        )
    return folder


def write_shard_folder(folder: Path, shards: int, each: int = 11) -> Path:
    """Write tar files with images."""
    for shard in range(shards):
        members = {f"{n:03d}.png": image_bytes(shard * each + n, SIZES[n % 4]) for n in range(each)}
        write_tar(folder / f"{shard}.tar", members)
    return folder


def assert_equal_samples(one: ScoredSamples, two: ScoredSamples) -> None:
    """Check bitwise equality."""
    assert one.key.tolist() == two.key.tolist()
    assert one.columns.keys() == two.columns.keys()
    np.testing.assert_array_equal(one.pool_index, two.pool_index)
    for name, column in one.columns.items():
        np.testing.assert_array_equal(column, two.columns[name], err_msg=name)
