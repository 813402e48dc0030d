"""The Python API: checks before a run, and resuming."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ducats
from commands import write_images
from ducats.acquisition.queries import QUERIES, as_query_spec
from ducats.config import Config, load_config
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.deploy import load_trained_model
from ducats.ledger import Request, load_ledger
from ducats.objectives import as_objective_spec, duc, softmax
from ducats.report.method_results import summarise_runs
from ducats.report.run_reader import scan_runs
from ducats.run.checkpoint import load_checkpoint
from ducats.run.components import to_plain
from ducats.run.default_method import with_default_method
from ducats.run.factory import check_config, make_model, make_objective, make_query
from ducats.training.schedules import inverse_decay
from ducats.utils.errors import UserError
from present import present


def net(classes: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 6), nn.ReLU(), nn.Linear(6, classes))


def make_components(**changes: Any) -> ducats.Components:
    data = toy()
    oracle = ducats.GroundTruthOracle(data.ground_truth)
    components = ducats.Components(net(), data.source, data.pool, oracle, QUERIES["duc"], duc, data.test)
    return replace(components, **changes)


PLAN = ducats.RunPlan(epochs=2, query_epochs=(1,), budget=(5,), steps_per_epoch=2)


def labelled_keys(run_folder: ducats.RunResults) -> list[str]:
    return [entry.key for entry in load_ledger(run_folder).entries()]


def test_the_callers_network_is_not_changed(tmp_path: Path) -> None:
    mine = make_components()
    before = {name: tensor.clone() for name, tensor in mine.model.state_dict().items()}
    run_folders = [ducats.adapt(mine, PLAN, tmp_path / name) for name in ("a", "b")]
    assert all(torch.equal(before[n], t) for n, t in mine.model.state_dict().items())
    assert run_folders[0].stages()[-1]["nll"] == run_folders[1].stages()[-1]["nll"]
    mine.model.load_state_dict(ducats.load_model(run_folders[0]))  # how to load the trained weights


def first_images(context: ducats.QueryContext) -> Tensor:
    return torch.arange(context.budget)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ducats.RunResults:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return ducats.adapt(make_components(query=first_images), PLAN, folder)


@pytest.mark.parametrize(
    "change",
    [
        {"query": QUERIES["random"]},
        {"objective": softmax},
        {"objective": partial(duc, beta=0.5)},
        {"views": ducats.StreamViews(source=ducats.View(flip=0.5))},
        {"model": nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))},
        {"query": lambda context: torch.arange(context.budget)},
    ],
)
def test_other_components_in_the_same_folder_are_refused(
    finished: ducats.RunResults, change: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match="created with another config"):
        ducats.adapt(make_components(**{"query": first_images, **change}), PLAN, finished.path)


def test_lambdas_differ_by_their_constants() -> None:
    one, two, again = (to_plain(f) for f in (lambda s: s + 1, lambda s: s + 2, lambda s: s + 1))
    assert one == again
    assert one != two
    assert to_plain(QUERIES["duc"].fn) == "ducats.acquisition.queries.two_round.two_round"


def test_equal_components_resume(tmp_path: Path) -> None:
    slow = partial(inverse_decay, gain=0.01)
    plans = [replace(PLAN, schedule=slow, query_epochs=range(1, 2)), replace(PLAN, schedule=partial(slow))]
    first = labelled_keys(ducats.adapt(make_components(), plans[0], tmp_path / "r"))
    assert labelled_keys(ducats.adapt(make_components(), plans[1], tmp_path / "r")) == first
    other = replace(PLAN, schedule=partial(inverse_decay, gain=0.02))
    with pytest.raises(UserError, match=r"plan.schedule.params.gain: 0.01 -> 0.02"):
        ducats.adapt(make_components(), other, tmp_path / "r")


@pytest.mark.parametrize("answer", [4, -3])
def test_invalid_labels_are_not_recorded(tmp_path: Path, answer: int) -> None:
    def wrong(request: Request) -> Tensor:
        return torch.full_like(request.image, answer)

    with pytest.raises(UserError, match=rf"returned {answer} in round 1"):
        ducats.adapt(make_components(oracle=wrong), PLAN, tmp_path / "r")
    assert not (tmp_path / "r" / "labels").exists()
    run_folder = ducats.adapt(make_components(), PLAN, tmp_path / "r")  # resumes with a valid oracle
    assert len(load_ledger(run_folder)) == 5


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_an_oracle_may_return_any_sequence(tmp_path: Path, kind: Any) -> None:
    components = make_components(oracle=lambda request: kind([0] * len(request)))
    run_folder = ducats.adapt(components, PLAN, tmp_path / "r")
    assert [e.label for e in load_ledger(run_folder).entries()] == [0] * 5


def test_a_plain_query_gets_all_columns_of_the_model(tmp_path: Path) -> None:
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    columns: list[set[str]] = []

    def record_columns(context: ducats.QueryContext) -> Tensor:
        columns.append(set(context.candidates.columns))
        return torch.arange(context.budget)

    ducats.adapt(make_components(model=conv, query=record_columns), PLAN, tmp_path / "a")
    ducats.adapt(make_components(query=record_columns), PLAN, tmp_path / "b")
    assert columns == [{"z"}, {"z", "features"}]
    with pytest.raises(UserError, match="needs features, but the model returns none"):
        ducats.adapt(make_components(model=conv, query=None), PLAN, tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": net(classes=3)}, "outputs 3 classes, but the source has 4"),
        ({"model": nn.Linear(5, 4)}, r"fails on images of \(3, 8, 8\)"),
        ({"query": QUERIES["ripu_points"]}, "needs per-pixel outputs"),
        (
            {"oracle": ducats.GroundTruthOracle(torch.zeros(79, dtype=torch.long))},
            "79 labels for a pool of 80",
        ),
        (
            {"views": ducats.StreamViews(scoring=ducats.View(crop="center", size=9))},
            "views.scoring takes a center crop of 9 x 9",
        ),
        (
            {"views": ducats.StreamViews(source=ducats.View(crop="random", size=13, pad=2))},
            "views.source .* stored as 8 x 8 with 2 pixels of padding",
        ),
    ],
)
def test_inconsistent_components_are_refused_before_training(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        ducats.adapt(make_components(**change), PLAN, tmp_path / "r")
    assert not (tmp_path / "r" / "metrics.jsonl").exists()


def test_a_run_that_failed_before_training_can_be_restarted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="outputs 3 classes"):
        ducats.adapt(make_components(model=net(classes=3)), PLAN, tmp_path / "r")
    assert len(ducats.load_ledger(ducats.adapt(make_components(), PLAN, tmp_path / "r"))) == 5


def test_pixels_must_be_uint8() -> None:
    with pytest.raises(UserError, match="pixels must be uint8"):
        ducats.Images(("a",), torch.zeros(1, 3, 4, 4))


def test_an_api_run_cannot_be_evaluated_from_the_command_line(finished: ducats.RunResults) -> None:
    with pytest.raises(UserError, match="its model cannot be built"):
        load_trained_model(finished.path)


def test_default_method_of_a_run_from_python(tmp_path: Path) -> None:
    """The same as naming its parts, which are described in the config of the method only."""
    plan = replace(PLAN, epochs=3, query_epochs=(0, 1), budget=(5, 5))
    config = load_config()
    named = make_components(query=make_query(config), objective=make_objective(config))
    named_plan = replace(plan, target_batching=config.train.target_batching)
    one = ducats.adapt(named, named_plan, tmp_path / "named")
    other = ducats.adapt(replace(named, query=None, objective=None), plan, tmp_path / "default")
    assert one.identity == other.identity
    assert labelled_keys(one) == labelled_keys(other)
    assert other.read_records("pseudo_labels")


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_default_method_by_task_and_by_part(task: str) -> None:
    config = load_config([], [f"task.name={task}"])
    own: dict[str, Any] = {"query": QUERIES["random"], "objective": softmax, "target_batching": "joint"}
    default: dict[str, Any] = {
        "query": make_query(config),
        "objective": make_objective(config),
        "target_batching": config.train.target_batching,
    }
    data = toy() if task == "classification" else streets(n_source=2, n_pool=2, n_test=2, height=16, width=32)
    for given in ((), ("query",), ("objective",), ("target_batching",), tuple(own)):
        parts = {name: own[name] if name in given else None for name in own}
        plan = replace(PLAN, target_batching=parts.pop("target_batching"))
        components = make_components(source=data.source, **parts)
        components, plan = with_default_method(components, plan)
        expected = {name: own[name] if name in given else default[name] for name in own}
        assert to_plain(components.query_spec.fn) == to_plain(as_query_spec(expected["query"]).fn)
        assert to_plain(components.objective_spec) == to_plain(as_objective_spec(expected["objective"]))
        assert plan.target_batching == expected["target_batching"]


def test_paths_may_be_strings_and_ground_truth_a_list(tmp_path: Path) -> None:
    data = toy(n_source_per_class=2, n_pool=8)
    names = [data.classes[int(label)] for label in data.source.labels[:]]
    write_images(tmp_path / "source", data.source.images.pixels[:], names)
    write_images(tmp_path / "target", data.pool.pixels[:], ["."] * 8)
    own = ducats.folders(source=str(tmp_path / "source"), target=str(tmp_path / "target"), size=8)
    assert repr(own).startswith("AdaptationData(source=Domain(Images(8 of (3, 8, 8)), 4 classes)")
    with pytest.raises(UserError, match=r"has no ground truth.*ducats.HumanOracle"):
        ducats.GroundTruthOracle(own.ground_truth)
    oracle = ducats.HumanOracle(str(tmp_path / "questions"), own.pool, own.classes)
    mine = ducats.Components(net(), own.source, own.pool, oracle, QUERIES["duc"])
    with pytest.raises(ducats.AwaitingLabels, match="waits for 5 labels"):
        ducats.adapt(mine, PLAN, str(tmp_path / "r"))
    answered = replace(mine, oracle=ducats.GroundTruthOracle([0] * len(own.pool)))
    assert len(ducats.load_ledger(ducats.adapt(answered, PLAN, str(tmp_path / "r")))) == 5


def test_an_api_run_is_reported_under_its_folder_name(finished: ducats.RunResults) -> None:
    (row,) = summarise_runs(scan_runs([finished.path.parent]).runs)
    assert (row["method"], row["seed"], row["labels"]) == ("mine", 0, 5)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_non_finite_weights_are_not_saved(tmp_path: Path, clip: float | None) -> None:
    class NaNGradient(nn.Module):
        """Finite loss, NaN gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = net()
            self.scale = nn.Parameter(torch.zeros(()))

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.inner(images)
            return logits + 0 * self.scale.sqrt()  # infinite gradient of sqrt at zero

    plan = replace(PLAN, optimisation=ducats.Optimisation(clip_grad_norm=clip))
    with pytest.raises(UserError, match=r"'weights' became nan.*[Ll]ower train.lr"):
        ducats.adapt(make_components(model=NaNGradient()), plan, tmp_path / "r")
    assert present(load_checkpoint(ducats.RunResults(tmp_path / "r")))["epoch"] == 0
    assert not (tmp_path / "r" / "model.safetensors").exists()


