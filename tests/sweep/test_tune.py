"""Hyperparameter search: trials ranked without test labels."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from commands import ducats, set_options, write_images
from conftest import QUICK, quick, quick_pixels
from ducats import config as configs
from ducats.config import Config
from ducats.data.domain import UNLABELLED, Images
from ducats.data.evaluation_split import hold_out_source
from ducats.data.toy import toy
from ducats.deploy import load_trained_model
from ducats.evaluation.audit import proportion_limits
from ducats.ledger import load_ledger
from ducats.run import run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.tune import TrialResult, TuningResult, tune
from ducats.sweep.tune.scorers import load_tuning_data, per_image_losses
from ducats.sweep.tune.search import ranking_warnings
from ducats.sweep.tune.trials import (
    Trial,
    count_combinations,
    default_grid,
    parse_grid,
    run_in_subprocess,
    sample_grid_points,
    to_settings,
)
from ducats.training.distributed import make_fabric
from ducats.utils.errors import AwaitingLabels, UserError
from present import present

GRID = {"objective.params.beta": (0.1, 1.0), "query.params.kappa": (2, 10)}
SMALL = {"train.epochs": (3, 4)}


class InProcessLauncher:
    """Run trials in this process, which is faster, and record their names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, trial: Trial) -> None:
        self.names.append(trial.name)
        components, plan = build_run(trial.config, trial.run_folder)
        fabric = make_fabric("cpu")
        fabric.launch()
        run(components, plan, trial.run_folder.path, fabric=fabric, identity=trial.config.identity())


def search(
    out: Path, *settings: str, config: Config | None = None, grid: Any = SMALL, **more: Any
) -> TuningResult:
    return tune(config or quick(*settings), out, grid=grid, **{"launcher": InProcessLauncher(), **more})


class FinishedSearch(NamedTuple):
    """A search over ``SMALL`` by DEV, shared by the tests."""

    folder: Path
    result: TuningResult

    def copy_to(self, out: Path) -> Path:
        return shutil.copytree(self.folder, out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedSearch:
    folder = tmp_path_factory.mktemp("finished")
    return FinishedSearch(folder, search(folder))


def read_tune_json(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "tune.json").read_text()))


def searched_settings(config: Config) -> dict[str, Any]:
    """Return the settings of ``GRID``."""
    beta, kappa = config.objective.params["beta"], config.query.params["kappa"]
    return {"objective.params.beta": beta, "query.params.kappa": kappa}


def test_grid_is_ranked_saved_and_not_repeated(tmp_path: Path) -> None:
    launcher, messages = InProcessLauncher(), list[str]()
    found = search(tmp_path, grid=GRID, launcher=launcher, on_message=messages.append)
    saved = read_tune_json(tmp_path)
    assert len(set(launcher.names)) == len(found.results) == found.n_combinations == 4
    assert {tuple(result.settings.values()) for result in found.results} == set(product(*GRID.values()))
    risks = [result.risk for result in found.results]
    assert risks == sorted(risks) == [result["risk"] for result in saved["trials"]]
    assert saved["criterion"] == {
        "estimator": "dev",
        "loss": "nll",
        "weight_normalisation": "none",
        "source_holdout_fraction": 0.2,
    }
    assert "deep embedded validation from 20 % of the source" in saved["risk_description"]
    assert len(messages) == 4
    # Each trial is a run of the base config with its own two settings and held-out source images.
    for result in found.results:
        run_folder = RunFolder(tmp_path / result.name)
        config = Config.model_validate(run_folder.identity)
        assert searched_settings(config) == result.settings
        assert config.evaluation.source_holdout_fraction == 0.2
        assert run_folder.data_summary["source"]["images"] == 96 - 4 * 5
    best = configs.load_config([found.best_config])
    assert searched_settings(best) == found.results[0].settings
    assert best.evaluation.source_holdout_fraction == 0  # the best config trains on the full source
    assert best.model_copy(update={"objective": quick().objective, "query": quick().query}) == quick(
        "engine.precision=32-true", "model.freeze=none"
    )
    assert search(tmp_path, grid=GRID, launcher=launcher) == found
    assert len(launcher.names) == 4


