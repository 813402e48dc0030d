"""Training steps equal those of a plain PyTorch loop, with all performance options."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ClassVar, Literal

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ducats.data.domain import UNLABELLED, Images
from ducats.data.toy import toy
from ducats.data.views import apply_view, sample_view_params
from ducats.models import EvidentialModel, small_cnn
from ducats.objectives import Batch, LabelledImages, Losses, duc
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

STEPS, BATCH = 25, 16
# A size that pooling halves twice: adaptive pooling has no deterministic gradient on a GPU.
JITTERED = View(crop="random_resized", size=16, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1))
VIEWS = StreamViews(source=JITTERED, labelled=JITTERED, unlabelled=View(crop="random", size=16, pad=1))
OPTIMISATION = Optimisation(lr=4e-3, lr_multipliers={"backbone": 0.1})
PLAIN = Optimisation(lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0, lr_multipliers={})


def make_model() -> EvidentialModel:
    with global_seed(0, "model"):
        return EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8))


def targets(pool: int) -> Tensor:
    known = torch.full((pool,), UNLABELLED)
    known[:20] = torch.arange(20) % 4
    return known


def plain_stream(name: str, images: Images, items: Tensor, split: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and indices of the batches of a stream, augmented image by image."""
    view: View = getattr(VIEWS, name)
    batches = list(shuffled_batches(items, BATCH, STEPS, make_generator(0, name, "order", 0), split))
    index = torch.cat(batches)
    aug_params = sample_view_params(view, len(index), 16, 16, make_generator(0, name, "view", 0))
    augmented = [
        apply_view(images.pixels[int(i)][None], view, row[None])
        for i, row in zip(index, aug_params, strict=True)
    ]
    return zip(torch.cat(augmented).split([len(batch) for batch in batches]), batches, strict=True)


@pytest.fixture(scope="module")
def plain_losses() -> list[float]:
    """Losses of a plain loop."""
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


def our_losses(
    options: PerformanceOptions,
    fabric: Fabric,
    *,
    image_placement: Placement = "host",
    clip: float | None = None,
    target_batching: TargetBatching = "separate",
    optimisation: Optimisation = OPTIMISATION,
) -> list[float]:
    data, resolved = toy(size=16), resolve_performance(options, fabric)
    source, pool = placement.place_images([data.source.images, data.pool], fabric.device, image_placement)
    bare = make_model()
    if resolved.channels_last:
        bare.to(memory_format=torch.channels_last)
    graphs = bool(resolved.cuda_graphs)
    optimiser = make_optimiser(
        bare.network, optimisation, fused=bool(resolved.fused_optimiser), capturable=graphs
    )
    model, stepper = fabric.setup(bare, optimiser)
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
    streams = Streams(replace(data.source, images=source), pool, VIEWS, BATCH, STEPS, seed=0)
    losses = [
        float(torch.stack(list(step(batch, inverse_decay(n)).values())).sum())
        for n, batch in enumerate(streams.epoch(0, targets(len(pool)), fabric))
    ]
    assert len(step._captured) == int(graphs)
    return losses


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
def test_steps_equal_those_of_a_plain_loop(plain_losses: list[float], options: PerformanceOptions) -> None:
    ours = our_losses(options, make_fabric("cpu"))
    assert ours == pytest.approx(plain_losses, rel=1e-5)
    assert ours[-1] < ours[0]


def test_bfloat16_is_close(plain_losses: list[float]) -> None:
    ours = our_losses(PerformanceOptions(), make_fabric("cpu", precision="bf16-mixed"))
    assert ours == pytest.approx(plain_losses, rel=0.05)
    assert ours != pytest.approx(plain_losses, rel=1e-5)


def test_joint_target_batches_change_the_batch_statistics(plain_losses: list[float]) -> None:
    joint = our_losses(PerformanceOptions(), make_fabric("cpu"), target_batching="joint")
    assert joint[0] != pytest.approx(plain_losses[0], rel=1e-3)


