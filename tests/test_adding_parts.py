"""Parts from outside the package: a query, objective, data set, model and figure go through every command."""

import csv
import json
from pathlib import Path

import pytest

from commands import ducats
from conftest import QUICK
from ducats.config import load_config
from ducats.ledger import load_ledger
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.tune.trials import default_grid
from ducats.utils.errors import UserError
from scoring_runs import write_image_folder
from sweep_helpers import write_sweep

PARTS = '''
import torch
from torch import nn
from torch.nn import functional as F

from ducats.acquisition.queries import QuerySpec, StreamingRule
from ducats.acquisition.samples import top_k
from ducats.data.spec import DatasetSpec
from ducats.data.toy import toy
from ducats.data.benchmarks.benchmark import Benchmark, DomainInfo
from ducats.models import ModelSpec
from ducats.objectives import ObjectiveSpec, softmax
from ducats.report.figures import FigureSpec
from ducats.report.figures.base import PreparedFigure


def my_query(context):
    """Pick the last images."""
    return top_k(context.candidates.image.double(), context.budget, context.candidates)


def my_objective(model, batch, *, weight=1.0):
    """Cross-entropy under another name."""
    return {"mine": weight * sum(softmax(model, batch).values())}


def my_data(*, images=60, task="A-B"):
    """Toy data with a task."""
    return toy(n_pool=images, n_test=20)


class MyNet(nn.Module):
    """One layer."""

    def __init__(self, *, classes, channels, bias=True):
        super().__init__()
        self.my_layer = nn.Linear(channels, classes, bias=bias)

    def forward(self, images):
        return self.my_layer(images.mean((2, 3)))


def my_model_without_weights(**params):
    return MyNet(**params)


def check_my_params(*, bias=True):
    if bias is None:
        raise ValueError("a bias is true or false")


def my_figure(runs, options):
    """Number of runs."""
    def draw(figure):
        figure.subplots().bar([0], [len(runs)])
    return PreparedFigure(draw, (3, 2), "My own figure", f"{len(runs)} runs, round {options.round}")


QUERY = QuerySpec(my_query, needs=("entropy",), streaming=StreamingRule("rank", ("-entropy",)), clusters=True)
OBJECTIVE = ObjectiveSpec(my_objective, search_grid={"weight": (1, 2)})
DATA = DatasetSpec(
    my_data,
    per_pixel=False,
    benchmark=Benchmark(
        "Mine", (DomainInfo("A", "first"), DomainInfo("B", "second")), 4, "nowhere", "", {}
    ),
)
MODEL = ModelSpec(
    MyNet, per_pixel=False, build_without_weights=my_model_without_weights, check_params=check_my_params
)
FIGURE = FigureSpec(my_figure, "bars", "one or more runs", uses_snapshots=False)
'''
FUNCTIONS = {"query": "my_query", "objective": "my_objective", "data": "my_data", "model": "MyNet"}
SPECS = {"query": "QUERY", "objective": "OBJECTIVE", "data": "DATA", "model": "MODEL"}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the parts to a module in the current folder, under a name of its own, and return the name."""
    name = f"parts_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PARTS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


def settings(module: str, parts: dict[str, str]) -> list[str]:
    own = [f"{kind}={{name: '{module}:{attribute}', params: {{}}}}" for kind, attribute in parts.items()]
    return [*(setting for setting in QUICK if not setting.startswith(("data", "model"))), *own]


def options(module: str, parts: dict[str, str], *more: str) -> list[str]:
    return [part for setting in (*settings(module, parts), *more) for part in ("--set", setting)]


@pytest.mark.parametrize("parts", [FUNCTIONS, SPECS], ids=["functions", "specs"])
def test_run_score_report_and_figure(
    module: str, parts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("data.params.images=50", "engine.snapshot_samples=0")
    assert ducats("run", "--out", "run", *options(module, parts, *more)) == 0
    run_folder = RunFolder(tmp_path / "run")
    ledger = load_ledger(run_folder)
    assert [entry.key for entry in ledger.entries() if entry.round == 1] == list(ledger.keys[:-11:-1])
    assert len(ledger.keys) == 50
    assert "mine" in (run_folder.path / "metrics.jsonl").read_text()
    assert ducats("export", "run", "--out", "exported", "--trust-code") == 0
    assert (tmp_path / "exported" / "model.safetensors").read_bytes().count(b"my_layer.weight") == 1

    pool = write_image_folder(tmp_path / "pool", 12)
    assert ducats("score", "run", pool, "--budget", "3", "--out", "scored", "--trust-code") == 0
    assert json.loads((tmp_path / "scored" / "score.json").read_text())["query"] == (
        f"{module}:{parts['query']}"
    )
    with (tmp_path / "scored" / "picks.csv").open() as file:
        picks = list(csv.DictReader(file))
    if parts is FUNCTIONS:  # selects from all twelve, as the candidates are ten times the budget
        names = sorted(str(path.relative_to(pool)) for path in pool.rglob("*.*"))
        assert [pick["key"] for pick in picks] == names[:-4:-1]
    else:  # ranked by the column of its streaming rule
        entropies = [float(pick["entropy"]) for pick in picks]
        assert entropies == sorted(entropies)

    figure = f"{module}:{'my_figure' if parts is FUNCTIONS else 'FIGURE'}"
    assert ducats("figure", figure, "run") == 0
    assert "My own figure" in (tmp_path / f"{figure.partition(':')[2]}.svg").read_text()
    assert ducats("report", "run", "--figure", figure) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "My own figure" in page
    assert f"{module}:{parts['query']}" in page
    capsys.readouterr()


@pytest.mark.parametrize("parts", [FUNCTIONS, SPECS], ids=["functions", "specs"])
def test_doctor_accepts_them_and_reads_their_specs(
    module: str, parts: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ducats("doctor", *options(module, parts)) == 0, capsys.readouterr().out
    assert "60 images" in capsys.readouterr().out
    knows_more = parts is SPECS
    ducats("doctor", *options(module, parts, "task.name=segmentation"))
    assert "has one label per image" in capsys.readouterr().out
    code = ducats("doctor", *options(module, parts, "model.params={bias: null}"))
    assert ("a bias is true or false" in capsys.readouterr().out) == knows_more == (code == 1)


def test_a_clustering_query_is_checked_by_doctor(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    all_pixels = "acquisition={budget: 100%, rounds: 1, after_epochs: null}"
    data = "data.params={n_source: 2, n_pool: 2, n_test: 1, height: 96, width: 96}"
    for attribute, is_error in (("QUERY", True), ("my_query", False)):
        query = f"query={{name: '{module}:{attribute}', params: {{}}}}"
        more = [part for setting in (all_pixels, data, query) for part in ("--set", setting)]
        ducats("doctor", "-c", "data/streets", *more)
        assert ("clusters; the maximum" in capsys.readouterr().out) == is_error


@pytest.mark.parametrize("parts", [FUNCTIONS, SPECS], ids=["functions", "specs"])
def test_sweep(module: str, parts: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    own, file = settings(module, parts), Path("s.yaml")
    write_sweep(file, settings=[], methods=[{"name": "mine", "settings": own}], seeds=[0, 1])
    assert ducats("sweep", file, "--dry-run", "--devices", "cpu") == 0
    assert capsys.readouterr().out.count("mine") >= 2
    unknown = [*own, "data.params.size=3"]
    write_sweep(file, settings=[], methods=[{"name": "mine", "settings": unknown}])
    assert ducats("sweep", file, "--dry-run", "--devices", "cpu") != 0
    assert "has no parameter 'size'" in "".join(capsys.readouterr())


def test_the_search_grid_of_an_objective(module: str) -> None:
    assert default_grid(load_config([], settings(module, SPECS))) == {"objective.params.weight": (1, 2)}
    with pytest.raises(UserError, match="no default search space"):
        default_grid(load_config([], settings(module, FUNCTIONS)))


def test_benchmark_options_follow_the_data_set(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ducats("config", "--task", "first->second", *options(module, SPECS)) == 0
    assert "task: A-B" in capsys.readouterr().out
    assert ducats("config", "--task", "first->second", *options(module, FUNCTIONS)) == 0
    assert "task: first->second" in capsys.readouterr().out
    assert ducats("config", "--task", "A-B", "--set", "data.name=toy") != 0
    assert "are for a benchmark" in "".join(capsys.readouterr())


@pytest.mark.parametrize("section", ["query", "objective", "data", "model"])
def test_an_entry_of_another_kind_is_rejected(
    module: str, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ducats("run", "--out", "run", *options(module, {section: "FUNCTIONS_OF_NOTHING"})) != 0
    assert "has no 'FUNCTIONS_OF_NOTHING'" in "".join(capsys.readouterr())
    assert ducats("run", "--out", "run", *options(module, {section: "FIGURE"})) != 0
    assert "must be callable, not FigureSpec" in "".join(capsys.readouterr())
