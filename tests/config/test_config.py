import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
import yaml

from ducats import config
from ducats.config import Config, configs_folder, load_config, query_epochs
from ducats.config.schema import QueryConfig, TaskConfig
from ducats.run.factory import check_config
from ducats.training.streams import steps_in_epoch
from ducats.utils.errors import UserError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def assert_one_line_error(files: Sequence[Path], settings: Sequence[str], *words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(files, settings)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_later_layers_win(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "train: {lr: 0.1, epochs: 30}\nseed: 1\n")
    two = write(tmp_path / "two.yaml", "train: {lr: 0.2}\n")
    loaded = load_config([one, two], ["seed=3"], {"train": {"epochs": 40}})
    assert (loaded.train.lr, loaded.train.epochs, loaded.seed) == (0.2, 40, 3)


def test_another_component_drops_the_previous_parameters(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "query: {name: duc, params: {kappa: 5, order: data_dis}}\n")
    assert load_config([one, "methods/las"]).query.params == {"K": 10, "M": 10}
    assert load_config([one], ["query.params.kappa=7"]).query.params == {"kappa": 7, "order": "data_dis"}
    before = ["model.evidence=exp_at_most_10", "model.name=deeplab_v2", "model.params.norm_eps=0.0"]
    model = load_config([], [*before, "model.name=deeplab_v3plus"]).model
    assert (model.name, model.params, model.evidence) == ("deeplab_v3plus", {}, "exp_at_most_10")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {lrr: 0.1}\n", ["one.yaml", "'train.lrr'", "did you mean 'train.lr'"]),
        ("trian: {lr: 0.1}\n", ["one.yaml", "'trian'", "did you mean 'train'"]),
        ("views: {labelled: {flipp: 1}}\n", ["'views.labelled.flipp'", "did you mean 'views.labelled.flip'"]),
        ("train: {lr: fast}\n", ["train.lr", "valid number", "'fast'"]),
        ("query: {name: 3}\n", ["query.name", "valid string"]),
        ("train: {lr: -1}\n", ["train.lr", "greater than 0"]),
        ("train: [\n", ["one.yaml", "not valid YAML"]),
        ("- a\n", ["one.yaml", "key: value"]),
        ("acquisition: {after_epochs: [3, 2]}\n", ["strictly increasing"]),
        ("acquisition: {after_epochs: [50]}\n", ["epoch 50", "would not be used"]),
        ("views: {source: {jitter: [0, 0, 0, 0.7]}}\n", ["hue must be at most 0.5"]),
    ],
)
def test_typo_gives_one_line_message(tmp_path: Path, text: str, words: list[str]) -> None:
    assert_one_line_error([write(tmp_path / "one.yaml", text)], [], *words)


def test_unknown_config_suggests_the_closest() -> None:
    with pytest.raises(UserError, match=r"did you mean '.*ducats'"):
        load_config(["methods/ducat"])


def test_package_configs_load_by_every_spelling() -> None:
    found = sorted(p for p in config.configs_folder().rglob("*.yaml") if p.parent.name != "sweeps")
    assert len(found) >= 20
    for path in found:
        assert load_config([path])
    assert {
        load_config([name]).method for name in ("random", "methods/random", "configs/methods/random.yaml")
    } == {"random"}


def test_ablation_rows_match_the_paper() -> None:
    rows = {
        name: load_config([f"ablation/{name}"]) for name in ("edl", "edl-random", "edl-entropy", *"abcdefgh")
    }
    losses = {
        name: (row.objective.params["beta"], row.objective.params["lambda_"]) for name, row in rows.items()
    }
    assert {losses[n] for n in ("edl", "edl-random", "edl-entropy", "a")} == {(0.0, 0.0)}
    assert (losses["b"], losses["c"]) == ((1.0, 0.0), (0.0, 0.05))
    assert {losses[n] for n in "defgh"} == {(1.0, 0.05)}
    queries = ["duc", "duc", "duc", "random", "entropy", "u_dis", "u_data"]
    assert [rows[name].query.name for name in "abcefgh"] == queries
    assert rows["edl"].acquisition.rounds == rows["d"].acquisition.rounds == 0