def test_default_strong_view() -> None:
    strong = ducats.StreamViews(unlabelled=ducats.View(flip=0.5)).strong_or_default
    assert (strong.flip, strong.randaugment, strong.cutout) == (0.5, (2, 10), 0.5)
    own = ducats.View(cutout=0.1)
    assert ducats.StreamViews(strong=own).strong_or_default is own


def own_network(*, classes: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * channels, classes))


def own_network_with_bottleneck(*, classes: int, channels: int, bottleneck_relu: bool) -> nn.Module:
    layers = [nn.Linear(8 * 8 * channels, 6), *([nn.ReLU()] if bottleneck_relu else [])]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(6, classes))


@pytest.mark.parametrize("method", ["duc", "clue", "eada", "las", "sdm", "tqs"])
@pytest.mark.parametrize(
    ("model", "has_bottleneck"),
    [
        ("{name: timm, params: {backbone: test_resnet, pretrained: false}}", True),
        ("{name: 'test_components:own_network_with_bottleneck'}", True),
        ("{name: 'test_components:own_network'}", False),
        ("{name: small_cnn}", False),
        ("{name: deeplab_v2, params: {backbone: test_resnet, pretrained: false, output_stride: 32}}", False),
    ],
)
def test_methods_set_the_relu_of_the_bottleneck_where_there_is_one(
    method: str, model: str, has_bottleneck: bool
) -> None:
    config = load_config([f"methods/{method}"], [f"model={model}"])

    def count_relus(config: Config) -> int:
        network = make_model(config, classes=4, channels=3, is_resumable=True).network
        return sum(isinstance(module, nn.ReLU) for module in network.modules())

    with_relu = load_config([f"methods/{method}"], [f"model={model}", "model.bottleneck_relu=true"])
    is_removed = has_bottleneck and method in ("eada", "las", "sdm", "tqs")
    assert count_relus(config) == count_relus(with_relu) - is_removed
    again = load_config([], [], Config.model_validate(config.identity()).model_dump())
    assert count_relus(again) == count_relus(config)


def test_the_bottleneck_is_not_set_twice() -> None:
    config = load_config([], ["model.params={bottleneck_relu: true}"])
    with pytest.raises(UserError, match=r"set model\.bottleneck_relu"):
        check_config(config, is_resumable=True)