@pytest.fixture
def same_bits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deterministic kernels in full float32, for one test."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.usefixtures("same_bits")
@pytest.mark.parametrize("image_placement", ["device", "host"])
@pytest.mark.parametrize(
    ("clip", "target_batching", "optimiser"),
    [
        (None, "separate", "sgd"),
        (0.05, "separate", "sgd"),
        (None, "joint", "sgd"),
        (0.05, "separate", "adamw"),
    ],
)
def test_captured_steps_equal_eager_ones_on_a_gpu(
    image_placement: Placement,
    clip: float | None,
    target_batching: TargetBatching,
    optimiser: Literal["sgd", "adamw"],
) -> None:
    fabric = make_fabric("cuda", precision="32-true", deterministic=True)
    eager, captured = (
        our_losses(
            PerformanceOptions(channels_last=True, fused_optimiser=True, cuda_graphs=graphs),
            fabric,
            image_placement=image_placement,
            clip=clip,
            target_batching=target_batching,
            optimisation=replace(OPTIMISATION, optimiser=optimiser),
        )
        for graphs in (False, True)
    )
    assert captured == pytest.approx(eager, rel=1e-5)


# ---- single steps


def make_step(optimisation: Optimisation = OPTIMISATION, **options: Any) -> Step:
    fabric, bare = make_fabric("cpu"), make_model()
    wrapped, stepper = fabric.setup(bare, make_optimiser(bare.network, optimisation, fused=True))
    wrapped.train()
    return Step(wrapped, stepper, duc, fabric, **options)


def batch_of(labelled: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def some(count: int) -> LabelledImages:
        images = torch.rand(count, 3, 12, 12, generator=generator)
        return LabelledImages(images, torch.randint(4, (count,), generator=generator))

    known = some(labelled) if labelled else None
    return Batch(some(8), known, torch.rand(8, 3, 12, 12, generator=generator))


def floats(losses: Losses) -> dict[str, float]:
    return {name: float(value) for name, value in losses.items()}


def weight_update(clip: float | None) -> Tensor:
    """Return the weight update of plain SGD with learning rate 1, which is the clipped gradient."""
    step = make_step(PLAIN, max_grad_norm=clip)
    before = nn.utils.parameters_to_vector(step.model.parameters()).detach().double()
    step(batch_of(4, 0), 1.0)
    return before - nn.utils.parameters_to_vector(step.model.parameters()).detach().double()


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 1.01])
def test_clipping_keeps_the_direction_of_the_gradient(share: float) -> None:
    free = weight_update(None)
    clip = share * float(free.norm())
    clipped = weight_update(clip)
    if share > 1:  # a small gradient is unchanged bit for bit
        assert torch.equal(clipped, free)
    else:
        assert float(clipped.norm()) == pytest.approx(clip, rel=1e-4)
        assert torch.allclose(clipped / clipped.norm(), free / free.norm(), atol=1e-4)


def test_the_source_weight_scales_only_source_losses() -> None:
    whole, half = (floats(make_step()(batch_of(4, 0), 1.0, weight)) for weight in (1.0, 0.5))
    assert half == pytest.approx(
        {name: value / 2 if name.startswith("source/") else value for name, value in whole.items()}
    )


def test_loaded_momentum_has_the_layout_of_its_weights() -> None:
    states = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        network = nn.Conv2d(3, 4, 3).to(memory_format=layout)
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


# ---- captured steps


class FakeGraph:
    """A fake CUDA graph: capture has no effect, replay runs the step."""

    made: ClassVar[list["FakeGraph"]] = []

    def __init__(self, act: Any) -> None:
        self.act, self.replays = act, 0
        FakeGraph.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        self.act()


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> type[FakeGraph]:
    """Captured steps without a GPU: a replay runs the step again on the same buffers."""
    FakeGraph.made = []

    def capture(self: Step, batch: Batch, source_weight: float) -> step_module.CapturedStep:
        static_batch, losses = step_module._map_tensors(batch, torch.clone), dict[str, Tensor]()

        def act() -> None:
            for name, loss in self._run_eagerly(static_batch, source_weight).items():
                losses.setdefault(name, torch.zeros(())).copy_(loss)

        return step_module.CapturedStep(FakeGraph(act), static_batch, losses)

    monkeypatch.setattr(Step, "_capture", capture)
    return FakeGraph


def test_a_captured_step_reads_new_batches_rates_and_weights(fake_graphs: type[FakeGraph]) -> None:
    captured, plain = (make_step(use_cuda_graphs=graphs, max_grad_norm=0.05) for graphs in (True, False))
    work = [(0, 1.0), (0, 1.0), (4, 1.0), (0, 1.0), (4, 1.0), (4, 1.0), (4, 0.5), (4, 0.5), (4, 0.5)]
    for seed, (labelled, weight) in enumerate([*work, (0, 1.0)]):
        batch = batch_of(labelled, seed)
        one, two = (floats(step(batch, 1 / (1 + seed), weight)) for step in (captured, plain))
        assert one == pytest.approx(two)
    # The first step of each shape and weight runs eagerly, the second is captured, and the graph is replayed.
    assert [graph.replays for graph in fake_graphs.made] == [3, 2, 2]