def test_rounds_follow_the_published_epochs() -> None:
    assert query_epochs(Config()) == (10, 12, 14, 16, 18)
    assert query_epochs(load_config((), ["train.epochs=40", "acquisition.after_epochs=[10, 12]"])) == (10, 12)
    assert query_epochs(load_config((), ["acquisition.rounds=0"])) == ()
    assert query_epochs(load_config((), ["train.epochs=20"])) == (4, 5, 6, 7, 8)
    for epochs in range(1, 60):
        for rounds in range(1, min(epochs, 7) + 1):
            after = query_epochs(load_config((), [f"train.epochs={epochs}", f"acquisition.rounds={rounds}"]))
            assert len(after) == rounds
            assert list(after) == sorted(set(after))
            assert after[0] <= max(1, round(0.2 * epochs))
            # An untrained model selects only if there is no spare epoch.
            assert after[0] >= 1 or rounds == epochs
            assert after[-1] < epochs


def test_parity_matches_the_published_code() -> None:
    office = config.load_config(["data/office-home", "parity"])
    assert (office.method, office.train.lr, office.train.epochs) == ("duc", 4e-3, 50)
    assert office.query.params == {"kappa": 10, "pool_fraction": 0.01, "epsilon": 1e-7}
    assert office.acquisition.after_epochs == (10, 12, 14, 16, 18)
    assert (office.acquisition.rounding, office.train.labelled_batches) == ("ceil_per_round", "short_last")
    for view in (office.views.unlabelled, office.views.scoring):
        assert (view.resize, view.crop, view.size, view.flip) == ("short_side", "random", 224, 0.0)
        assert view.interpolation == "bilinear"
    assert office.views.test.crop == "center"
    assert (office.evaluation.split, office.evaluation.every_epochs) == ("published", 5)
    assert office.train.source_weight == {0: 1.0}
    assert config.load_config(["data/mini-domainnet", "parity"]).train.lr == 2e-3
    visda = config.load_config(["data/visda2017", "parity", "parity/visda"])
    assert (visda.train.lr, visda.train.epochs, visda.evaluation.every_epochs) == (1e-3, 40, 2)
    assert visda.train.source_weight == {0: 1.0, 1: 0.5}
    assert visda.engine.precision == office.engine.precision == "32-true"
    plain = config.load_config(["parity", "parity/visda"], ["train.source_weight={0: 1.0}"])
    assert plain.train.source_weight == {0: 1.0}  # replaced, not merged
    assert (visda.views.source.crop, visda.views.source.flip) == ("center", 0.5)
    # Another method with the same config keeps its own query.
    other = config.load_config(["data/office-home", "parity", "methods/random"])
    assert (other.method, other.query.name, other.query.params) == ("random", "random", {})


def test_changed_query_or_objective_changes_the_method_name() -> None:
    def name(*settings: str, files: tuple[str, ...] = ("methods/random",)) -> str:
        return load_config(files, settings).method

    assert name() == "random"
    assert name("objective.name=duc") == "duc+random"
    assert name("query.name=mine:between") == "softmax+between"
    assert name("query.name=mine:between", "method=own") == "own"
    assert name("query.params.kappa=3", files=("duc",)) == "duc"
    assert name("query.name=random", files=()) == "duc+random"
    assert name(files=("methods/random", "methods/sdm")) == "sdm"


# ---- the default method

METHOD_SECTIONS = ("method", "objective", "query", "train", "task")


def assert_same_method(one: Config, other: Config) -> None:
    for section in METHOD_SECTIONS:
        assert getattr(one, section) == getattr(other, section)


@pytest.mark.parametrize("files", [(), ("data/digits",), ("cpu",), ("segmentation",), ("data/streets",)])
def test_ducats_is_the_default_method_of_both_tasks(files: tuple[str, ...]) -> None:
    loaded = load_config(files)
    assert loaded.method == "ducats"
    assert_same_method(loaded, load_config([*files, "methods/ducats"]))
    assert loaded.digest() == load_config([*files, "methods/ducats"]).digest()


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_config_in_python_has_the_default_method(task: Literal["classification", "segmentation"]) -> None:
    loaded = load_config([], [f"task.name={task}"])
    assert loaded.method == "ducats"
    assert Config(task=TaskConfig(name=task)) == loaded == Config.model_validate({"task": {"name": task}})
    changed = Config.model_validate({"task": {"name": task}, "train": {"lr": 0.1}})
    assert changed == load_config([], [f"task.name={task}", "train.lr=0.1"])


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_config_in_python_that_names_a_query_has_the_objective_of_duc(
    task: Literal["classification", "segmentation"],
) -> None:
    expected = load_config([], [], {"task": {"name": task}, "query": {"name": "random"}})
    for query in (QueryConfig(name="random"), {"name": "random"}):
        named = Config.model_validate({"task": {"name": task}, "query": query})
        assert (named.objective, named.query, named.train) == (
            expected.objective,
            expected.query,
            expected.train,
        )
    assert (expected.objective.name, expected.objective.params) == ("duc", {})
    assert expected.train.target_batching == "separate"


