"""Runs with a frozen backbone from the command line, and `ducats cache`."""

import re
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from commands import Capture, ducats, set_options, write_images
from ducats.data.embedding_cache import EmbeddingCache
from ducats.data.toy import toy
from ducats.runfolder.run_folder import RunFolder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of images, and a file of weights that makes the backbone a pretrained one."""
    folder = tmp_path_factory.mktemp("project")
    data = toy(n_source_per_class=4, n_pool=16, n_test=4)
    assert data.ground_truth is not None
    for name, images, labels in (
        ("source", data.source.images, data.source.labels[:]),
        ("target", data.pool, data.ground_truth[:]),
    ):
        write_images(folder / name, images.pixels[:], [data.classes[label] for label in labels.tolist()])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(
            timm.create_model("test_resnet", num_classes=0).state_dict(), folder / "weights.safetensors"
        )
    return folder


def options(project: Path, out: Path) -> tuple[object, ...]:
    settings = (
        f"model.params={{backbone: test_resnet, weights: {project / 'weights.safetensors'}}}",
        "views.size=32",
        "train={epochs: 2, batch_size: 8}",
        "acquisition={budget: 2, rounds: 1}",
        "engine.device=cpu",
    )
    folders = ("--source", project / "source", "--target", project / "target", "--ground-truth")
    return (*folders, "--out", out, *set_options(*settings))


def test_without_a_gpu_the_head_is_trained_and_both_costs_are_announced(
    project: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert ducats("run", *options(project, tmp_path / "frozen")) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"frozen backbone: about .* to embed the images, once, and .* to train the head", printed
    )
    assert "--finetune trains the whole network: about" in printed
    assert RunFolder(tmp_path / "frozen").identity["model"]["freeze"] == "backbone"
    assert ducats("run", "--finetune", *options(project, tmp_path / "tuned")) == 0
    assert "training: about" in capsys.readouterr().out
    assert "freeze" not in RunFolder(tmp_path / "tuned").identity["model"]


def test_a_run_resumes_as_it_was_started(project: Path, tmp_path: Path, capsys: Capture) -> None:
    """Also runs of earlier versions, which trained the whole network without saying so."""
    out = tmp_path / "run"
    assert ducats("run", "--finetune", *options(project, out)) == 0
    (out / "model.safetensors").unlink()
    (out / "checksums.jsonl").unlink()
    capsys.readouterr()
    assert ducats("run", *options(project, out)) == 0, capsys.readouterr().out


def test_doctor_announces_the_costs(project: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = [word for word in options(project, tmp_path) if word not in ("--out", tmp_path)]
    ducats("doctor", *arguments)
    assert "note: frozen backbone: about" in capsys.readouterr().out


def test_cache_is_listed_and_cleared(project: Path, tmp_path: Path, capsys: Capture) -> None:
    cache = tmp_path / "cache"
    setting = set_options(f"engine.embedding_cache={cache}")
    assert ducats("run", *options(project, tmp_path / "run"), *setting) == 0
    capsys.readouterr()
    assert ducats("cache", "--folder", cache) == 0
    listed = capsys.readouterr().out
    assert "test_resnet" in listed
    assert "index of files" in listed
    assert (
        f"4 sets of embeddings, {sum(s.size_bytes for s in EmbeddingCache(cache).spaces()) / 2**20:.1f} MB"
        in (" ".join(listed.split()))
    )
    assert ducats("cache", "--clear", "--unused-days", 1, "--folder", cache) == 0
    assert sum(not space.is_file_index for space in EmbeddingCache(cache).spaces()) == 4
    assert ducats("cache", "--clear", "--folder", cache) == 0
    assert "4 sets of embeddings removed" in capsys.readouterr().out
    assert EmbeddingCache(cache).spaces() == []


def test_stages_that_do_not_exist_are_named(project: Path, tmp_path: Path, capsys: Capture) -> None:
    assert ducats("run", *options(project, tmp_path / "run"), "--set", "model.freeze=9") == 2
    assert "'test_resnet' has 5 stages" in " ".join(capsys.readouterr().err.split())
