"""Segmentation with a frozen backbone: feature maps are embedded once, and only the head is trained."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conftest import Runner, quick_pixels
from ducats.config import load_config
from ducats.data.embedding_cache import EmbeddingCache
from ducats.data.streets import streets
from ducats.deploy.evaluation import evaluate_run
from ducats.deploy.trained_model import load_trained_model
from ducats.models import EvidentialModel
from ducats.models.deeplab import DeepLab, deeplab_v2, deeplab_v3plus
from ducats.models.freezing import freeze_backbone
from ducats.objectives import OBJECTIVES
from ducats.run.context import count_fixed_views, embed_images, unique_image_sets
from ducats.run.factory import build_run, check_config, resolve_for_machine
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import Optimisation, PerformanceOptions, StreamViews, View
from ducats.training.distributed import make_fabric
from ducats.training.embed import Embedder, fixed_views
from ducats.training.fit import make_optimiser
from ducats.training.inputs import model_inputs
from ducats.training.streams import Streams
from ducats.utils.errors import UserError
from ducats.utils.progress import Event
from present import present
from ranks import outcome

BACKBONE = "params: {backbone: test_resnet, pretrained: false, output_stride: 16}"
FROZEN = (  # in addition to `QUICK_PIXELS`
    f"model={{name: deeplab_v2, {BACKBONE}, evidence: exp_at_most_10}}",
    "model.freeze=backbone",
    "train.lr=0.01",
    "evaluation.average_flipped=true",
)
V3PLUS = f"model={{name: deeplab_v3plus, {BACKBONE.replace('16', '32')}, evidence: exp_at_most_10}}"


def is_embeddable(method: str) -> bool:
    objective = load_config(["data/streets", f"methods/{method}"]).objective.name
    return not OBJECTIVES[objective].transforms_images


@pytest.fixture
def no_forward_of_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: DeepLab, _images: Tensor) -> list[Tensor]:
        raise AssertionError("the backbone was called")

    monkeypatch.setattr(DeepLab, "_maps", fail)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ducats", ("views.embedded=1",)),
        ("ducats", ("task.unit=region",)),
        ("ducats", ("task.resolution=original", "train.ema_decay=0.9")),
        ("ducats", (V3PLUS, "views.source={crop: random, size: 12, flip: 0.5}")),
        ("ducats", ("evaluation.split=target", "acquisition.audit=6")),
        *((method, ()) for method in ("duc", "random", "mrkld", "tpld", "ripu")),
        *((method, ("acquisition.budget=2",)) for method in ("mada", "eada-seg", "aada-seg")),
    ],
)
def test_methods_learn_from_embeddings(run_pixels: Runner, method: str, settings: tuple[str, ...]) -> None:
    assert is_embeddable(method)
    folder = run_pixels(*FROZEN, "train.steps_per_epoch=12", *settings, method=method)
    losses = [record["losses"]["source/nll"] for record in folder.read_records("epoch")]
    assert losses[-1] < losses[0]


def test_only_the_head_is_trained(run_pixels: Runner, tmp_path: Path) -> None:
    components, _ = build_run(quick_pixels(*FROZEN), RunFolder(tmp_path / "unused"))
    before = {name.removeprefix("network."): t for name, t in components.model.state_dict().items()}
    final = load_file(run_pixels(*FROZEN).model_path)
    changed = {name for name, tensor in final.items() if not torch.equal(tensor, before[name])}
    assert {name.split(".")[0] for name in changed} == {"head"}


def test_a_second_run_embeds_nothing(run_pixels: Runner, request: pytest.FixtureRequest) -> None:
    first = run_pixels(*FROZEN, method="ducats")
    request.getfixturevalue("no_forward_of_backbone")
    second = run_pixels(*FROZEN, method="ducats", folder="second")
    assert outcome(first.path) == outcome(second.path)


def test_a_killed_run_resumes_without_the_cache(run_pixels: Runner) -> None:
    expected = outcome(run_pixels(*FROZEN, method="ducats").path)

    class KilledError(BaseException):
        pass

    def kill(event: Event) -> None:
        if event.phase == "train" and event.epoch == 3:
            raise KilledError

    with pytest.raises(KilledError):
        run_pixels(*FROZEN, method="ducats", folder="killed", on_event=kill)
    EmbeddingCache().clear()
    assert outcome(run_pixels(*FROZEN, method="ducats", folder="killed").path) == expected


def test_the_saved_model_predicts_from_images_as_from_embeddings(run_pixels: Runner) -> None:
    folder = run_pixels(*FROZEN, "train.epochs=8", method="ducats")
    n_spaces = len(EmbeddingCache().spaces())
    metrics = evaluate_run(load_trained_model(folder.path), make_fabric("cpu")).metrics(("a",) * 10)
    recorded = folder.stages()[-1]
    for name in ("accuracy", "mean_iou", "nll"):  # embeddings have half precision
        assert metrics[name] == pytest.approx(recorded[name], abs=5e-3), name
    assert len(EmbeddingCache().spaces()) == n_spaces  # predicting stores no feature maps


@pytest.mark.parametrize("build", [deeplab_v2, deeplab_v3plus])
def test_a_network_takes_images_or_their_embeddings(build: type) -> None:
    network: DeepLab = build(
        classes=3, channels=3, backbone="test_resnet", pretrained=False, output_stride=32
    ).eval()
    for size in ((40, 64), (33, 70)):
        images = torch.rand(2, 3, *size)
        width = network.register_image_size(size)
        with torch.no_grad():
            embeddings = network.embed(images)
            expected, found = network(images), network(embeddings)
        assert embeddings.shape == (2, width)
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(a, b)
        assert network.image_size(embeddings) == network.image_size(images) == size
    with pytest.raises(UserError, match=r"39 x 64 .*same size"):
        network.register_image_size((39, 64))


@pytest.mark.usefixtures("no_forward_of_backbone")
def test_sizes_are_checked_before_the_first_image_is_embedded() -> None:
    config = quick_pixels(*FROZEN, "model.params.output_stride=32")
    components, _ = build_run(config, RunFolder(Path("unused")))
    model = present(components.model if isinstance(components.model, EvidentialModel) else None)
    upright = replace(components.source.images, pixels=torch.zeros(6, 3, 32, 16, dtype=torch.uint8))
    source = replace(components.source, images=upright, labels=torch.zeros(6, 32, 16, dtype=torch.int8))
    with pytest.raises(UserError, match="same size"):
        embed_images(
            replace(components, source=source),
            model,
            make_fabric("cpu"),
            PerformanceOptions(),
        )


def make_embedder(folder: Path, views: StreamViews) -> Embedder:
    network = deeplab_v2(classes=8, channels=3, backbone="test_resnet", pretrained=False, output_stride=16)
    freeze_backbone(network, "backbone")
    return Embedder.build(
        network, fixed_views(views, per_pixel=True), make_fabric("cpu"), EmbeddingCache(folder)
    )


def test_the_head_on_a_frozen_backbone_has_a_lower_rate(tmp_path: Path) -> None:
    network = make_embedder(tmp_path, StreamViews()).network
    (group,) = make_optimiser(network, Optimisation(lr=1.0)).param_groups
    assert group["first_lr"] == pytest.approx(0.2)
    assert len(group["params"]) == 8  # weights and biases of four branches
    rates = {"backbone": 0.1, "head": 0.5}  # the first one has nothing to apply to
    (group,) = make_optimiser(network, Optimisation(lr=1.0, lr_multipliers=rates)).param_groups
    assert group["first_lr"] == pytest.approx(0.5)


def test_label_maps_follow_the_view(tmp_path: Path) -> None:
    whole = View(crop="none", size=None)
    views = StreamViews(
        source=replace(whole, flip=0.5), labelled=None, unlabelled=whole, scoring=whole, test=whole
    )
    data = streets(n_source=4, n_pool=2, n_test=1, height=32, width=64)
    embedder = make_embedder(tmp_path, views)
    images = data.source.images
    embedded = replace(images, embeddings=embedder.embed(images))
    streams = Streams(replace(data.source, images=embedded), data.pool, views, 4, 8, seed=0)
    network, mirrored = embedder.network.float(), 0
    for batch in streams.epoch(0, torch.full((2, 32, 64), -1, dtype=torch.int8), make_fabric("cpu")):
        for embedding, labels in zip(batch.source.images, batch.source.labels, strict=True):
            maps = [data.source.labels[i] for i in range(4)]
            (image,) = [i for i in range(4) if labels.equal(maps[i]) or labels.equal(maps[i].flip(-1))]
            pixels = images.pixels[image].float() / 255
            is_mirrored = not labels.equal(maps[image])
            mirrored += is_mirrored
            expected = network.embed((pixels.flip(-1) if is_mirrored else pixels)[None])[0]
            torch.testing.assert_close(embedding, expected, rtol=2e-3, atol=2e-3)
    assert 0 < mirrored < 32


def test_mirror_images_are_appended(tmp_path: Path) -> None:
    whole = View(crop="none", size=None)
    views = StreamViews(test=whole)
    images, embedder = streets(n_source=2, n_pool=3, n_test=1, height=32, width=64).pool, None
    embedder = make_embedder(tmp_path, views)
    embedded = replace(images, embeddings=embedder.embed(images))
    index = torch.tensor([2, 0])

    def shown(source: object) -> Tensor:
        inputs = model_inputs(source, whole, append_flipped=True)  # type: ignore[arg-type]
        return inputs.apply(inputs.stored[index], inputs.sample_params(index, torch.Generator()))

    expected = embedder.network.embed(shown(images))
    torch.testing.assert_close(shown(embedded), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("settings", "has_audit", "expected"),
    [
        (("evaluation.average_flipped=false",), True, {"source": 2, "pool": 2, "test": 1}),  # streets flips
        (("views.source.flip=0", "views.unlabelled.flip=0"), False, {"source": 1, "pool": 1, "test": 2}),
        (("views.source.flip=0", "views.unlabelled.flip=0"), True, {"source": 1, "pool": 2, "test": 2}),
    ],
)
def test_mirror_images_are_embedded_where_they_are_used(
    settings: tuple[str, ...], has_audit: bool, expected: dict[str, int]
) -> None:
    components, _ = build_run(quick_pixels(*FROZEN, *settings), RunFolder(Path("unused")))
    sets = dict(zip(("source", "pool", "test"), unique_image_sets(components).values(), strict=True))
    found = {
        name: count_fixed_views(components, images, has_audit=has_audit) for name, images in sets.items()
    }
    assert found == expected


@pytest.mark.parametrize("method", ["ducats", "mada", "proda", "seg-uncertainty"])
def test_without_a_gpu_it_is_the_default(method: str) -> None:
    config = load_config(["segmentation", f"methods/{method}"], ["engine.device=cpu"])
    expected = "backbone" if is_embeddable(method) else "none"
    assert resolve_for_machine(config).model.freeze == expected
    assert is_embeddable("ducats")
    assert not is_embeddable("proda")


def own_objective(_model: object, _batch: object) -> dict[str, Tensor]:
    return {}


def test_own_objectives_may_change_images() -> None:
    settings = ("engine.device=cpu", f"objective.name={__name__}:own_objective")
    assert resolve_for_machine(load_config(["segmentation"], settings)).model.freeze == "none"


def test_objectives_that_change_images_are_refused() -> None:
    config = quick_pixels(*FROZEN, method="proda")
    with pytest.raises(UserError, match=r"proda.*--finetune"):
        check_config(config)