def test_config_files_and_settings_change_the_default_method(tmp_path: Path) -> None:
    default = load_config()
    mine = write(tmp_path / "mine.yaml", "train: {target_batching: joint}\nquery: {params: {power: 2.0}}\n")
    changed = load_config([mine])
    assert (changed.method, changed.train.target_batching) == ("ducats", "joint")
    assert changed.query.params == {**default.query.params, "power": 2.0}
    by_setting = load_config([], ["query.name=entropy"])
    assert (by_setting.method, by_setting.query.name) == ("duc+entropy", "entropy")
    assert (by_setting.objective, by_setting.train) == (default.objective, default.train)
    assert load_config([], ["method=mine"]).objective == default.objective


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method: mine\n", ("mine", "duc", "duc")),
        ("query: {name: random}\n", ("duc+random", "duc", "random")),
        ("objective: {name: softmax}\n", ("softmax+duc", "softmax", "duc")),
    ],
)
def test_config_file_with_a_method_replaces_the_default(
    tmp_path: Path, text: str, expected: tuple[str, str, str]
) -> None:
    loaded = load_config([write(tmp_path / "mine.yaml", text)])
    assert (loaded.method, loaded.objective.name, loaded.query.name) == expected
    assert loaded.objective.params == loaded.query.params == {}
    assert loaded.train.target_batching == "separate"
    # The same in Python, as a mapping.
    assert load_config([], [], yaml.safe_load(text)) == loaded


@pytest.mark.parametrize(
    "files", [("data/office31", "parity"), ("parity",), ("data/gtav-cityscapes", "parity/segmentation")]
)
def test_parity_is_duc_as_published(files: tuple[str, ...]) -> None:
    loaded = load_config(files)
    assert (loaded.method, loaded.objective.name, loaded.query.name) == ("duc", "duc", "duc")
    assert "propagation_rate" not in loaded.objective.params
    assert loaded.train.target_batching == "separate"


# ---- the section `segmentation`

BY_TASK = """
objective: {name: duc, params: {beta: 0.5, propagation_rate: 0.1}}
query: {name: duc, params: {kappa: 5}}
train: {lr: 0.1, epochs: 30, target_batching: joint_if_few}
method: mine
segmentation:
  objective: {name: duc, params: {kl: 0.1}}
  query: {params: {epsilon: 0.5}}
  train: {lr: 0.2, target_batching: separate}
"""


def test_section_segmentation_overrides_its_file(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.yaml", BY_TASK)
    images = load_config([mine])
    assert images.objective.params == {"beta": 0.5, "propagation_rate": 0.1}
    assert (images.query.params, images.train.lr) == ({"kappa": 5}, 0.1)
    # The order of the files does not matter for the task.
    orders: tuple[list[str | Path], ...] = (["segmentation", mine], [mine, "segmentation"])
    for files in orders:
        pixels = load_config(files)
        # A component with a name starts afresh; one without inherits.
        assert (pixels.objective.params, pixels.query.params) == ({"kl": 0.1}, {"kappa": 5, "epsilon": 0.5})
        assert (pixels.method, pixels.train.target_batching) == ("mine", "separate")
    assert (load_config(["segmentation", mine]).train.lr, pixels.train.lr) == (0.2, 3e-3)
    assert load_config(["segmentation", mine]).train.epochs == 30
    assert load_config([mine], [], {"task": {"name": "segmentation"}}).train.lr == 0.2
    later = write(tmp_path / "later.yaml", "train: {lr: 0.3}\n")
    assert load_config([mine, later], ["task.name=segmentation"]).train.lr == 0.3
    assert load_config([mine], ["task.name=segmentation", "train.lr=0.4"]).train.lr == 0.4
    child = write(tmp_path / "child.yaml", "extends: mine.yaml\ntask: {name: segmentation}\n")
    assert load_config([child]) == load_config([mine], ["task.name=segmentation"])


def test_section_segmentation_is_not_part_of_the_config(tmp_path: Path) -> None:
    loaded = load_config([write(tmp_path / "mine.yaml", BY_TASK)], ["task.name=segmentation"])
    assert "segmentation" not in yaml.safe_load(config.to_yaml(loaded))
    again = write(tmp_path / "again.yaml", config.to_yaml(loaded))
    assert load_config([again]) == loaded


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("segmentation: {train: {lrr: 1}}\n", ["'segmentation.train.lrr'", "'segmentation.train.lr'"]),
        ("segmentation: {trian: {}}\n", ["'segmentation.trian'", "did you mean 'segmentation.train'"]),
        ("segmentation: 3\n", ["`segmentation` must contain settings", "not 3"]),
        ("segmentation: {task: {name: classification}}\n", ["'segmentation.task.name'"]),
    ],
)
def test_typo_in_section_segmentation(tmp_path: Path, task: str, text: str, words: list[str]) -> None:
    mine = write(tmp_path / "one.yaml", text)
    assert_one_line_error([mine], [f"task.name={task}"], "one.yaml", *words)


