from pathlib import Path

import pytest
import yaml

from ducats import config
from ducats.config import Config, ask_epochs, load
from ducats.errors import UserError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_later_layers_win(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "train: {lr: 0.1, epochs: 30}\nseed: 1\n")
    two = write(tmp_path / "two.yaml", "train: {lr: 0.2}\n")
    loaded = load([one, two], ["seed=3"], {"train": {"epochs": 40}})
    assert (loaded.train.lr, loaded.train.epochs, loaded.seed) == (0.2, 40, 3)


def test_another_part_brings_its_own_knobs(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "query: {name: duc, knobs: {kappa: 5, order: data_dis}}\n")
    assert load([one, "methods/spread"]).query.knobs == {"kappa": 10}
    assert load([one], ["query.knobs.kappa=7"]).query.knobs == {"kappa": 7, "order": "data_dis"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {lrr: 0.1}\n", ["one.yaml", "'train.lrr'", "did you mean 'train.lr'"]),
        ("trian: {lr: 0.1}\n", ["one.yaml", "'trian'", "did you mean 'train'"]),
        ("views: {labelled: {flipp: 1}}\n", ["'views.labelled.flipp'", "did you mean 'views.labelled.flip'"]),
        ("train: {lr: fast}\n", ["train.lr", "valid number", "'fast'"]),
        ("train: {lr: -1}\n", ["train.lr", "greater than 0"]),
        ("train: [\n", ["one.yaml", "not valid YAML"]),
        ("- a\n", ["one.yaml", "key: value"]),
        ("ask: {after: [3, 2]}\n", ["must rise"]),
        ("ask: {after: [50]}\n", ["epoch 50", "would never be learnt"]),
        ("views: {source: {jitter: [0, 0, 0, 0.7]}}\n", ["hue at most 0.5"]),
    ],
)
def test_a_slip_is_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load([write(tmp_path / "one.yaml", text)])
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_must_be_key_value() -> None:
    with pytest.raises(UserError, match=r"key=value"):
        load((), ["train.lr"])


def test_an_unknown_config_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean '.*spread'"):
        load(["methods/spred"])


def test_shipped_configs_load_and_are_found_by_every_spelling() -> None:
    found = sorted(config.shipped().rglob("*.yaml"))
    assert len(found) >= 20
    for path in found:
        assert load([path])
    assert {load([name]).method for name in ("spread", "methods/spread", "configs/methods/spread.yaml")} == {
        "spread"
    }


def test_ablation_rows_say_what_the_paper_says() -> None:
    rows = {name: load([f"ablation/{name}"]) for name in ("edl", "edl-random", "edl-entropy", *"abcdefgh")}
    losses = {
        name: (row.objective.knobs["beta"], row.objective.knobs["lambda_"]) for name, row in rows.items()
    }
    assert {losses[n] for n in ("edl", "edl-random", "edl-entropy", "a")} == {(0.0, 0.0)}
    assert (losses["b"], losses["c"]) == ((1.0, 0.0), (0.0, 0.05))
    assert {losses[n] for n in "defgh"} == {(1.0, 0.05)}
    assert [rows[n].query.name for n in ("a", "b", "c", "e", "f", "g", "h")] == [
        *("duc",) * 3,
        "random",
        "entropy",
        "u_dis",
        "u_data",
    ]
    assert rows["edl"].ask.rounds == rows["d"].ask.rounds == 0


def test_questions_come_after_the_published_epochs() -> None:
    assert ask_epochs(Config()) == (10, 12, 14, 16, 18)
    assert ask_epochs(load((), ["train.epochs=40", "ask.after=[10, 12]"])) == (10, 12)
    assert ask_epochs(load((), ["ask.rounds=0"])) == ()
    assert ask_epochs(load((), ["train.epochs=20"])) == (4, 5, 6, 7, 8)
    for epochs in range(1, 60):
        for rounds in range(1, min(epochs, 7) + 1):
            after = ask_epochs(load((), [f"train.epochs={epochs}", f"ask.rounds={rounds}"]))
            assert len(after) == rounds
            assert list(after) == sorted(set(after))
            assert after[0] <= max(1, round(0.2 * epochs))
            assert (
                after[0] >= 1 or rounds == epochs
            )  # an untrained model does not choose, if it can be helped
            assert after[-1] < epochs


