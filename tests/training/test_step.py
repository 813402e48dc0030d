"""Training steps equal those of a plain PyTorch loop, with all performance options."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ClassVar

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from ducats.data.domain import UNLABELLED, Images
from ducats.data.toy import toy
from ducats.data.views import sample_view_params
from ducats.models import EvidentialModel, small_cnn
from ducats.objectives import Batch, LabelledImages, duc
from ducats.settings import Optimisation, PerformanceOptions, Placement, StreamViews, TargetBatching, View
from ducats.training import placement
from ducats.training import step as step_module
from ducats.training.distributed import make_fabric
from ducats.training.fit import adapt_optimiser_state, fit_epoch, make_optimiser
from ducats.training.performance import resolve_performance
from ducats.training.schedules import inverse_decay
from ducats.training.step import Step
from ducats.training.streams import Streams, even_batches, full_batches, shuffled_batches
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed, make_generator

STEPS, BATCH = 50, 16
JITTERED = View(crop="random_resized", size=12, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1))
VIEWS = StreamViews(source=JITTERED, labelled=JITTERED, unlabelled=View(crop="random", size=12))
OPTIMISATION = Optimisation(lr=4e-3, lr_multipliers={"backbone": 0.1})


def make_model() -> EvidentialModel:
    with global_seed(0, "model"):
        return EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8))


def targets(pool: int) -> Tensor:
    known = torch.full((pool,), UNLABELLED)
    known[:20] = torch.arange(20) % 4
    return known


def augment_one(image: Tensor, view: View, aug_params: Tensor) -> Tensor:
    """Augment one image with torchvision and the same parameters."""
    top, left, height, width, flip, *rest = aug_params.tolist()
    augmented: Tensor = image.float() / 255
    if view.crop == "random_resized":
        box = [int(top), int(left), int(height), int(width)]
        augmented = tv.resized_crop(augmented, *box, size=[12, 12], antialias=True)
    else:
        augmented = tv.crop(augmented, int(top), int(left), 12, 12)
    if flip:
        augmented = tv.horizontal_flip(augmented)
    adjust = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]
    for kind in map(int, rest[4:8]):
        if view.jitter[kind]:
            augmented = adjust[kind](augmented, rest[kind])
    return augmented


def plain_stream(name: str, images: Images, items: Tensor, split: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of a stream, augmented image by image."""
    view: View = getattr(VIEWS, name)
    batches = list(shuffled_batches(items, BATCH, STEPS, make_generator(0, name, "order", 0), split))
    index = torch.cat(batches)
    height, width = images.pixels.shape[-2:]
    aug_params = sample_view_params(view, len(index), height, width, make_generator(0, name, "view", 0))
    augmented = [
        augment_one(images.pixels[int(i)], view, row) for i, row in zip(index, aug_params, strict=True)
    ]
    return [
        (torch.stack(some), batch)
        for some, batch in zip(_cut(augmented, [len(b) for b in batches]), batches, strict=True)
    ]