def test_invalid_value_in_section_segmentation_names_the_file(tmp_path: Path) -> None:
    mine = write(tmp_path / "one.yaml", "segmentation: {train: {lr: -1}}\n")
    assert_one_line_error([mine], ["task.name=segmentation"], "one.yaml", "train.lr")
    assert_one_line_error([], ["segmentation.train.lr=1"], "--set", "unknown setting 'segmentation'")


def test_resolved_config_round_trips_through_yaml() -> None:
    loaded = load_config(["data/digits", "methods/las"])
    assert Config.model_validate(yaml.safe_load(config.to_yaml(loaded))) == loaded


# ---- segmentation


def test_config_extends_another(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "train: {lr: 0.1, epochs: 30, momentum: 0.5}\nseed: 1\n")
    write(tmp_path / "b.yaml", f"extends: {tmp_path / 'a.yaml'}\ntrain: {{lr: 0.2}}\n")
    write(tmp_path / "c.yaml", f"extends: {tmp_path / 'b.yaml'}\ntrain: {{epochs: 40}}\n")
    loaded = load_config([tmp_path / "c.yaml"])
    train = loaded.train
    assert (train.lr, train.epochs, train.momentum, loaded.seed) == (0.2, 40, 0.5, 1)
    # Later layers override the base config, and a later file overrides an earlier one with its base.
    over = write(tmp_path / "d.yaml", "train: {momentum: 0.7}\n")
    assert load_config([tmp_path / "c.yaml", over], ["train.lr=0.3"]).train.momentum == 0.7
    assert load_config([over, tmp_path / "c.yaml"]).train.momentum == 0.5
    assert load_config([tmp_path / "c.yaml"], ["train.lr=0.3"]).train.lr == 0.3


def test_config_extends_a_file_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine" / "base.yaml", "seed: 7\n")
    write(tmp_path / "mine" / "one.yaml", "extends: base.yaml\n")
    write(tmp_path / "base.yaml", "seed: 8\n")
    monkeypatch.chdir(tmp_path)
    assert load_config(["mine/one.yaml"]).seed == 7
    write(tmp_path / "mine" / "two.yaml", "extends: one.yaml\n")
    assert load_config([tmp_path / "mine" / "two.yaml"]).seed == 7