def test_interrupted_search_resumes(finished: FinishedSearch, tmp_path: Path) -> None:
    launcher = InProcessLauncher()

    def killed(trial: Trial) -> None:
        if launcher.names:
            raise KeyboardInterrupt
        launcher(trial)

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, launcher=killed)
    assert [result["name"] for result in read_tune_json(tmp_path)["trials"]] == launcher.names
    resumed = search(tmp_path, launcher=launcher)
    assert len(launcher.names) == len(set(launcher.names)) == 2  # each runs once
    assert resumed.results == finished.result.results


def test_dev_details_match_the_trained_model(finished: FinishedSearch, tmp_path: Path) -> None:
    """The mean source loss matches the model, and the risk does not depend on test images."""
    found = search(finished.copy_to(tmp_path / "with"), max_trials=1, loss="error")
    bare = search(
        tmp_path / "without", "data.params={n_test: 0}", "evaluation.split=auto", max_trials=1, loss="error"
    )
    assert bare.results[0].risk == found.results[0].risk
    result = found.results[0]
    held_out = present(hold_out_source(toy(), 0.2)[1])
    model = load_trained_model(tmp_path / "with" / result.name).model.eval()
    with torch.inference_mode():
        wrong = model(held_out.images.pixels[:].float() / 255).z.argmax(1) != held_out.labels[:]
    assert result.details["source_risk"] == pytest.approx(float(wrong.double().mean()))
    assert 0 < result.details["effective_fraction"] <= 1
    assert 0.5 <= result.details["domain_accuracy"] <= 1


def test_other_criteria_reuse_the_runs(finished: FinishedSearch, tmp_path: Path) -> None:
    launcher, out = InProcessLauncher(), finished.copy_to(tmp_path / "tune")
    holdout = "evaluation.source_holdout_fraction=0.2"
    labels: Any = {"estimator": "target_labels", "validation_labels": 30}
    for found in (
        search(out, launcher=launcher, loss="error", weight_normalisation="max"),
        search(out, holdout, launcher=launcher, **labels),
    ):
        assert read_tune_json(out)["criterion"]["loss"] == "error"
        assert {result.name for result in found.results} == {r.name for r in finished.result.results}
        assert found.results[0].risk != finished.result.results[0].risk
    assert not launcher.names
    search(out, launcher=launcher, max_trials=1, **labels)
    assert len(launcher.names) == 1  # on the full source


def test_losses_by_hand() -> None:
    z, labels = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1, 1])
    assert per_image_losses(z, labels, "error").tolist() == [0, 1]
    expected = [torch.tensor(-1.0).exp().log1p().item(), torch.tensor(2.0).exp().log1p().item()]
    assert per_image_losses(z, labels, "nll").tolist() == pytest.approx(expected)


def test_validation_labels_are_random_counted_and_acquired_once(tmp_path: Path) -> None:
    found = search(tmp_path, estimator="target_labels", validation_labels=30)
    assert read_tune_json(tmp_path)["criterion"] == {
        "estimator": "target_labels",
        "loss": "error",
        "validation_labels": 30,
    }
    assert "on 30 random target images" in found.risk_description
    ledger = load_ledger(RunFolder(tmp_path / "validation-30"))
    assert len(ledger) == 30
    ground_truth, labels = present(toy().ground_truth)[:], ledger.targets()
    assert torch.equal(labels[labels >= 0], ground_truth[labels >= 0])
    is_labelled_by_any = torch.zeros(80, dtype=torch.bool)
    for result in found.results:
        trained = load_trained_model(tmp_path / result.name)
        is_labelled = load_ledger(trained.run_folder).targets() != UNLABELLED
        assert (result.n_labels, int(is_labelled.sum())) == (20, 20)
        is_labelled_by_any |= is_labelled
        remaining = (labels >= 0) & ~is_labelled
        with torch.inference_mode():
            predicted = trained.model.eval()(toy().pool.pixels[remaining].float() / 255).z.argmax(1)
        wrong = (predicted != ground_truth[remaining]).double()
        assert result.risk == pytest.approx(float(wrong.mean()))
        assert result.details == {"images": int(remaining.sum())}
        assert result.standard_error == pytest.approx(float(wrong.std()) / int(remaining.sum()) ** 0.5)
    assert found.label_counts == {"trials": int(is_labelled_by_any.sum()), "validation": 30}
    # No source images are held out, so the best trial is the run of best.yaml.
    assert configs.load_config([found.best_config]).digest() == found.results[0].name


