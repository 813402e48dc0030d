"""Runs with a frozen backbone: images are embedded once, and only the head is trained."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from commands import write_images
from conftest import FROZEN, Runner, quick
from ducats.config import configs_folder, load_config
from ducats.data import decoding
from ducats.data.embedding_cache import EmbeddingCache
from ducats.data.toy import toy
from ducats.deploy.classification import from_log_alpha, predict_images
from ducats.deploy.evaluation import evaluate_run
from ducats.deploy.trained_model import load_trained_model
from ducats.models import EvidentialModel
from ducats.models.classifier import Classifier
from ducats.run import run
from ducats.run.components import run_identity
from ducats.run.context import embed_images
from ducats.run.factory import build_run, resolve_for_machine
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.utils.errors import UserError
from ducats.utils.image_files import load_image
from ducats.utils.progress import Event
from ranks import outcome

METHODS = [
    path.stem
    for path in sorted((configs_folder() / "methods").glob("*.yaml"))
    if load_config([path]).task.name == "classification" and load_config([path]).acquisition.rounds is None
]


@pytest.fixture
def no_forward_of_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Classifier, _images: Tensor) -> Tensor:
        raise AssertionError("the backbone was called")

    monkeypatch.setattr(Classifier, "embed", fail)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_embeddings(run_quickly: Runner, method: str) -> None:
    folder = run_quickly(*FROZEN, "train.batch_size=8", method=method)
    assert folder.stages()[-1]["labels"] == 20


def test_only_the_head_is_trained_and_stored_until_the_end(run_quickly: Runner, tmp_path: Path) -> None:
    components, _ = build_run(quick(*FROZEN), RunFolder(tmp_path / "unused"))
    folder = run_quickly(*FROZEN)
    assert isinstance(components.model, nn.Module)
    before = {name.removeprefix("network."): t for name, t in components.model.state_dict().items()}
    final = load_file(folder.model_path)
    assert final.keys() == before.keys()
    changed = {name for name, tensor in final.items() if not torch.equal(tensor, before[name])}
    assert {name.split(".")[0] for name in changed} == {"bottleneck", "head"}
    checkpoint = torch.load(folder.checkpoint_path, weights_only=True)
    assert {name.split(".")[0] for name in checkpoint["network"]} == {"bottleneck", "head"}


def test_a_second_run_embeds_nothing(run_quickly: Runner, request: pytest.FixtureRequest) -> None:
    first = run_quickly(*FROZEN)
    request.getfixturevalue("no_forward_of_backbone")
    second = run_quickly(*FROZEN, folder="second")
    assert outcome(first.path) == outcome(second.path)
    run_quickly(*FROZEN, "train.lr=0.01", method="random", folder="other")


def test_a_killed_run_resumes(run_quickly: Runner) -> None:
    expected = outcome(run_quickly(*FROZEN, method="ducats").path)

    class KilledError(BaseException):
        pass

    def kill(event: Event) -> None:
        if event.phase == "train" and event.epoch == 3:
            raise KilledError

    with pytest.raises(KilledError):
        run_quickly(*FROZEN, method="ducats", folder="killed", on_event=kill)
    assert outcome(run_quickly(*FROZEN, method="ducats", folder="killed").path) == expected


def test_a_resumed_run_needs_neither_weights_nor_cache(run_quickly: Runner, tmp_path: Path) -> None:
    """As with a trained backbone: initial weights are needed only once."""
    weights = tmp_path / "weights.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(7)
        save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), weights)
    settings = (*FROZEN, f"model.params.weights={weights}")
    expected = outcome(run_quickly(*settings).path)

    class KilledError(BaseException):
        pass

    def kill(event: Event) -> None:
        if event.phase == "train" and event.epoch == 1:
            raise KilledError

    with pytest.raises(KilledError):
        run_quickly(*settings, folder="killed", on_event=kill)
    weights.unlink()
    EmbeddingCache().clear()
    frozen = tmp_path / "killed" / "frozen.safetensors"
    moved = frozen.rename(tmp_path / "frozen.safetensors")
    with pytest.raises(UserError, match="frozen"):
        run_quickly(*settings, folder="killed")
    moved.rename(frozen)
    assert outcome(run_quickly(*settings, folder="killed").path) == expected


def test_predictions_of_images_equal_those_of_embeddings(run_quickly: Runner) -> None:
    """The final model is one network from images to classes, with or without the cache."""
    folder = run_quickly(*FROZEN)
    components, _ = build_run(quick(*FROZEN), RunFolder(Path("unused")))
    trained, fabric = load_trained_model(folder.path), make_fabric("cpu")
    assert components.test is not None
    by_embeddings = predict_images(trained, fabric, components.test.images)
    with torch.no_grad():
        pixels = components.test.images.pixels[:].float() / 255
        by_images = trained.model.eval()(pixels).z
    torch.testing.assert_close(by_embeddings.probabilities, from_log_alpha(by_images).probabilities)
    metrics = evaluate_run(trained, fabric).metrics(trained.classes)
    assert metrics["accuracy"] == pytest.approx(folder.stages()[-1]["accuracy"])


def test_prediction_uses_the_cache(run_quickly: Runner, request: pytest.FixtureRequest) -> None:
    trained = load_trained_model(run_quickly(*FROZEN).path)
    request.getfixturevalue("no_forward_of_backbone")
    evaluate_run(trained, make_fabric("cpu"))
    for space in (cache := EmbeddingCache()).spaces():
        cache.remove(space)
    with pytest.raises(AssertionError, match="the backbone was called"):
        evaluate_run(trained, make_fabric("cpu"))


def test_frozen_stages_without_embeddings(run_quickly: Runner, tmp_path: Path) -> None:
    stages = (*FROZEN, "model.freeze=3")
    folder = run_quickly(*stages)
    final = load_file(folder.model_path)
    components, _ = build_run(quick(*stages), RunFolder(tmp_path / "unused"))
    before = {name.removeprefix("network."): t for name, t in components.model.state_dict().items()}
    frozen = ("backbone.conv1", "backbone.bn1", "backbone.layer1", "backbone.layer2")
    for name, tensor in final.items():
        if name.startswith(frozen):
            assert torch.equal(tensor, before[name]), name
    assert not torch.equal(final["backbone.layer4.0.conv1.weight"], before["backbone.layer4.0.conv1.weight"])


CLASSIFIER = "model={name: timm, params: {backbone: test_resnet, weights: FILE}}"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((CLASSIFIER, "engine.device=cpu"), "backbone"),
        ((CLASSIFIER, "engine.device=cuda"), "none"),
        (("engine.device=cpu",), "backbone"),
        (("engine.device=cpu", "model.params.pretrained=false"), "none"),
        (("engine.device=cpu", "model.name=small_cnn"), "none"),
        (("engine.device=cpu", "model.freeze=none"), "none"),
        (("engine.device=cpu", "model.freeze=2"), 2),
        (("engine.device=cuda", "model.freeze=backbone"), "backbone"),
    ],
)
def test_without_a_gpu_a_pretrained_backbone_is_frozen(settings: Sequence[str], expected: object) -> None:
    config = load_config(["methods/ducats"], settings)
    assert resolve_for_machine(config).model.freeze == expected


@pytest.mark.parametrize("configs", [["data/office31", "parity"], ["segmentation", "parity/segmentation"]])
def test_published_settings_train_the_whole_network(configs: Sequence[str]) -> None:
    config = load_config(configs, ["engine.device=cpu"])
    assert resolve_for_machine(config).model.freeze == "none"


def test_settings_of_frozen_backbones_are_in_the_identity_only_if_used() -> None:
    trained = quick("model.freeze=none")
    assert "freeze" not in trained.identity()["model"]
    assert "embedded" not in trained.identity()["views"]
    assert trained.digest() == quick().digest()
    frozen = quick(*FROZEN).identity()
    assert (frozen["model"]["freeze"], frozen["views"]["embedded"]) == ("backbone", 3)
    for settings, is_frozen in ((FROZEN, True), ((*FROZEN, "model.freeze=none"), False)):
        components, plan = build_run(quick(*settings), RunFolder(Path("unused")))
        assert ("embedded" in run_identity(components, plan)["views"]) is is_frozen


def test_evidence_of_damage_to_the_cache_changes_nothing(run_quickly: Runner) -> None:
    expected = outcome(run_quickly(*FROZEN).path)
    for space in EmbeddingCache().spaces():
        rows = space.folder / "rows.bin"
        if rows.exists():
            content = bytearray(rows.read_bytes())
            content[::97] = bytes(len(content[::97]))
            rows.write_bytes(content)
    shutil.rmtree(EmbeddingCache().spaces()[0].folder)
    assert outcome(run_quickly(*FROZEN, folder="again").path) == expected


def test_a_second_start_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a damaged file, and with views that need bilinear pixels and aspect ratios."""
    data = toy(n_source_per_class=4, n_pool=16, n_test=4)
    assert data.ground_truth is not None
    for name, images, labels in (
        ("source", data.source.images, data.source.labels[:]),
        ("target", data.pool, data.ground_truth[:]),
    ):
        write_images(tmp_path / name, images.pixels[:], [data.classes[label] for label in labels.tolist()])
    (damaged := next((tmp_path / "target").rglob("*.png"))).write_bytes(b"damaged")
    config = quick(
        *FROZEN,
        "data.name=folders",
        f"data.params={{source: {tmp_path / 'source'}, target: {tmp_path / 'target'}, size: 32}}",
        "data.params.ground_truth=true",
        *(
            f"views.{name}={{interpolation: bilinear, resize: short_side, crop: center, size: 24}}"
            for name in ("source", "unlabelled", "scoring", "test")
        ),
        f"engine.embedding_cache={tmp_path / 'cache'}",
        "acquisition.budget=4",
    )

    def start(folder: str) -> tuple[list[str], object]:
        decoded = list[str]()

        def note(file: Path, value_range: object) -> object:
            decoded.append(file.name)
            return load_image(file, value_range)  # type: ignore[arg-type]

        with monkeypatch.context() as noting:
            noting.setattr(decoding, "load_image", note)
            components, plan = build_run(config, RunFolder(tmp_path / folder))
            assert isinstance(components.model, EvidentialModel)
            embedded = embed_images(components, components.model, make_fabric("cpu"), config.engine)
        assert [file.path for file in embedded.pool.unreadable] == [damaged]
        run_folder = run(components, plan, tmp_path / folder, performance=config.engine)
        return decoded, outcome(run_folder.path)

    first, second = start("first"), start("second")
    assert len(first[0]) > len(data.pool)
    assert second == ([damaged.name], first[1])