def test_config_extends_a_package_config(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.yaml", "extends: segmentation\ntrain: {epochs: 20}\n")
    loaded, whole = load_config([mine]), load_config(["segmentation"])
    assert loaded.train.epochs == 20
    assert loaded.model_copy(update={"train": whole.train}) == whole


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a": "extends: {a}\n"}, "a.yaml: `extends` must name another config"),
        (
            {"a": "extends: {b}\n", "b": "extends: {c}\n", "c": "extends: {a}\n"},
            "`extends` must name another config",
        ),
        ({"a": "extends: [segmentation]\n"}, "a.yaml: `extends` must name another config, e.g. segmentation"),
        ({"a": "extends: segmantation\n"}, "no config 'segmantation': did you mean 'segmentation'"),
        ({"a": "extends: {b}\n", "b": "trian: {{lr: 1}}\n"}, "b.yaml: unknown setting 'trian'"),
        ({"a": "extends: {b}\n", "b": "train: {{lr: -1}}\n"}, "b.yaml: train.lr"),
    ],
)
def test_invalid_base_config(tmp_path: Path, files: dict[str, str], words: str) -> None:
    paths = {name: tmp_path / f"{name}.yaml" for name in "abc"}
    for name, text in files.items():
        write(paths[name], text.format(**paths))
    assert_one_line_error([paths["a"]], [], words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("train.lr", "key=value"),
        ("extends=segmentation", "unknown setting 'extends'"),
        ("train.source_weight={0: -1.0}", "train.source_weight"),
        ("train.epochs=3", "5 rounds do not fit into 3 epochs"),
        ("acquisition.after_epochs=[3, 4]; acquisition.rounds=5", "2 rounds, but acquisition.rounds is 5"),
        ("task.unit=pixel", "set task.unit=image"),
        ("task={name: segmentation, region_side: 0}", "task.region_side"),
        ("task={name: segmentation, n_superpixels: 1}", "task.n_superpixels"),
        ("task={name: segmentation, compactness: 0}", "task.compactness"),
        ("task.name=detection", "task.name"),
        ("task.region_sides=3", "did you mean 'task.region_side'"),
        ("evaluation.resolution=full", "evaluation.resolution"),
        ("evaluation.average_flipped=perhaps", "evaluation.average_flipped"),
        ("evaluation.miou_star_exclude=wall", "evaluation.miou_star_exclude"),
        ("train.clip_grad_norm=0", "train.clip_grad_norm"),
        ("views.source.size=[0, 4]", "must be at least 1 pixel"),
        ("model.evidence=exp_at_most_11", "model.evidence"),
    ],
)
def test_invalid_settings(settings: str, words: str) -> None:
    assert_one_line_error([], settings.split("; "), words)


def test_segmentation_config_matches_the_paper() -> None:
    plain = load_config(["segmentation"])
    assert (plain.train.lr, plain.train.momentum, plain.train.weight_decay) == (3e-3, 0.9, 5e-4)
    assert (plain.train.epochs, plain.train.steps_per_epoch, plain.train.batch_size) == (50, None, 2)
    for n_source in (24_966, 9_400):  # GTAV, SYNTHIA
        assert steps_in_epoch(n_source, 2_975, plain.train.batch_size, per_pixel=True) == 1000
    assert (plain.train.schedule.name, plain.train.source_sampling) == ("poly", "rare_classes")
    assert not plain.train.nesterov
    assert (plain.acquisition.budget, query_epochs(plain)) == ("5%", (10, 12, 14, 16, 18))
    assert (plain.task.resolved_unit, plain.task.resolution) == ("pixel", "network")


