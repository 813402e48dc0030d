"""Auxiliary modules: training, extra columns, refreshes, pseudo-labels, checkpoints."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import quick
from ducats.acquisition.queries import QuerySpec
from ducats.acquisition.samples import QueryContext, top_k
from ducats.data.domain import UNLABELLED
from ducats.ledger import load_ledger
from ducats.models.output import Output
from ducats.objectives import (
    AuxiliaryContext,
    AuxiliaryModule,
    Batch,
    CachedForward,
    FullPass,
    LabelledImages,
    Losses,
    ObjectiveSpec,
    RefreshContext,
)
from ducats.objectives.auxiliary import FrozenCopy, reverse_gradient
from ducats.objectives.probes import Discriminator
from ducats.objectives.softmax import softmax
from ducats.run import run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from present import present


class Tiny(nn.Module):
    """Maps images of one pixel to two logits and three features, with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.hidden, self.head = nn.BatchNorm1d(1), nn.Linear(1, 3), nn.Linear(3, 2)
        self.calls = 0

    def forward(self, images: Tensor) -> Output:
        self.calls += 1
        features = self.hidden(self.norm(images.flatten(1)))
        return Output(self.head(features), features)


def images(seed: int, count: int = 6) -> Tensor:
    return torch.randn(count, 1, 1, 1, generator=torch.Generator().manual_seed(seed))


def test_outputs_are_cached_within_a_step() -> None:
    model, some = Tiny(), images(0)
    cached = CachedForward(model)
    assert cached(some) is cached(some)
    assert model.calls == 1
    assert cached.eval_forward(some) is cached.eval_forward(some)
    assert model.calls == 2


def test_eval_forward_changes_nothing() -> None:
    model = Tiny().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    some = images(1)
    cached = CachedForward(model)
    output = cached.eval_forward(some)
    assert not output.z.requires_grad
    torch.testing.assert_close(output.z, copy.deepcopy(model).eval()(some).z.detach())
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_gradient_reversal() -> None:
    x = torch.ones(3, requires_grad=True)
    (reverse_gradient(x, 0.5) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert present(x.grad).tolist() == [-0.5, -1.0, -1.5]


def test_a_frozen_copy_changes_only_by_updates() -> None:
    model = Tiny()
    frozen = FrozenCopy(model)
    copied = frozen.model
    assert isinstance(copied, Tiny)
    nn.ModuleList([frozen]).train()  # even if the parent is set to training mode
    assert not frozen.model.training
    with torch.no_grad():
        first = model.head.weight.clone()
        model.head.weight.add_(1.0)
    assert torch.equal(copied.head.weight, first)
    frozen.ema_update(0.25)
    torch.testing.assert_close(copied.head.weight, first + 0.25)
    frozen.ema_update()
    torch.testing.assert_close(copied.head.weight, first + 1.0)
    assert not any(p.requires_grad for p in frozen.parameters())
    assert len(list(frozen.parameters())) == len(list(model.parameters()))


def test_a_discriminator_learns_to_separate_the_domains() -> None:
    torch.manual_seed(0)
    model = Tiny()
    probe = Discriminator(AuxiliaryContext(model, 2, 3, 6, per_pixel=False), hidden=16)
    optimiser = torch.optim.SGD(probe.parameters(), lr=0.1)
    source, target = images(0) + 3, images(1) - 3
    batch = Batch(LabelledImages(source, torch.zeros(6, dtype=torch.long)), None, target)
    for _ in range(60):
        optimiser.zero_grad()
        probe.losses(CachedForward(model), batch)["probe/domain"].backward()
        optimiser.step()
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    assert probe.extra_columns(model(source))["domain"].min() > 0.8
    assert probe.extra_columns(model(target))["domain"].max() < 0.2


# ---- in a run


class ToyAuxiliary(AuxiliaryModule):
    """Trains a number and pseudo-labels the first image of the pool."""

    labels: Tensor

    def __init__(self, context: AuxiliaryContext, *, start: float = 0.0) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(start))
        self.register_buffer("labels", torch.full((context.pool_size,), UNLABELLED))

    def is_due(self, context: RefreshContext) -> bool:
        return context.next_round == 1

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        found = torch.cat([index for index, _ in full_pass.pool()])
        assert found.tolist() == list(range(len(self.labels)))
        assert full_pass.pool_labels is not None
        self.labels[0] = 1

    def pseudo_labels(self) -> Tensor | None:
        return self.labels

    def extra_columns(self, output: Output) -> Mapping[str, Tensor]:
        return {}


