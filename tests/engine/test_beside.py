"""What stands beside the model: it learns, tells, looks, labels, and is restored with the run."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import quick, quick_pixels
from ducats import records
from ducats.assemble import assemble
from ducats.domain import UNLABELLED
from ducats.engine.processes import make_fabric
from ducats.objectives import Batch, Beside, Companion, Labelled, Look, Losses, Moment, Remembered, Training
from ducats.objectives.companion import Still, reverse_gradient
from ducats.objectives.softmax import softmax
from ducats.objectives.witnesses import Discriminator
from ducats.queries import Strategy
from ducats.rows import Output, Slate, best
from ducats.run import run
from ducats.rundir import RunDir


class Tiny(nn.Module):
    """Images of one pixel to two logits and three features, with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.seen, self.head = nn.BatchNorm1d(1), nn.Linear(1, 3), nn.Linear(3, 2)
        self.calls = 0

    def forward(self, images: Tensor) -> Output:
        self.calls += 1
        features = self.seen(self.norm(images.flatten(1)))
        return Output(self.head(features), features)


def images(seed: int, count: int = 6) -> Tensor:
    return torch.randn(count, 1, 1, 1, generator=torch.Generator().manual_seed(seed))


def test_the_same_images_pass_once_in_a_step() -> None:
    model, some = Tiny(), images(0)
    remembered = Remembered(model)
    assert remembered(some) is remembered(some)
    assert model.calls == 1
    assert remembered.aside(some) is remembered.aside(some)
    assert model.calls == 2


def test_aside_leaves_no_trace() -> None:
    model = Tiny().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    some = images(1)
    remembered = Remembered(model)
    output = remembered.aside(some)
    assert not output.z.requires_grad
    torch.testing.assert_close(output.z, copy.deepcopy(model).eval()(some).z.detach())
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_reversed_gradients() -> None:
    x = torch.ones(3, requires_grad=True)
    (reverse_gradient(x, 0.5) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-0.5, -1.0, -1.5]


def test_a_still_copy_follows_only_when_told() -> None:
    model = Tiny()
    still = Still(model)
    copied = still.model
    assert isinstance(copied, Tiny)
    nn.ModuleList([still]).train()  # also when the whole is put into training
    assert not still.model.training
    with torch.no_grad():
        first = model.head.weight.clone()
        model.head.weight.add_(1.0)
    assert torch.equal(copied.head.weight, first)
    still.follow(0.25)
    torch.testing.assert_close(copied.head.weight, first + 0.25)
    still.follow()
    torch.testing.assert_close(copied.head.weight, first + 1.0)
    assert not any(p.requires_grad for p in still.parameters())
    assert len(list(still.parameters())) == len(list(model.parameters()))


def test_a_discriminator_learns_to_tell_the_domains_apart() -> None:
    torch.manual_seed(0)
    model = Tiny()
    witness = Discriminator(Beside(model, 2, 3, 6, pixels=False), hidden=16)
    optimiser = torch.optim.SGD(witness.parameters(), lr=0.1)
    source, target = images(0) + 3, images(1) - 3
    batch = Batch(Labelled(source, torch.zeros(6, dtype=torch.long)), None, target)
    for _ in range(60):
        optimiser.zero_grad()
        witness.losses(Remembered(model), batch)["witness/domain"].backward()
        optimiser.step()
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    assert witness.tell(model(source))["domain"].min() > 0.8
    assert witness.tell(model(target))["domain"].max() < 0.2


# ---- in a run


class Diary(Companion):
    """Keeps what it saw, labels the first image of the pool itself, and learns a number."""

    seen: Tensor
    own: Tensor

    def __init__(self, beside: Beside, *, start: float = 0.0) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(start))
        self.register_buffer("seen", torch.zeros(0, 2))
        self.register_buffer("own", torch.full((beside.pool,), UNLABELLED))

    def due(self, moment: Moment) -> bool:
        return moment.question == 1

    def refresh(self, moment: Moment, look: Look) -> None:
        found = torch.cat([index for index, _ in look.pool()])
        assert found.tolist() == list(range(len(self.own)))
        assert sum(len(index) for index, _ in look.source()) == len(look.labels)
        assert look.targets is not None
        self.own[0] = 1

    def own_labels(self) -> Tensor | None:
        return self.own

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        return {}


CERTAIN: list[int] = []


def noted(model: Any, batch: Batch, diary: Diary, *, pull: float = 1.0) -> Losses:
    losses = softmax(model, batch)
    if batch.certain is not None:
        CERTAIN.append(len(batch.certain.labels))
        assert set(batch.certain.labels.tolist()) == {1}
    if batch.strong is not None:
        assert batch.unlabelled is not None
        assert batch.strong.shape == batch.unlabelled.shape
        assert not torch.equal(batch.strong, batch.unlabelled)
    losses["diary"] = pull * (diary.number - 2.0) ** 2
    return losses