def test_segmentation_parity_matches_the_published_code() -> None:
    from ducats.acquisition.budget import split_pixels

    city = load_config(["data/gtav-cityscapes", "parity/segmentation"])
    assert (city.method, city.data.name) == ("duc", "gtav_cityscapes")
    assert city.data.params == {
        "classes": 19,
        "size": [640, 1280],
        "source_size": [720, 1280],
        "void_pixels": "queried",
    }
    task = city.task
    assert (task.resolution, task.resolved_unit) == ("original", "pixel")
    assert (task.two_step_upsampling, task.label_downsampling) == (True, "nearest")
    assert city.acquisition.budget == "40960/image"
    # 1 % of 1280 x 640 in each of five rounds for any image size: 1.95 % of 2048 x 1024.
    ((*rounds,),) = split_pixels(city.acquisition.budget, [2048 * 1024], 5)
    assert rounds == [-(-1280 * 640 // 100)] * 5 == [8192] * 5
    assert sum(rounds) / (2048 * 1024) == pytest.approx(0.0195, abs=5e-5)
    assert query_epochs(city) == (10, 12, 14, 16, 18)
    assert city.train.epochs * (city.train.steps_per_epoch or 0) == 50_000
    assert city.train.schedule.params == {"horizon": 62_500, "power": 0.9}
    assert (city.train.lr, city.train.clip_grad_norm) == (3e-3, None)
    assert city.train.lr_multipliers == {"backbone": 0.1}
    assert city.objective.params == {"beta": 1.0, "lambda_": 0.01, "void": "unlabelled"}
    assert city.query.params == {"kappa": 10, "epsilon": 1e-7}
    assert (city.model.evidence, city.model.params["norm_eps"]) == ("exp_at_most_10", 0.0)
    assert (city.evaluation.resolution, city.evaluation.every_epochs) == ("original", 5)
    assert city.evaluation.average_flipped
    assert city.engine.precision == "32-true"
    other = load_config(["data/synthia-cityscapes", "parity/segmentation"])
    assert other.data.params["classes"] == 16
    # Another method with the same config keeps its own query.
    random = load_config(["data/gtav-cityscapes", "parity/segmentation", "methods/random"])
    assert (random.method, random.query.name, random.query.params) == ("random", "random", {})
    assert (random.objective.params, random.acquisition.budget) == ({}, "40960/image")


SEGMENTATION_CONFIGS = sorted(
    path.relative_to(config.configs_folder()).with_suffix("").as_posix()
    for path in config.configs_folder().glob("**/*.yaml")
    if "extends: segmentation" in path.read_text(encoding="utf-8").splitlines()
)


def test_every_segmentation_data_set_has_a_config() -> None:
    assert {"data/streets", "data/gtav-cityscapes", "data/synthia-cityscapes", "data/carla-camvid"} <= {
        *SEGMENTATION_CONFIGS
    }


METHODS = sorted(path.stem for path in (config.configs_folder() / "methods").glob("*.yaml"))
# Need two views, pseudo-labels or committees of whole images.
IMAGE_ONLY_METHODS = ("duc-fixmatch", "euq", "tqs")
SEGMENTATION_METHODS = [m for m in METHODS if load_config([f"methods/{m}"]).task.name == "segmentation"]


@pytest.mark.parametrize("data", SEGMENTATION_CONFIGS)
@pytest.mark.parametrize("method", [m for m in METHODS if m not in IMAGE_ONLY_METHODS])
def test_methods_for_segmentation(data: str, method: str) -> None:
    loaded = load_config([data, f"methods/{method}"])
    assert (loaded.task.name, loaded.method) == ("segmentation", method)
    check_config(loaded, is_resumable=True)  # calls query, objective and schedule on dummy input


@pytest.mark.parametrize("method", IMAGE_ONLY_METHODS)
def test_image_methods_reject_segmentation(method: str) -> None:
    with pytest.raises(UserError, match=r"whole images only|not pixels"):
        check_config(load_config(["data/streets", f"methods/{method}"]), is_resumable=True)


@pytest.mark.parametrize("method", [m for m in METHODS if m not in SEGMENTATION_METHODS])
def test_methods_for_classification(method: str) -> None:
    loaded = load_config(["data/digits", f"methods/{method}"])
    assert (loaded.task.resolved_unit, loaded.method) == ("image", method)
    check_config(loaded)


@pytest.mark.parametrize(
    "setting",
    [
        "seed=1",
        "engine.precision=bf16-mixed",
        "engine.scoring_batch_size=7",
        "acquisition.growth=2.0",
        "evaluation.source_holdout_fraction=0.1",
        "views.strong={cutout: 0.2}",
        "train.target_batching=joint",
        "model.bottleneck_relu=false",
        "train.unlabelled_includes_labelled=true",
    ],
)
def test_identity_has_every_setting_but_those_of_the_machine(setting: str) -> None:
    base, changed = load_config(["data/digits"]), load_config(["data/digits"], [setting])
    assert changed.digest() != base.digest()
    assert Config.model_validate(changed.identity()).digest() == changed.digest()
    machine = ["engine.device=cpu", "engine.processes=2"]
    assert load_config(["data/digits"], machine).digest() == base.digest()


@pytest.mark.parametrize(
    "settings",
    [
        ["views.unlabelled.interpolation=bilinear", "views.strong={interpolation: bicubic}"],
        ["views.source.interpolation=bilinear", "views.labelled={interpolation: bicubic}"],
        ["views.test.interpolation=bilinear"],
    ],
)
def test_the_identity_keeps_the_filter_of_each_view(settings: list[str]) -> None:
    given = load_config(["data/digits"], settings)
    reloaded = Config.model_validate(given.identity())
    assert (reloaded.views, reloaded.digest()) == (given.views, given.digest())
    assert given.digest() != load_config(["data/digits"]).digest()


def test_docs_show_the_config_small() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
    (shown,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "small_cnn" in block]
    assert yaml.safe_load(shown) == yaml.safe_load((configs_folder() / "small.yaml").read_text())