def human_config(tmp_path: Path) -> Config:
    """Config for image folders with an unlabelled target."""
    data = toy(n_source_per_class=6, n_pool=20)
    names = [data.classes[label] for label in data.source.labels[:].tolist()]
    write_images(tmp_path / "source", data.source.images.pixels[:], names)
    write_images(tmp_path / "target", data.pool.pixels[:], ["."] * 20)
    params = {"source": str(tmp_path / "source"), "target": str(tmp_path / "target"), "size": 8}
    return quick("data.name=folders", f"data.params={json.dumps(params)}", "train.batch_size=8")


def test_annotators_answer_only_for_validation(tmp_path: Path) -> None:
    config = human_config(tmp_path)
    with pytest.raises(UserError, match="tune with --rounds 0"):
        search(tmp_path / "tune", config=config)
    without_rounds = config.model_copy(
        update={"acquisition": replace(config.acquisition, rounds=0, after_epochs=None)}
    )
    assert "query.params.kappa" not in default_grid(without_rounds)
    by_labels: Any = {"config": without_rounds, "estimator": "target_labels", "validation_labels": 5}
    by_dev = search(tmp_path / "tune", config=without_rounds)
    assert by_dev.label_counts == {"trials": 0, "validation": 0}
    launcher = InProcessLauncher()
    with pytest.raises(AwaitingLabels, match="waits for 5 labels"):
        search(tmp_path / "tune", launcher=launcher, **by_labels)
    assert not launcher.names  # validation labels come first
    folder = tmp_path / "tune" / "validation-5" / "questions" / "round-01"
    lines = (folder / "questions.csv").read_text().splitlines()
    keys = [line.split(",")[1] for line in lines[1:]]
    answers = [f"{keys[0]},void", *(f"{key},blob-1" for key in keys[1:])]
    (folder / "answers.csv").write_text("\n".join(["key,label", *answers]) + "\n")
    found = search(tmp_path / "tune", **by_labels)
    assert [result.details for result in found.results] == [{"images": 4}] * 2  # the fifth is void


def test_failing_trials_do_not_stop_the_others_and_their_labels_are_counted(tmp_path: Path) -> None:
    launcher, failing, grid = InProcessLauncher(), {0.001}, {"train.lr": (0.001, 0.2)}

    def fragile(trial: Trial) -> None:
        launcher(trial)
        if trial.config.train.lr in failing:
            raise UserError("out of memory")

    found = search(tmp_path, launcher=fragile, grid=grid)
    assert found.failed == read_tune_json(tmp_path)["failed"] == {"lr=0.001": "out of memory"}
    assert [result.settings for result in found.results] == [{"train.lr": 0.2}]
    ledgers = [load_ledger(RunFolder(tmp_path / name)) for name in launcher.names]
    labelled_keys = {entry.key for ledger in ledgers for entry in ledger.entries()}
    assert len(ledgers) == 2
    assert len(labelled_keys) > 20  # more than those of the trial that did not fail
    assert found.label_counts == {"trials": len(labelled_keys), "validation": 0}
    failing.add(0.2)
    for path in (tmp_path / "tune.json", *tmp_path.glob("*/model.safetensors")):
        path.unlink()  # forces a new score of each run
    with pytest.raises(UserError, match="all 2 trials failed; first error: out of memory"):
        search(tmp_path, launcher=fragile, grid=grid)
    assert read_tune_json(tmp_path)["label_counts"] == found.label_counts