PSEUDO_LABELLED_SIZES: list[int] = []


def toy_loss(model: Any, batch: Batch, auxiliary: ToyAuxiliary, *, pull: float = 1.0) -> Losses:
    losses = softmax(model, batch)
    if batch.pseudo_labelled is not None:
        PSEUDO_LABELLED_SIZES.append(len(batch.pseudo_labelled.labels))
        assert set(batch.pseudo_labelled.labels.tolist()) == {1}
    if batch.strong is not None:
        assert batch.unlabelled is not None
        assert batch.strong.shape == batch.unlabelled.shape
        assert not torch.equal(batch.strong, batch.unlabelled)
    losses["toy"] = pull * (auxiliary.number - 2.0) ** 2
    return losses


TOY_OBJECTIVE = ObjectiveSpec(toy_loss, ToyAuxiliary, strong_view_if=lambda params: True)


def run_toy(
    folder: Path, objective: ObjectiveSpec, *settings: str, query: QuerySpec | None = None
) -> RunFolder:
    components, plan = build_run(quick(*settings, method="random"), RunFolder(folder))
    components = replace(components, objective=objective, query=query or components.query)
    return run(components, plan, folder, fabric=make_fabric("cpu"))


def test_params_reach_the_loss_and_the_auxiliary_module() -> None:
    assert list(TOY_OBJECTIVE.signature.parameters) == ["model", "batch", "pull", "start"]
    bound = TOY_OBJECTIVE.bind({"pull": 3.0}).bind({"start": 1.5})
    assert bound.params == {"pull": 3.0, "start": 1.5}
    assert bound.auxiliary is not None
    assert bound.auxiliary(AuxiliaryContext(Tiny(), 2, 3, 4, per_pixel=False)).number == 1.5
    assert list(bound.signature.parameters) == ["model", "batch", "pull", "start"]
    assert bound.needs_strong_view()


def test_auxiliary_module_and_pseudo_labels_in_a_run(tmp_path: Path) -> None:
    PSEUDO_LABELLED_SIZES.clear()
    whole = run_toy(tmp_path / "whole", TOY_OBJECTIVE)
    assert PSEUDO_LABELLED_SIZES
    assert set(PSEUDO_LABELLED_SIZES) == {2}  # one image, repeated for the batch statistics
    ledger = load_ledger(whole)
    assert ledger.keys[0] not in [entry.key for entry in ledger.entries()]
    losses = losses_of(whole)
    assert losses[-1]["toy"] < losses[0]["toy"]


def losses_of(run_folder: RunFolder) -> list[dict[str, float]]:
    """Return the losses of each epoch."""
    return [record["losses"] for record in run_folder.read_records("epoch")]


def least_source_like(context: QueryContext) -> Tensor:
    """Select the samples least similar to the source."""
    return top_k(-context.candidates.column("domain"), context.budget, context.candidates)


@pytest.mark.parametrize("settings", [(), ("train.clip_grad_norm=0.01",)])
def test_a_query_gets_the_probe_it_needs(tmp_path: Path, settings: tuple[str, ...]) -> None:
    probe_query = QuerySpec(least_source_like, needs=("domain",))
    with_probe, without = (
        losses_of(run_toy(tmp_path / name, ObjectiveSpec(softmax), *settings, query=query))
        for name, query in (("with", probe_query), ("without", None))
    )
    assert settings or with_probe[-1]["probe/domain"] < with_probe[0]["probe/domain"]
    # A probe does not affect the model: until the first query, it equals the model of a run without one.
    assert with_probe[0]["source/nll"] == without[0]["source/nll"]