def _cut(items: list[Tensor], lengths: list[int]) -> list[list[Tensor]]:
    rest = iter(items)
    return [[next(rest) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def plain_losses() -> list[float]:
    """Losses of fifty steps in a plain loop."""
    data = toy(size=16)
    known = targets(len(data.pool))
    source = plain_stream("source", data.source.images, torch.arange(len(data.source)), full_batches)
    unlabelled = plain_stream("unlabelled", data.pool, (known < 0).nonzero().squeeze(1), full_batches)
    labelled = plain_stream("labelled", data.pool, (known >= 0).nonzero().squeeze(1), even_batches)
    model = make_model().train()
    named = list(model.network.named_parameters())
    slow, fast = ([p for n, p in named if n.startswith(part)] for part in ("backbone", "head"))
    optimiser = torch.optim.SGD(
        [{"params": slow, "factor": 0.1}, {"params": fast, "factor": 1.0}],
        lr=1.0,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-3,
        foreach=False,
    )
    found = []
    for number, ((x, i), (u, _), (t, j)) in enumerate(zip(source, unlabelled, labelled, strict=True)):
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * group["factor"] * (1 + 0.001 * number) ** -0.75
        losses = duc(model, Batch(LabelledImages(x, data.source.labels[i]), LabelledImages(t, known[j]), u))
        loss = torch.stack(list(losses.values())).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(float(loss.detach()))
    return found


def our_losses(options: PerformanceOptions, fabric: Fabric) -> list[float]:
    data = toy(size=16)
    resolved = resolve_performance(options, fabric)
    bare = make_model()
    if resolved.channels_last:
        bare.to(memory_format=torch.channels_last)
    optimiser = make_optimiser(bare.network, OPTIMISATION, fused=bool(resolved.fused_optimiser))
    model, stepper = fabric.setup(bare, optimiser)
    step = Step(model, stepper, duc, fabric, use_cuda_graphs=bool(resolved.cuda_graphs))
    model.train()
    streams = Streams(data.source, data.pool, VIEWS, BATCH, STEPS, seed=0)
    batches = streams.epoch(0, targets(len(data.pool)), fabric)
    return [
        float(torch.stack(list(step(batch, inverse_decay(n)).values())).sum())
        for n, batch in enumerate(batches)
    ]


@pytest.mark.parametrize(
    "options",
    [
        PerformanceOptions(),
        PerformanceOptions(channels_last=True),
        PerformanceOptions(fused_optimiser=True),
        PerformanceOptions(channels_last=True, fused_optimiser=True),
    ],
    ids=["plain", "channels_last", "fused", "both"],
)
def test_fifty_steps_equal_those_of_a_plain_loop(
    plain_losses: list[float], options: PerformanceOptions
) -> None:
    ours = our_losses(options, make_fabric("cpu"))
    assert ours == pytest.approx(plain_losses, rel=1e-5)
    assert ours[-1] < ours[0]


def test_bfloat16_is_close(plain_losses: list[float]) -> None:
    ours = our_losses(PerformanceOptions(), make_fabric("cpu", precision="bf16-mixed"))
    assert ours == pytest.approx(plain_losses, rel=0.05)
    assert ours != pytest.approx(plain_losses, rel=1e-5)


class FakeGraph:
    """A fake CUDA graph: capture has no effect, replay runs the step."""

    made: ClassVar[list["FakeGraph"]] = []

    def __init__(self) -> None:
        self.act: Any = None
        self.replays = 0
        FakeGraph.made.append(self)

    def pool(self) -> str:
        return "shared"

    def replay(self) -> None:
        self.replays += 1
        self.act()


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> type[FakeGraph]:
    """Captured steps without a GPU: a replay runs the step again on the same buffers."""
    FakeGraph.made = []

    def capture(self: Step, batch: Batch, source_weight: float) -> step_module.CapturedStep:
        static_batch = step_module._map_tensors(batch, torch.clone)
        graph = FakeGraph()
        losses: dict[str, Tensor] = {}

        def act() -> None:
            for name, loss in self._run_eagerly(static_batch, source_weight).items():
                losses.setdefault(name, torch.zeros(())).copy_(loss)

        graph.act = act
        return step_module.CapturedStep(graph, static_batch, losses)

    monkeypatch.setattr(Step, "_capture", capture)
    return FakeGraph


def batch_of(labelled: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def some(count: int) -> LabelledImages:
        images = torch.rand(count, 3, 12, 12, generator=generator)
        return LabelledImages(images, torch.randint(4, (count,), generator=generator))

    known = some(labelled) if labelled else None
    return Batch(some(8), known, torch.rand(8, 3, 12, 12, generator=generator))


def make_step(*, graphs: bool, clip: float | None = None) -> Step:
    fabric = make_fabric("cpu")
    bare = make_model()
    model, stepper = fabric.setup(bare, make_optimiser(bare.network, OPTIMISATION, fused=True))
    model.train()
    return Step(model, stepper, duc, fabric, use_cuda_graphs=graphs, max_grad_norm=clip)


def test_a_captured_step_reads_new_batches_rates_and_weights(fake_graphs: type[FakeGraph]) -> None:
    captured, plain = make_step(graphs=True), make_step(graphs=False)
    work = [(labelled, seed, weight) for seed, (labelled, weight) in enumerate(
        [(0, 1.0), (0, 1.0), (4, 1.0), (0, 1.0), (4, 1.0), (4, 1.0), (4, 0.5), (4, 0.5), (4, 0.5), (0, 1.0)]
    )]  # fmt: skip
    for labelled, seed, weight in work:
        batch = batch_of(labelled, seed)
        one, two = (step(batch, 1 / (1 + seed), weight) for step in (captured, plain))
        assert {n: float(v) for n, v in one.items()} == pytest.approx({n: float(v) for n, v in two.items()})
    # The first step of each shape and weight runs eagerly, the second is captured, and the graph is replayed.
    assert [graph.replays for graph in fake_graphs.made] == [3, 2, 2]


PLAIN = Optimisation(lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0, lr_multipliers={})


def weight_update(clip: float | None, batch: Batch) -> Tensor:
    """Return the weight update of plain SGD with learning rate 1, which is the clipped gradient."""
    fabric, bare = make_fabric("cpu"), make_model()
    model, stepper = fabric.setup(bare, make_optimiser(bare.network, PLAIN))
    model.train()
    before = torch.cat([p.detach().double().flatten() for p in bare.parameters()])
    Step(model, stepper, duc, fabric, max_grad_norm=clip)(batch, 1.0)
    return before - torch.cat([p.detach().double().flatten() for p in bare.parameters()])


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_clipping_keeps_the_direction_of_the_gradient(share: float) -> None:
    batch = batch_of(4, 0)
    free = weight_update(None, batch)
    clip = share * float(free.norm())
    clipped = weight_update(clip, batch)
    assert float(clipped.norm()) == pytest.approx(clip, rel=1e-4)
    assert torch.allclose(clipped / clipped.norm(), free / free.norm(), atol=1e-4)


def test_a_small_gradient_is_unchanged_bit_for_bit() -> None:
    batch = batch_of(4, 0)
    free = weight_update(None, batch)
    assert torch.equal(weight_update(1.01 * float(free.norm()), batch), free)
    assert torch.equal(weight_update(1e9, batch), free)


def test_the_norm_is_over_all_weights_and_losses_are_unchanged() -> None:
    batch, steps_ = batch_of(4, 0), [make_step(graphs=False, clip=clip) for clip in (None, 0.05)]
    for seed in range(4):
        batch = batch_of(4, seed)
        losses = [step(batch, 1.0) for step in steps_]
        norms = [
            float(torch.stack([p.grad.norm() for p in step.model.parameters() if p.grad is not None]).norm())
            for step in steps_
        ]
        assert norms[1] == pytest.approx(0.05, rel=1e-3)
        assert norms[0] > 0.05
        if seed == 0:  # before the first update
            assert {n: float(v) for n, v in losses[0].items()} == {n: float(v) for n, v in losses[1].items()}


def test_a_captured_step_clips_its_gradient(fake_graphs: type[FakeGraph]) -> None:
    captured, plain, free = (
        make_step(graphs=g, clip=c) for g, c in ((True, 0.05), (False, 0.05), (False, None))
    )
    for seed in range(6):
        batch = batch_of(4, seed)
        one, two, three = (
            torch.stack(list(step(batch, 1.0).values())).sum() for step in (captured, plain, free)
        )
        assert float(one) == pytest.approx(float(two), rel=1e-5)
    assert float(two) != pytest.approx(float(three), rel=1e-5)
    assert [graph.replays for graph in fake_graphs.made] == [5]


def test_a_non_finite_gradient_raises() -> None:
    class Spoils(torch.nn.Module):
        """Has a finite loss and a non-finite gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.zeros(()))

        def forward(self, images: Tensor) -> Tensor:
            return self.scale.sqrt() * images.flatten(1)[:, :4]

    fabric, bare = make_fabric("cpu"), EvidentialModel(Spoils())
    model, stepper = fabric.setup(bare, make_optimiser(bare.network, PLAIN))
    step = Step(model, stepper, duc, fabric, max_grad_norm=1.0)
    with pytest.raises(UserError, match="'weights' became nan"):
        fit_epoch(step, [batch_of(4, 0)], lambda _: 1.0, first_step=0, fabric=fabric, on_step=lambda *_: None)


def test_label_maps_of_another_dtype_need_another_graph(fake_graphs: type[FakeGraph]) -> None:
    """An int8 buffer would overflow for classes above 127."""

    def sums(_model: Any, batch: Batch) -> dict[str, Tensor]:
        weight = next(_model.parameters())
        assert batch.target is not None
        return {"target/sum": batch.target.labels.double().sum() + 0 * weight.sum()}

    step = make_step(graphs=True)
    step.objective = sums
    for kind, value in ((torch.int8, 100), (torch.int8, 101), (torch.int16, 200), (torch.int16, 300)):
        images, maps = torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), value, dtype=kind)
        batch = Batch(LabelledImages(images, maps), None, None, LabelledImages(images, maps))
        assert float(step(batch, 1.0)["target/sum"]) == 32 * value


def test_learning_rates_are_floats_after_an_epoch(fake_graphs: type[FakeGraph]) -> None:
    step = make_step(graphs=True)
    batches = [batch_of(0, seed) for seed in range(4)]
    steps_done: list[int] = []
    fit_epoch(
        step,
        batches,
        lambda number: 1.0,
        first_step=0,
        fabric=step.fabric,
        on_step=lambda done, means: steps_done.append(done),
    )
    rates = [group["lr"] for group in step.optimiser.param_groups]
    assert all(isinstance(rate, float) for rate in rates)
    assert sorted(rates) == pytest.approx([4e-4, 4e-3])
    assert steps_done == [1, 2, 3, 4]


def test_unused_graphs_are_dropped(fake_graphs: type[FakeGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "GRAPH_EVICTION_STEPS", 10)
    step = make_step(graphs=True)
    for labelled in range(2, 2 + step_module.MAX_CUDA_GRAPHS + 3):
        for seed in range(2):
            step(batch_of(labelled, seed), 1.0)
    assert len(step._captured) == step_module.MAX_CUDA_GRAPHS
    assert len(fake_graphs.made) == step_module.MAX_CUDA_GRAPHS + 3


def test_more_shapes_than_graphs_do_not_thrash(fake_graphs: type[FakeGraph]) -> None:
    step = make_step(graphs=True)
    for seed in range(4):
        for labelled in range(2, 2 + step_module.MAX_CUDA_GRAPHS + 2):
            step(batch_of(labelled, seed), 1.0)
    assert len(fake_graphs.made) == step_module.MAX_CUDA_GRAPHS  # the others run eagerly


def test_loaded_momentum_has_the_layout_of_its_weights() -> None:
    states = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        network = torch.nn.Conv2d(3, 4, 3).to(memory_format=layout)
        optimiser = make_optimiser(network, Optimisation(), fused=layout is torch.channels_last)
        network(torch.rand(2, 3, 5, 5)).sum().backward()
        optimiser.step()
        states[layout] = (network, optimiser)
    network, optimiser = states[torch.contiguous_format]
    optimiser.load_state_dict(states[torch.channels_last][1].state_dict())
    adapt_optimiser_state(optimiser, fused=False)
    assert not any(group["fused"] for group in optimiser.param_groups)
    assert optimiser.state[network.weight]["momentum_buffer"].stride() == network.weight.stride()
    optimiser.step()


def test_a_step_that_cannot_be_captured_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    step, plain = make_step(graphs=True), make_step(graphs=False)
    step(batch_of(2, 9), 1.0), plain(batch_of(2, 9), 1.0)
    with pytest.warns(UserWarning, match="cannot be captured .*engine.cuda_graphs=false"):
        one, two = (s(batch_of(2, 8), 1.0) for s in (step, plain))
    for seed in range(3):
        one, two = (s(batch_of(2, seed), 1.0) for s in (step, plain))
        assert {n: float(v) for n, v in one.items()} == pytest.approx({n: float(v) for n, v in two.items()})
    assert not step.use_cuda_graphs


def test_the_source_weight_scales_only_source_losses() -> None:
    model = make_model().train()
    fabric = make_fabric("cpu")
    found = []
    for weight in (1.0, 0.5):
        bare = copy.deepcopy(model)
        wrapped, stepper = fabric.setup(bare, make_optimiser(bare.network, OPTIMISATION))
        found.append(Step(wrapped, stepper, duc, fabric)(batch_of(4, 0), 1.0, weight))
    whole, half = found
    for name in whole:
        factor = 0.5 if name.startswith("source/") else 1.0
        assert float(half[name]) == pytest.approx(factor * float(whole[name]))


def test_cuda_graphs_raise_on_a_cpu() -> None:
    fabric = make_fabric("cpu")
    resolved = resolve_performance(PerformanceOptions(), fabric)
    assert (resolved.channels_last, resolved.fused_optimiser, resolved.cuda_graphs) == (False, False, False)
    with pytest.raises(UserError, match="needs one CUDA device"):
        resolve_performance(PerformanceOptions(cuda_graphs=True), fabric)


def test_only_trusted_code_is_captured_by_default() -> None:
    class Counting(torch.nn.Linear):
        """A user's network."""

    def user_objective(model: Any, batch: Batch) -> dict[str, Tensor]:
        return {}

    assert step_module.is_trusted_code(partial(duc, beta=0.5), make_model())
    assert step_module.is_trusted_code(duc, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 4)))
    assert not step_module.is_trusted_code(user_objective, make_model())
    assert not step_module.is_trusted_code(
        wraps(duc)(user_objective), make_model()
    )  # `wraps` copies the name of a trusted function
    assert not step_module.is_trusted_code(duc, torch.nn.Sequential(Counting(3, 4)))


@pytest.fixture
def same_bits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deterministic kernels in full float32, for one test."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield
    torch.use_deterministic_algorithms(False)


def losses_of(
    fabric: Fabric,
    image_placement: Placement,
    *,
    graphs: bool,
    clip: float | None = None,
    target_batching: TargetBatching = "separate",
) -> tuple[list[float], Step]:
    """Return the losses of fifty steps, and the step."""
    # A size that pooling halves twice: adaptive pooling has no deterministic gradient.
    views = StreamViews(*[replace(view, size=16) for view in (JITTERED, JITTERED, VIEWS.unlabelled)])
    data = toy(size=16)
    source, pool = placement.place_images([data.source.images, data.pool], fabric.device, image_placement)
    bare = make_model().to(memory_format=torch.channels_last)
    model, stepper = fabric.setup(bare, make_optimiser(bare.network, OPTIMISATION, fused=True))
    step = Step(
        model,
        stepper,
        duc,
        fabric,
        use_cuda_graphs=graphs,
        max_grad_norm=clip,
        target_batching=target_batching,
    )
    model.train()
    streams = Streams(replace(data.source, images=source), pool, views, BATCH, STEPS, seed=0)
    losses = [
        torch.stack(list(step(batch, inverse_decay(n)).values())).sum().clone()
        for n, batch in enumerate(streams.epoch(0, targets(len(pool)), fabric))
    ]
    return torch.stack(losses).tolist(), step


def test_captured_steps_equal_eager_ones(fake_graphs: type[FakeGraph]) -> None:
    fabric = make_fabric("cpu")
    plain, _ = losses_of(fabric, "host", graphs=False)
    captured, step = losses_of(fabric, "host", graphs=True)
    assert captured == pytest.approx(plain, rel=1e-5)
    assert [graph.replays for graph in fake_graphs.made] == [STEPS - 1]
    assert len(step._captured) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("same_bits")
@pytest.mark.parametrize("image_placement", ["device", "host"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_captured_steps_equal_eager_ones_on_a_gpu(image_placement: Placement, clip: float | None) -> None:
    fabric = make_fabric("cuda", precision="32-true", deterministic=True)
    plain, _ = losses_of(fabric, image_placement, graphs=False, clip=clip)
    captured, step = losses_of(fabric, image_placement, graphs=True, clip=clip)
    assert captured == pytest.approx(plain, rel=1e-5)
    assert len(step._captured) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("same_bits")
def test_captured_steps_with_joint_target_batches_on_a_gpu() -> None:
    fabric = make_fabric("cuda", precision="32-true", deterministic=True)
    plain, _ = losses_of(fabric, "device", graphs=False, target_batching="joint")
    captured, _ = losses_of(fabric, "device", graphs=True, target_batching="joint")
    separate, _ = losses_of(fabric, "device", graphs=True)
    assert captured == pytest.approx(plain, rel=1e-5)
    assert captured != pytest.approx(separate, rel=1e-3)
