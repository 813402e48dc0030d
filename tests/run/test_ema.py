"""Moving average of the weights: against a plain loop, in a whole run, and after a kill."""

import os
import signal
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from timm.utils import ModelEmaV3  # type: ignore[attr-defined] # not marked as exported
from torch import nn

import ranks
from child_process import run_in_child
from conftest import Runner
from ducats.config import load_config
from ducats.run import loop
from ducats.run.context import RunContext
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.training.ema import averaged_weights, make_ema
from ducats.utils.errors import UserError
from ducats.utils.progress import Event

DECAY = 0.7
FROZEN = (
    "model={name: timm, params: {backbone: test_resnet, pretrained: false, bottleneck: 16}}",
    "model.freeze=backbone",
)
EMA = (f"train.ema_decay={DECAY}", "train.optimiser=adamw", "train.lr=0.01")


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_the_average_equals_a_plain_loop() -> None:
    network = make_network()
    ema = make_ema(network, DECAY, make_fabric("cpu"))
    assert ema is not None
    expected = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for step in range(1, 12):
        for name, tensor in network.state_dict().items():
            tensor.add_(torch.full_like(tensor, 2 if name.endswith("tracked") else 0.1 * step))
        ema.update(network, step)
        decay = min(DECAY, 1 - step ** (-2 / 3))  # 0, 0.37, 0.52, 0.60, 0.66, 0.70, 0.70, ...
        for name, tensor in network.state_dict().items():
            average = decay * expected[name] + (1 - decay) * tensor
            expected[name] = average if tensor.is_floating_point() else tensor.clone()
    for name, tensor in ema.module.state_dict().items():
        torch.testing.assert_close(tensor, expected[name])


def test_weights_are_swapped_within_the_context_only() -> None:
    network, images = make_network().eval(), torch.rand(5, 3)
    ema = ModelEmaV3(network, decay=DECAY)
    addresses = [tensor.data_ptr() for tensor in network.state_dict().values()]
    with torch.no_grad():
        for tensor in network.parameters():
            tensor.add_(1.0)
        current, average = network(images), ema.module(images)
        assert not torch.equal(current, average)
        with suppress(KeyError), averaged_weights(network, ema):
            assert torch.equal(network(images), average)
            raise KeyError
        assert torch.equal(network(images), current)
        assert torch.equal(ema.module(images), average)
    assert [tensor.data_ptr() for tensor in network.state_dict().values()] == addresses


def test_fsdp_is_rejected() -> None:
    with pytest.raises(UserError, match=r"train\.ema_decay cannot be combined with engine\.strategy=fsdp"):
        make_ema(make_network(), DECAY, make_fabric("cpu", strategy="fsdp"))
    with pytest.raises(UserError, match=r"train\.ema_decay cannot be combined with engine\.strategy=fsdp"):
        load_config([], ["train.ema_decay=0.9", "engine.strategy=fsdp"])


def load_state(run_folder: RunFolder) -> dict[str, Any]:
    return dict(torch.load(run_folder.checkpoint_path, weights_only=True))


def test_the_average_is_evaluated_queried_and_saved(
    run_quickly: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights themselves are trained as in a run without an average, until labels differ."""
    steps = Counter[str]()

    def check_weights(name: str) -> None:
        genuine = getattr(loop, name)

        def check(context: RunContext, *rest: Any) -> Any:
            if context.ema is not None:
                steps[name] += 1
                average = load_state(context.run_folder)["ema"]
                for key, tensor in context.model.network.state_dict().items():
                    assert torch.equal(tensor, average[key])
            return genuine(context, *rest)

        monkeypatch.setattr(loop, name, check)

    for name in ("evaluate_epoch", "select_request", "save_snapshot"):
        check_weights(name)
    # A random query selects the same labels with any weights.
    settings = (*EMA[1:], "query={name: random}")
    plain, averaged = (run_quickly(*settings, *more, folder=str(more)) for more in ((), EMA[:1]))
    assert steps == {"evaluate_epoch": 5, "select_request": 2, "save_snapshot": 3}
    state, saved = load_state(averaged), load_file(averaged.model_path)
    for name, tensor in load_state(plain)["network"].items():
        assert torch.equal(state["network"][name], tensor)
        assert torch.equal(state["ema"][name], saved[name])
    assert not torch.equal(saved["head.weight"], state["network"]["head.weight"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("phase", "count", "settings"), [("train", 9, ()), ("query", 2, ()), ("query", 2, FROZEN)]
)
def test_a_killed_run_resumes_bit_for_bit(
    run_quickly: Runner, phase: str, count: int, settings: tuple[str, ...]
) -> None:
    n_events = 0

    def on_event(event: Event) -> None:
        nonlocal n_events
        n_events += event.phase == phase
        if n_events == count:
            ranks.die()

    def finish(folder: str, **options: Any) -> RunFolder:
        return run_quickly(*EMA, *settings, folder=folder, **options)

    assert run_in_child(lambda: finish("killed", on_event=on_event)) == -signal.SIGKILL
    undisturbed, resumed = finish("whole"), finish("killed")
    assert ranks.outcome(resumed.path) == ranks.outcome(undisturbed.path)
    one, other = load_state(undisturbed), load_state(resumed)
    assert one["network"].keys() == one["ema"].keys()  # neither has the frozen backbone
    for name in ("network", "ema"):
        assert all(torch.equal(tensor, other[name][key]) for key, tensor in one[name].items())
    for number, values in one["optimiser"]["state"].items():
        assert all(torch.equal(v, other["optimiser"]["state"][number][key]) for key, v in values.items())