def test_ranking_warnings() -> None:
    def outcome(risk: float, effective: float = 0.5, source: float = 0.1) -> TrialResult:
        details = {"effective_fraction": effective, "source_risk": source}
        return TrialResult("x", {}, risk, 0.02, details, effective < 0.05, 0)

    assert ranking_warnings([outcome(0.1), outcome(0.13)], "dev") == []
    near = ranking_warnings([outcome(0.1), outcome(0.11), outcome(0.2)], "target_labels")
    assert near[0].startswith("1 other trial is within one standard error of the best")
    assert "increase --validation-labels" in near[0]
    certain = replace(outcome(0.1), standard_error=0.0)
    assert ranking_warnings([certain, outcome(0.11), outcome(0.2)], "target_labels") == near
    for results, start in (
        ([outcome(0.1), outcome(0.2, 0.01)], "DEV is unreliable for 1 of 2 trials: "),
        ([outcome(0.1, 0.01), outcome(0.2, 0.01)], "DEV is unreliable for 2 of 2 trials, including the best"),
        ([outcome(0.0, source=0.0)], "no held-out source image is misclassified"),
    ):
        (warning,) = ranking_warnings(results, "dev")
        assert warning.startswith(start)


@pytest.mark.usefixtures("forked_children")
def test_command_runs_trials_in_child_processes(
    finished: FinishedSearch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*set_options(*QUICK), "--grid", "train.epochs=3", "--out", tmp_path / "tune")
    assert ducats("tune", "--method", "duc", *options) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "risk: mean negative log-likelihood on the target, estimated by deep embedded validation" in output
    assert "1 of 1 combinations tried; 20 distinct target labels acquired by the trials, 0 for" in output
    assert f"`ducats run -c {tmp_path / 'tune' / 'best.yaml'}`" in output
    (trial,) = read_tune_json(tmp_path / "tune")["trials"]
    assert TrialResult(**trial) in finished.result.results


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--estimator", "target_labels", "--weight-normalisation", "max"],
            "--weight-normalisation needs --estimator dev",
        ),
        (["--validation-labels", "5"], "--validation-labels needs --estimator target_labels"),
    ],
)
def test_command_rejects_invalid_options(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ducats("tune", *options, "--out", tmp_path / "tune") == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "tune").exists()


@pytest.mark.usefixtures("forked_children")
def test_failing_process_reports_its_error(tmp_path: Path) -> None:
    trial = Trial({}, quick("train.lr=1e30"), RunFolder(tmp_path / "run"))
    with pytest.raises(UserError, match=r"^(?!ducats:).* became nan"):
        run_in_subprocess(trial)


def test_settings_that_cannot_be_searched() -> None:
    for option, sentence in {
        "seed=0,1": "--grid seed cannot be searched, because the best seed would win by chance",
        "data.params.domain_shift=0,1": "it would change the problem",
        "acquisition.budget=5,50": "more labels would always win",
        "engine.device=cpu,cuda": "does not affect the result",
        "train.lr": "must have the form",
        "train.lr=": "must have the form",
        "train.lr=[1": "invalid YAML",
    }.items():
        with pytest.raises(UserError, match=sentence):
            parse_grid([option])
    with pytest.raises(UserError, match=r"train\.lr is given twice"):
        parse_grid(["train.lr=1", "train.lr=2"])
    with pytest.raises(UserError, match="no default search space"):
        default_grid(quick(method="source-only"))
    with pytest.raises(UserError, match="--trials must be at least 1"):
        sample_grid_points(SMALL, 0, 0)


def test_invalid_searches_fail_before_training(tmp_path: Path) -> None:
    launcher, holdout = InProcessLauncher(), "evaluation.source_holdout_fraction=0.001"
    options: dict[str, dict[str, Any]] = {
        "supports only classification": {"config": quick_pixels()},
        "no parameter 'kapa'": {"grid": {"query.params.kapa": (1, 2)}},
        "kappa must be at least 1": {"grid": {"query.params.kappa": (2, 0.5)}},
        "epochs=3 and epochs=3 are the same run": {"grid": {"train.epochs": (3, 3)}},
        "must be between 2 and 80": {"estimator": "target_labels", "validation_labels": 81},
        "of 96 source images leaves nothing": {"config": quick(holdout)},
    }
    for message, invalid in options.items():
        with pytest.raises(UserError, match=message):
            search(tmp_path, launcher=launcher, **invalid)
    assert not launcher.names


