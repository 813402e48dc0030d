"""Tests of `ducats export` and `ducats triage`, and of the files they write."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_segmentation_data
from commands import ducats, read_csv, set_options, write_images
from conftest import quick
from ducats.data.decoding import decode_images
from ducats.data.domain import Images
from ducats.data.toy import toy
from ducats.deploy import exporter, load_trained_model
from ducats.deploy.inference_graph import InferenceGraph, StoredImageGraph
from ducats.deploy.preprocessing import make_preprocessing, normalisation
from ducats.deploy.trained_model import TrainedModel
from ducats.deploy.triage_rule import load_triage_rule
from ducats.models import EvidentialModel
from ducats.runfolder.run_folder import RunFolder
from ducats.training.inputs import PixelInputs
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator
from image_kinds import image_kinds, refused_kinds

SMALL_RUN_OPTIONS = (
    *set_options("model.name=small_cnn", "model.params={width: 4, features: 16}", "data.params.size=10"),
    *set_options("data.params.range=[0, 4095]"),
    *set_options("train={batch_size: 8, steps_per_epoch: 8, lr: 0.05}", "views.test={crop: center, size: 8}"),
    *set_options(
        "views.source={crop: none, size: 8, flip: 0, jitter: [0, 0, 0, 0]}",
        "views.unlabelled={crop: none, size: 8}",
    ),
    *("--set", "views.scoring={crop: none, size: null}", "--epochs", "3", "--rounds", "2", "--budget", "6"),
    *("--device", "cpu"),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source, target and test folders with class subfolders."""
    root, data = tmp_path_factory.mktemp("own"), toy(n_source_per_class=6, n_pool=60, n_test=60)
    assert data.ground_truth is not None
    assert data.test is not None
    splits = {
        "source": (data.source.images.pixels, data.source.labels),
        "target": (data.pool.pixels, data.ground_truth),
        "test": (data.test.images.pixels, data.test.labels),
    }
    for name, (pixels, labels) in splits.items():
        names = [data.classes[label] for label in labels[:].tolist()]
        write_images(root / name, pixels[:], names, size=(13, 11))
    return root


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    options = ("--source", root / "source", "--target", root / "target", "--test", root / "test")
    assert ducats("run", *options, "--ground-truth", *SMALL_RUN_OPTIONS, "--out", out) == 0
    return out