def test_parity_is_the_published_behaviour() -> None:
    home = config.load(["data/office-home", "parity"])
    assert (home.method, home.train.lr, home.train.epochs) == ("duc", 4e-3, 50)
    assert home.query.knobs == {"kappa": 10, "share": 0.01, "epsilon": 1e-7}
    assert home.ask.after == (10, 12, 14, 16, 18)
    assert (home.ask.rounding, home.train.labelled_batches) == ("ceil_per_round", "short_last")
    for view in (home.views.unlabelled, home.views.scoring):
        assert (view.resize, view.crop, view.size, view.flip) == ("short_side", "random", 224, 0.0)
    assert home.views.test.crop == "center"
    assert (home.evaluation.images, home.evaluation.every) == ("published", 5)
    assert home.train.source_weight == {0: 1.0}
    assert config.load(["data/mini-domainnet", "parity"]).train.lr == 2e-3
    visda = config.load(["data/visda2017", "parity", "parity/visda"])
    assert (visda.train.lr, visda.train.epochs, visda.evaluation.every) == (1e-3, 40, 2)
    assert visda.train.source_weight == {0: 1.0, 1: 0.5}
    assert visda.engine.precision == home.engine.precision == "32-true"
    plain = config.load(["parity", "parity/visda"], ["train.source_weight={0: 1.0}"])
    assert plain.train.source_weight == {0: 1.0}  # one value, replaced as a whole
    assert (visda.views.source.crop, visda.views.source.flip) == ("center", 0.5)
    # Another method under the same conditions keeps its own query.
    other = config.load(["data/office-home", "parity", "methods/random"])
    assert (other.method, other.query.name, other.query.knobs) == ("random", "random", {})


@pytest.mark.parametrize(
    "setting",
    ["train.source_weight={1: 0.5}", "train.source_weight={0: -1.0}", "views.test={resize: short_side}"],
)
def test_settings_that_make_no_sense(setting: str) -> None:
    with pytest.raises(UserError):
        config.load([], [setting])


def test_a_changed_pairing_gets_another_name() -> None:
    def name(*settings: str, files: tuple[str, ...] = ("methods/random",)) -> str:
        return load(files, settings).method

    assert name() == "random"
    assert name("objective.name=duc") == "duc+random"
    assert name("query.name=mine:torn") == "softmax+torn"
    assert name("query.name=mine:torn", "method=own") == "own"
    assert name("query.knobs.kappa=3", files=("duc",)) == "duc"
    assert name("query.name=random", files=()) == "duc+random"
    assert name(files=("methods/random", "methods/spread")) == "spread"


def test_rounds_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"5 rounds do not fit into 3 epochs"):
        load((), ["train.epochs=3"])
    with pytest.raises(UserError, match=r"names 2 epochs, but ask.rounds is 5: drop one"):
        load((), ["ask.after=[3, 4]", "ask.rounds=5"])


def test_the_resolved_config_reads_back_as_itself() -> None:
    loaded = load(["data/digits", "methods/spread"])
    assert Config.model_validate(yaml.safe_load(config.to_yaml(loaded))) == loaded


def test_identity_leaves_out_where_it_is_computed() -> None:
    base = load(["duc"])
    assert load(["duc"], ["engine.device=cpu", "engine.processes=2"]).digest() == base.digest()
    assert load(["duc"], ["seed=1"]).digest() != base.digest()
    assert load(["duc"], ["engine.precision=bf16-mixed"]).digest() != base.digest()


def test_every_setting_is_explained() -> None:
    names = [name for name, _, _ in config.explain()]
    assert {"train.lr", "ask.budget", "views.scoring", "engine.precision"} <= set(names)