def test_points_are_distinct_and_more_trials_extend_fewer() -> None:
    grid = {"a": (1, 2, 3), "b": ("x", "y"), "c": (True, False)}
    every = sample_grid_points(grid, 100, 0)
    assert len(every) == count_combinations(grid) == 12
    assert len({tuple(p.values()) for p in every}) == 12
    assert sample_grid_points(grid, 5, 0) == every[:5]
    assert sample_grid_points(grid, 100, 1) != every


def test_settings_round_trip_through_yaml() -> None:
    grid = parse_grid(["train.lr=1e-5, 0.5", "query.params.order=data_dis", "train.nesterov=false"])
    assert grid == {"train.lr": (1e-5, 0.5), "query.params.order": ("data_dis",), "train.nesterov": (False,)}
    config = quick(*to_settings({key: values[0] for key, values in grid.items()}))
    assert (config.train.lr, config.query.params["order"], config.train.nesterov) == (1e-5, "data_dis", False)


def test_held_out_source_is_stratified_and_independent_of_the_seed() -> None:
    data = toy(n_source_per_class=10)
    small, held_out = hold_out_source(data, 0.3)
    index_of = {key: number for number, key in enumerate(data.source.images.keys)}
    for part, count in ((present(held_out), 3), (small.source, 7)):
        assert part.labels[:].bincount().tolist() == [count] * 4
        order = torch.tensor([index_of.pop(key) for key in part.images.keys])
        assert torch.equal(part.labels[:], data.source.labels[order])
        assert torch.equal(part.images.pixels[:], data.source.images.pixels[order])
    assert not index_of  # each image is in one part
    assert (small.pool, small.ground_truth, small.test) == (data.pool, data.ground_truth, data.test)
    assert hold_out_source(data, 0.0) == (data, None)
    one, other = (
        present(load_tuning_data(quick("evaluation.source_holdout_fraction=0.3", seed)).held_out_source)
        for seed in ("seed=0", "seed=1")
    )
    assert one.images.keys == other.images.keys


def test_changed_data_raise(
    finished: FinishedSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = finished.copy_to(tmp_path / "tune")
    (out / "tune.json").unlink()  # forces a new score
    real = toy()
    pool = Images(tuple(f"other/{key}" for key in real.pool.keys), real.pool.pixels)
    monkeypatch.setattr("ducats.sweep.tune.scorers.load_data", lambda _: replace(real, pool=pool))
    with pytest.raises(UserError, match="the pool images have changed"):
        search(out)


def test_audit_labels_of_an_earlier_run_score_the_trials(tmp_path: Path) -> None:
    """No trial asks for labels; the interval of each holds for all together."""
    settings = ("acquisition={budget: 40, rounds: 2, after_epochs: [1, 2], audit: 20}",)
    config = quick(*settings)
    components, plan = build_run(config, RunFolder(tmp_path / "earlier"))
    earlier = run(
        components, plan, tmp_path / "earlier", fabric=make_fabric("cpu"), identity=config.identity()
    )
    start = f"acquisition={{start_from: {earlier.path}, rounds: 0, budget: 40}}"
    found = search(tmp_path / "search", start, estimator="audit")
    assert found.label_counts == {"trials": 40, "validation": 0}
    assert "hold for all 2 trials together" in found.risk_description
    for result in found.results:
        run_folder = RunFolder(tmp_path / "search" / result.name)
        audit = load_ledger(run_folder).audit_labels()
        epoch = run_folder.read_records("audit")[-1]["epoch"]
        predicted = torch.from_numpy(run_folder.load_pool_predictions(epoch).predicted)
        wrong = int(((audit >= 0) & (predicted != audit)).sum())
        assert result.risk == pytest.approx(wrong / result.details["images"])
        assert result.details["images"] == int((audit >= 0).sum()) > 0
        one = proportion_limits(wrong, int(result.details["images"]), 60, level=0.95)
        assert result.details["low"] <= one[0] <= result.risk <= one[1] <= result.details["high"]
    with pytest.raises(UserError, match="no audit labels"):
        search(tmp_path / "none", "acquisition.audit=0", estimator="audit")