def run_code(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def code_blocks(card: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)


@pytest.mark.parametrize(("method", "has_relu"), [("duc", True), ("eada", False)])
def test_every_copy_of_the_model_has_the_bottleneck_of_its_run(
    method: str, has_relu: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = "model={name: timm, params: {backbone: test_resnet, pretrained: false, bottleneck: 16}}"
    data = ("--source", root / "source", "--target", root / "target", "--test", root / "test")
    options = (*SMALL_RUN_OPTIONS[4:], *set_options(network, "train.steps_per_epoch=1"), "--method", method)
    assert ducats("run", *data, "--ground-truth", *options, "--out", tmp_path / "run") == 0
    assert ducats("export", tmp_path / "run", "--out", tmp_path / "export") == 0
    monkeypatch.chdir(tmp_path / "export")
    from_card = run_code(code_blocks(Path("MODEL_CARD.md"))[0])["model"].network
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loaded = load_trained_model(tmp_path / "run").model.network.eval()(images)
        card = from_card(images)
    assert all(torch.equal(a, b) for a, b in zip(loaded, card, strict=True))
    assert bool((loaded[1] < 0).any()) is not has_relu


def test_export_and_run_the_code_of_the_card(
    run: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "export"
    assert ducats("export", run, "--onnx", "--out", out) == 0
    output = capsys.readouterr().out
    assert "largest differences from PyTorch: probability" in output
    assert "0 of 4 labels, on 4 target images of the run" in output
    names = {"MODEL_CARD.md", "classes.txt", "model.onnx", "model.safetensors", "preprocess.json"}
    assert {path.name for path in out.iterdir()} == {*names, "read_image.py"}
    assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    card = (out / "MODEL_CARD.md").read_text()
    stage = RunFolder(run).stages()[-1]
    for words in (
        "- source (source): 24 labelled images",
        "- target (target): 60 images",
        "- acquired labels: 6 target images in 2 rounds",
        "On held-out target images, never selected for labelling: 60 images.",
        f"| accuracy (fraction of correct labels) | {stage['accuracy']:.4f} |",
        f"| expected calibration error (0 is perfect) | {stage['ece']:.4f} |",
        "No threshold is set",
    ):
        assert words in card
    steps = json.loads((out / "preprocess.json").read_text())
    assert [step["step"] for step in steps["before_the_graph"]] == ["open", "convert"]
    assert [step["step"] for step in steps["in_the_graph"]] == ["resize", "crop", "divide", "normalise"]

    # The code of the card, `predict` and `score` agree on every kind of image.
    kinds, folder = image_kinds(), tmp_path / "kinds"
    folder.mkdir()
    for kind in kinds:
        kind.write(folder / kind.name)
    assert ducats("predict", run, folder, "--out", tmp_path / "p.csv", "--device", "cpu") == 0
    expected = {row["key"]: row for row in read_csv(tmp_path / "p.csv")}
    assert expected.keys() == {kind.name for kind in kinds}
    options = ("--out", tmp_path / "s", "--budget", len(kinds), "--query", "entropy", "--device", "cpu")
    assert ducats("score", run, folder, *options) == 0
    scored = {row["key"]: row for row in read_csv(tmp_path / "s/picks.csv")}
    monkeypatch.chdir(out)
    monkeypatch.syspath_prepend(out)
    calling, loading = code_blocks(out / "MODEL_CARD.md")
    assert len(calling.splitlines()) <= 12
    for kind in kinds:
        (out / "image.png").write_bytes((folder / kind.name).read_bytes())
        capsys.readouterr()
        variables = run_code(calling)
        label, *numbers = capsys.readouterr().out.split()
        row = expected[kind.name]
        assert label == row["label"] == scored[kind.name]["guess"]
        for value, name in zip(numbers, ("probability", "u_dis", "u_data"), strict=True):
            assert float(value) == pytest.approx(float(row[name]), rel=2e-4), (kind.name, name)
            assert scored[kind.name][name] == row[name]
    about = variables["about"]
    assert about["classes"] == (out / "classes.txt").read_text().split()
    assert (about["range"], about["size"], about["mode"]) == ([0, 4095], [8, 8], "RGB")
    for content, _ in refused_kinds().values():
        (out / "image.png").write_bytes(content)
        with pytest.raises(ValueError, match=r"bits, \d band"):
            run_code(calling)

    pixels = decode_images([("a", folder / kind.name)], 10, value_range=(0, 4095)).pixels[:]
    loaded = run_code(loading)
    with torch.inference_mode():
        z = loaded["model"](pixels[..., 1:9, 1:9] / 255).z
    np.testing.assert_allclose(z.softmax(1).numpy(), variables["probability"], rtol=1e-3)


def test_export_without_onnx(run: Path, tmp_path: Path) -> None:
    assert ducats("export", run, "--out", tmp_path / "e") == 0
    assert not (tmp_path / "e/model.onnx").exists()
    assert len(code_blocks(tmp_path / "e/MODEL_CARD.md")) == 1


def test_weights_that_are_not_finite_are_not_exported(run: Path, tmp_path: Path) -> None:
    trained = load_trained_model(run)
    next(trained.model.parameters()).data.view(-1)[0] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        exporter.export(trained, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_export_is_checked_on_noise_without_data(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: object, keys: object) -> None:
        raise UserError("the target folder does not exist")

    monkeypatch.setattr(exporter, "load_images", fail)
    pixels, images, checked_on = exporter._check_images(load_trained_model(run))
    assert pixels.shape == (4, 3, 10, 10)
    assert images.shape == (4, 3, 8, 8)
    assert "noise" in checked_on


def test_triage_then_predict_then_export(
    run: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ducats("predict", run, root / "test", "--out", tmp_path / "p.csv", "--device", "cpu") == 0
    predictions = read_csv(tmp_path / "p.csv")
    wrong = [row["label"] != row["key"].split("/")[0] for row in predictions]
    capsys.readouterr()
    try:
        assert ducats("triage", run, "--risk", "0.6", "--criterion", "probability", "--device", "cpu") == 0
        output = capsys.readouterr().out
        rule = json.loads((run / "triage.json").read_text())
        assert "computed on the run's held-out images" in output
        assert rule["images"] == 60
        accepted = [float(row["probability"]) >= rule["threshold"] - 1e-6 for row in predictions]
        assert rule["accepted"] == sum(accepted)
        assert rule["wrong"] == sum(w for w, a in zip(wrong, accepted, strict=True) if a)
        assert f"accept {100 * sum(accepted) / 60:.3g} % of images" in output
        assert ducats("predict", run, root / "test", "--out", tmp_path / "p.csv", "--device", "cpu") == 0
        decided = [row["triage"] for row in read_csv(tmp_path / "p.csv")]
        assert decided == ["accept" if a else "review" for a in accepted]
        assert ducats("export", run, "--out", tmp_path / "e") == 0
        assert "are wrong with 90 % confidence" in (tmp_path / "e/MODEL_CARD.md").read_text()
        # A threshold with images on both sides.
        loaded = load_triage_rule(run)
        middle = float(np.median([float(row["probability"]) for row in predictions]))
        assert loaded is not None
        replace(loaded, threshold=middle).save(run)
        assert ducats("predict", run, root / "test", "--out", tmp_path / "p.csv", "--device", "cpu") == 0
        for row in read_csv(tmp_path / "p.csv"):
            assert row["triage"] == ("accept" if float(row["probability"]) >= middle else "review")
        # The same labels from a folder give the same rule.
        data = ("--data", root / "test", "--risk", "0.6", "--criterion", "probability", "--device", "cpu")
        assert ducats("triage", run, *data) == 0
        again = json.loads((run / "triage.json").read_text())
        assert (again["threshold"], again["calibrated_on"]) == (rule["threshold"], "the folder test")
    finally:
        (run / "triage.json").unlink(missing_ok=True)


def test_triage_excludes_labelled_images_of_the_target(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--source", root / "source", "--target", root / "target", "--ground-truth", *SMALL_RUN_OPTIONS)
    assert ducats("run", *options, "--out", tmp_path / "run") == 0
    capsys.readouterr()
    assert ducats("triage", tmp_path / "run", "--risk", "0.9", "--device", "cpu") == 0
    output = capsys.readouterr().out
    assert "computed on the run's target images that it did not label: " in output
    assert "warning: the images that the run selected for labelling are excluded" in output
    assert json.loads((tmp_path / "run/triage.json").read_text())["images"] == 60 - 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--risk", "0.001"), ["below 0.1 %", "lowest reachable", "at least 2302 labelled images", "not 60"]),
        (("--risk", "1.5"), ["--risk 1.5 must be between 0 and 1"]),
        (("--confidence", "0"), ["--confidence 0 must be between 0 and 1"]),
        (("--acquired-labels",), ["no saved predictions"]),
        (("--acquired-labels", "--data", "x"), ["--data and --acquired-labels exclude each other"]),
        (("--data", "/nowhere"), ["does not exist"]),
    ],
)
def test_triage_errors_are_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: list[str]
) -> None:
    capsys.readouterr()
    assert ducats("triage", run, *arguments, "--device", "cpu") == 2
    output = capsys.readouterr().err
    for word in words:
        assert word in output
    assert output.count("\n") == 1
    assert not (run / "triage.json").exists()


def test_invalid_export_options(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for arguments, word in (
        (("--batch-size", "0"), "--batch-size must be at least 1"),
        (("--out", tmp_path / "file"), "is a file, not a folder"),
        (("--onnx", "--opset", "9", "--out", tmp_path / "e"), "--opset must be at least 18"),
    ):
        capsys.readouterr()
        assert ducats("export", run, *arguments) == 2
        assert word in capsys.readouterr().err
    assert not (tmp_path / "e/model.onnx").exists()


def test_segmentation_runs_are_exported_but_not_triaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run, out = tiny_segmentation_data.write_tree(tmp_path / "data"), tmp_path / "run", tmp_path / "e"
    options = ("--ground-truth", "--budget", "30/image", "--set", "evaluation.average_flipped=true")
    assert ducats("run", *tiny_segmentation_data.folder_options(data), *options, "--out", run) == 0
    assert ducats("export", run, "--onnx", "--batch-size", "2", "--out", out) == 0
    assert "on 4 target images of the run" in capsys.readouterr().out
    (out / "image.png").write_bytes((data / "test/images/200.png").read_bytes())
    monkeypatch.chdir(out)
    monkeypatch.syspath_prepend(out)
    variables = run_code(code_blocks(out / "MODEL_CARD.md")[0])
    assert variables["label"].shape == (2, 12, 16)
    assert variables["probability"].shape == (2, 3, 12, 16)
    trained = load_trained_model(run)
    images = decode_images([("a", data / "test/images/200.png")], (12, 16)).pixels[:].float() / 255
    with torch.inference_mode():
        own, mirror = (trained.model.eval()(x).z for x in (images, images.flip(-1)))
        size = {"size": (12, 16), "mode": "bilinear", "align_corners": True}
        own, mirror = (torch.nn.functional.interpolate(z, **size).clamp(max=10) for z in (own, mirror))  # type: ignore[arg-type]
        mean = (own.softmax(1) + mirror.softmax(1).flip(-1)) / 2
    np.testing.assert_allclose(variables["probability"][0], mean[0].numpy(), atol=1e-5)
    assert ducats("triage", run, "--device", "cpu") == 2
    assert "triage needs per-image labels" in capsys.readouterr().err


def trained_with_view(setting: str, channels: int = 3) -> TrainedModel:
    model = EvidentialModel(torch.nn.Flatten())
    return TrainedModel(
        model, quick(f"views.test={setting}"), ("a", "b"), (10, 12), channels, RunFolder(Path("run"))
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "view", ["{crop: none}", "{crop: center, size: [5, 8]}", "{crop: none, size: [5, 6]}"]
)
def test_graph_preprocesses_like_predict(view: str, channels: int) -> None:
    trained = trained_with_view(view, channels)
    preprocess, test = make_preprocessing(trained), trained.config.views.test
    pixels = torch.randint(256, (2, channels, 10, 12), dtype=torch.uint8)
    images = Images(("a", "b"), pixels)
    inputs = PixelInputs(images, test)
    expected = inputs.apply(pixels, inputs.sample_params(torch.arange(2), make_generator(0, "test")))
    graph = InferenceGraph(EvidentialModel(torch.nn.Flatten()), preprocess.size, channels)
    torch.testing.assert_close(StoredImageGraph(graph, preprocess).view(pixels), expected)


@pytest.mark.parametrize(
    ("names", "mean", "std"), [(("mean", "std"), [0.5], [0.25]), (("scale", "shift"), [0.5], [0.25])]
)
def test_normalisation_is_described(names: tuple[str, str], mean: list[float], std: list[float]) -> None:
    network, values = torch.nn.Module(), {"mean": 0.5, "std": 0.25, "scale": 4.0, "shift": -2.0}
    for name in names:
        network.register_buffer(name, torch.full((1, 1, 1), values[name]))
    assert normalisation(network) == {"mean": mean, "std": std}
    assert normalisation(torch.nn.Flatten()) == {"mean": None, "std": None}


@pytest.mark.parametrize(
    "view", ["{crop: random, size: 5}", "{flip: 0.5}", "{resize: short_side, crop: center, size: 5}"]
)
def test_random_and_aspect_views_cannot_be_exported(view: str) -> None:
    with pytest.raises(UserError, match=r"views\.test of this run is random"):
        make_preprocessing(trained_with_view(view))


def test_bilinear_views_cannot_be_exported() -> None:
    with pytest.raises(UserError, match="interpolation=bicubic"):
        make_preprocessing(trained_with_view("{interpolation: bilinear}"))