@pytest.mark.usefixtures("fake_graphs")
def test_label_maps_of_another_dtype_need_another_graph() -> None:
    """An int8 buffer would overflow for classes above 127."""

    def sums(model: Any, batch: Batch) -> dict[str, Tensor]:
        assert batch.target is not None
        return {"target/sum": batch.target.labels.double().sum() + 0 * next(model.parameters()).sum()}

    step = make_step(use_cuda_graphs=True)
    step.objective = sums
    for kind, value in ((torch.int8, 100), (torch.int8, 101), (torch.int16, 200), (torch.int16, 300)):
        labelled = LabelledImages(torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), value, dtype=kind))
        assert float(step(Batch(labelled, None, None, labelled), 1.0)["target/sum"]) == 32 * value


@pytest.mark.usefixtures("fake_graphs")
def test_learning_rates_are_floats_after_an_epoch() -> None:
    step, steps_done = make_step(use_cuda_graphs=True), list[int]()
    fit_epoch(
        step,
        [batch_of(0, seed) for seed in range(4)],
        lambda _: 1.0,
        first_step=0,
        fabric=step.fabric,
        on_step=lambda done, _: steps_done.append(done),
    )
    rates = [group["lr"] for group in step.optimiser.param_groups]
    assert all(isinstance(rate, float) for rate in rates)
    assert sorted(rates) == pytest.approx([4e-4, 4e-3])
    assert steps_done == [1, 2, 3, 4]


def test_unused_graphs_are_dropped(fake_graphs: type[FakeGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "GRAPH_EVICTION_STEPS", 10)
    step = make_step(use_cuda_graphs=True)
    for labelled in range(2, 2 + step_module.MAX_CUDA_GRAPHS + 3):
        for seed in range(2):
            step(batch_of(labelled, seed), 1.0)
    assert len(step._captured) == step_module.MAX_CUDA_GRAPHS
    assert len(fake_graphs.made) == step_module.MAX_CUDA_GRAPHS + 3


def test_more_shapes_than_graphs_do_not_thrash(fake_graphs: type[FakeGraph]) -> None:
    step = make_step(use_cuda_graphs=True)
    for seed in range(4):
        for labelled in range(2, 2 + step_module.MAX_CUDA_GRAPHS + 2):
            step(batch_of(labelled, seed), 1.0)
    assert len(fake_graphs.made) == step_module.MAX_CUDA_GRAPHS  # the others run eagerly


def test_a_step_that_cannot_be_captured_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    step, plain = make_step(use_cuda_graphs=True), make_step()
    step(batch_of(2, 9), 1.0), plain(batch_of(2, 9), 1.0)
    with pytest.warns(UserWarning, match="cannot be captured .*engine.cuda_graphs=false"):
        step(batch_of(2, 8), 1.0), plain(batch_of(2, 8), 1.0)
    for seed in range(3):
        one, two = (floats(s(batch_of(2, seed), 1.0)) for s in (step, plain))
        assert one == pytest.approx(two)
    assert not step.use_cuda_graphs


def test_cuda_graphs_raise_on_a_cpu() -> None:
    fabric = make_fabric("cpu")
    resolved = resolve_performance(PerformanceOptions(), fabric)
    assert (resolved.channels_last, resolved.fused_optimiser, resolved.cuda_graphs) == (False, False, False)
    with pytest.raises(UserError, match="needs one CUDA device"):
        resolve_performance(PerformanceOptions(cuda_graphs=True), fabric)


def test_only_trusted_code_is_captured_by_default() -> None:
    class Counting(nn.Linear):
        """A user's network."""

    def user_objective(model: Any, batch: Batch) -> dict[str, Tensor]:
        return {}

    torch_network = nn.Sequential(nn.Flatten(), nn.Linear(3, 4))
    cases: list[tuple[Any, nn.Module, bool]] = [
        (partial(duc, beta=0.5), make_model(), True),
        (duc, torch_network, True),
        (user_objective, torch_network, False),
        (wraps(duc)(user_objective), torch_network, False),  # `wraps` copies the name of a trusted function
        (duc, nn.Sequential(Counting(3, 4)), False),
    ]
    for objective, network, is_trusted in cases:
        assert step_module.is_trusted_code(objective, network) == is_trusted