NOTED = Training(noted, Diary, strong=lambda knobs: True)


def go(
    folder: Path,
    objective: Training,
    query: Strategy | None = None,
    stop: int | None = None,
    settings: tuple[str, ...] = (),
) -> RunDir:
    config = quick("query.name=random", *settings, method="random")
    parts, plan = assemble(config, RunDir(folder))
    parts = replace(parts, objective=objective, query=query or parts.query)
    fabric = make_fabric("cpu")
    fabric.launch()

    def listen(event: Any) -> None:
        if stop is not None and event.phase == "train" and event.step == stop:
            raise KeyboardInterrupt

    return run(parts, plan, folder, fabric=fabric, listen=listen)


def test_knobs_go_to_the_loss_and_to_the_companion() -> None:
    assert list(NOTED.signature.parameters) == ["model", "batch", "pull", "start"]
    bound = NOTED.bound({"pull": 3.0, "start": 1.5})
    assert bound.companion is not None
    assert bound.companion(Beside(Tiny(), 2, 3, 4, pixels=False)).number == 1.5
    assert list(bound.signature.parameters) == ["model", "batch", "pull", "start"]


def test_companion_and_its_labels_in_a_run_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    CERTAIN.clear()
    whole = go(tmp_path / "whole", NOTED)
    assert CERTAIN
    assert set(CERTAIN) == {2}  # one image, doubled for the batch statistics
    first = whole.bought().keys[0]
    assert first not in [entry.key for entry in whole.bought().entries()]
    assert records_of(whole)[-1]["losses"]["diary"] < records_of(whole)[0]["losses"]["diary"]
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", NOTED, stop=20)
    cut = go(tmp_path / "cut", NOTED)
    assert records_of(whole) == records_of(cut)
    assert (whole.folder / "model.safetensors").read_bytes() == (
        cut.folder / "model.safetensors"
    ).read_bytes()


def records_of(home: RunDir) -> list[dict[str, Any]]:
    lines = [line for line in records.read(home.metrics) if line["kind"] == "epoch"]
    return [json.loads(json.dumps({k: v for k, v in line.items() if k != "seconds"})) for line in lines]


def foreign(slate: Slate) -> Tensor:
    """Least like the source."""
    return best(-slate.candidates.column("domain"), slate.budget, slate.candidates)


def of_source(slate: Slate) -> Tensor:
    """Reads all that can be read."""
    assert slate.source is not None
    assert slate.head is not None
    assert slate.source.features.shape[1] == slate.head.shape[1]
    return best(slate.candidates.column("entropy"), slate.budget, slate.candidates)


def test_a_query_gets_the_witness_that_it_needs(tmp_path: Path) -> None:
    plain, asked = Training(softmax), Strategy(foreign, needs=("domain",))
    home = go(tmp_path / "witness", plain, asked)
    losses = records_of(home)
    assert losses[-1]["losses"]["witness/domain"] < losses[0]["losses"]["witness/domain"]
    # A witness leaves the model alone: until the first question it is the model of a run without one.
    without = go(tmp_path / "without", plain)
    assert losses[0]["losses"]["source/nll"] == records_of(without)[0]["losses"]["source/nll"]


def test_a_witness_leaves_the_model_alone_where_gradients_are_shortened(tmp_path: Path) -> None:
    asked = Strategy(foreign, needs=("domain",))
    with_one, without = (
        go(tmp_path / name, Training(softmax), query, settings=("train.clip=0.01",))
        for name, query in (("with", asked), ("without", None))
    )
    first, other = (records_of(home)[0]["losses"]["source/nll"] for home in (with_one, without))
    assert first == other


def test_knobs_add_up() -> None:
    twice = NOTED.bound({"pull": 3.0}).bound({"start": 1.5})
    assert twice.knobs == {"pull": 3.0, "start": 1.5}
    assert twice.wants_strong()


def test_a_query_reads_source_and_head(tmp_path: Path) -> None:
    go(
        tmp_path / "run",
        Training(softmax),
        Strategy(of_source, ("entropy",), source=("features",), head=True),
    )


def test_adversarial_training_of_images_and_of_pixels(tmp_path: Path) -> None:
    for number, config in enumerate(
        [
            quick("objective={name: adversarial, knobs: {hidden: 8}}", method="entropy"),
            quick_pixels("objective={name: adversarial, knobs: {hidden: 8}}", method="entropy"),
        ]
    ):
        folder = tmp_path / str(number)
        parts, plan = assemble(config, RunDir(folder))
        home = run(parts, plan, folder, fabric=make_fabric("cpu"), identity=config.identity())
        names = records_of(home)[-1]["losses"]
        assert {"source/nll", "labelled/nll", "domain/nll", "unlabelled/entropy"} <= names.keys()
