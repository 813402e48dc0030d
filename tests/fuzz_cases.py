"""Random damaged inputs for the readers of ducats, used by ``test_fuzzing`` and ``benchmarks/fuzzing.py``.

A reader may succeed or raise an error that the command line prints as one sentence; anything else is a bug.
"""

import csv
import io
import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from ducats.annotation import AnnotationStore
from ducats.annotation.csv_answers import read_csv_answers
from ducats.annotation.summary import summarise_annotators, summarise_rounds
from ducats.config import configs_folder, describe_settings, load_config, to_yaml
from ducats.data.decoding import decode_image_sets
from ducats.data.manifest import scan_manifest
from ducats.ledger import load_ledger
from ducats.models.weights_file import read_weights
from ducats.report.run_reader import read_run
from ducats.report.watch.reader import RunWatcher
from ducats.run import factory
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.schema import read_sweep
from ducats.utils.errors import AwaitingLabels, UserError
from question_rounds import submit_answer, write_round
from synthetic_runs import write_pixel_run, write_run

HANDLED_ERRORS = (UserError, AwaitingLabels, OSError)  # see ``ducats.cli.main``

Case = Callable[[], object]
CaseMaker = Callable[[random.Random, Path], Case]  # a folder for its files

ODD_YAML = [
    "", "-1", "0", "1", "1e9", "1e999", "-1e-999", ".nan", ".inf", "null", "~", "true", "[]", "{}", "''",
    "[1, 2]", "[[]]", "{a: 1}", "{1: 2}", "{[1]: 2}", "{null: null}", "2020-01-01", "2020-13-45",
    "2020-01-01T00:00:00Z", "!!int x", "!!float x", "!!bool x", "!!binary x", "!!set {a}", "!!timestamp x",
    "!!python/object:os.system x", "!unknown x", "1:2:3", "0x", "0o9", "9" * 5000, "x" * 5000, "[" * 3000,
    "{a: " * 3000, "- " * 3000, "&a [*a]", "&a {b: *a}", "*a", "<<: 1", "{<<: [1]}", "? a", "=", "@x",
    "`x`", "%x", "\t", "a: b: c", "\x00", "\x1b[31m", "\u202e", "\ud800", "auto", "torch:nn.Linear",
    "os:sep", "a:b", ":", "..", "/", "~/x", "~nobody/x",
]  # fmt: skip
ODD_JSON: list[Any] = [
    None, True, -1, 0, 1, 10**9, 10**30, -(10**400), 0.5, float("nan"), float("inf"), "", "x", "\x00",
    "\ud800", "../../x", "x" * 5000, [], [[]], {}, {"a": 1}, [None], ["x", 1], {"": {}}, [10**20],
]  # fmt: skip


def odd_number(rng: random.Random) -> int:
    return rng.choice([0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**12])


def mutate_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut, repeat, insert or zero some bytes."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        size = len(data)
        at = rng.randrange(size) if size else 0
        end = min(size, at + rng.choice([1, 2, 8, 100]))
        match rng.randrange(6):
            case 0:
                data[at:end] = bytes(byte ^ (1 << rng.randrange(8)) for byte in data[at:end])
            case 1:
                del data[at:]
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end] * rng.choice([1, 3, 50])
            case 4:
                data[at:at] = rng.randbytes(rng.choice([1, 4, 50]))
            case _:
                data[at:end] = bytes(end - at)
    return bytes(data)


def mutate_tree(rng: random.Random, tree: Any, odd: list[Any] = ODD_JSON) -> Any:
    """Replace, remove or add one node of nested lists and mappings."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        key = rng.choice(list(tree))
        copy = dict(tree)
        action = rng.random()
        if action < 0.1:
            del copy[key]
        elif action < 0.2:
            copy[rng.choice(["", "x", "name", "params", "\x00"])] = rng.choice(odd)
        else:
            copy[key] = mutate_tree(rng, tree[key], odd)
        return copy
    if isinstance(tree, list) and tree and rng.random() < 0.85:
        index = rng.randrange(len(tree))
        action = rng.random()
        if action < 0.1:
            return tree[:index] + tree[index + 1 :]
        if action < 0.2:
            return [*tree, tree[index]]
        return [*tree[:index], mutate_tree(rng, tree[index], odd), *tree[index + 1 :]]
    return rng.choice(odd)


def mutate_text(rng: random.Random, text: str) -> bytes:
    """Damage a text of lines: its bytes, its order, or the values behind colons and commas."""
    lines = text.splitlines(keepends=True)
    match rng.randrange(4):
        case 0:
            return mutate_bytes(rng, text.encode())
        case 1:
            rng.shuffle(lines)
        case 2 if lines:
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
        case _ if lines:
            at = rng.randrange(len(lines))
            separator = ":" if ":" in lines[at] else ","
            cells = lines[at].rstrip("\n").split(separator)
            cells[rng.randrange(len(cells))] = rng.choice(ODD_YAML)
            lines[at] = separator.join(cells) + "\n"
    return "".join(lines).encode("utf-8", "surrogatepass")


# ---- configs


SETTINGS = [name for name, _, _ in describe_settings()]
PARAMS = [
    *("query.params.kappa", "query.params.x", "objective.params.weight", "model.params.backbone"),
    *("data.params.size", "oracle.params.rule", "train.schedule.params.power", "views.source"),
]
METHODS = sorted(path.stem for path in (configs_folder() / "methods").glob("*.yaml"))


def _build(config: Any) -> None:
    factory.check_config(config)
    factory.make_query(config)
    factory.make_objective(config)
    factory.make_schedule(config, 10)
    yaml.safe_load(to_yaml(config))


def settings_case(rng: random.Random, folder: Path) -> Case:
    del folder
    names = [rng.choice(SETTINGS + PARAMS) for _ in range(rng.choice([1, 1, 2]))]
    overrides = [f"{name}={rng.choice(ODD_YAML)}" for name in names]
    method = rng.choice(METHODS)
    return lambda: _build(load_config([method], overrides))


def config_file_case(rng: random.Random, folder: Path) -> Case:
    path = rng.choice(sorted(configs_folder().rglob("*.yaml")))
    text = path.read_text()
    if rng.random() < 0.5:
        tree = mutate_tree(rng, yaml.safe_load(text), [value for value in ODD_JSON if value != "\ud800"])
        content = yaml.safe_dump(tree).encode()
    else:
        content = mutate_text(rng, text)
    target = folder / "config.yaml"
    target.write_bytes(content)
    return (
        (lambda: read_sweep(target))
        if path.parent.name == "sweeps"
        else (lambda: _build(load_config([target])))
    )


# ---- tables


def _manifest_rows(folder: Path) -> list[dict[str, str]]:
    (folder / "a.png").write_bytes(b"")
    return [
        {"path": "a.png", "domain": domain, "label": label, "split": "train", "key": key}
        for key, domain, label in (("1", "source", "cat"), ("2", "source", "dog"), ("3", "target", ""))
    ]


def manifest_csv_case(rng: random.Random, folder: Path) -> Case:
    rows, text = _manifest_rows(folder), io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    path = folder / "manifest.csv"
    path.write_bytes(mutate_text(rng, text.getvalue()))
    return lambda: scan_manifest(path)


def manifest_parquet_case(rng: random.Random, folder: Path) -> Case:
    import pyarrow
    from pyarrow import parquet

    columns: dict[str, Any] = {}
    for name in _manifest_rows(folder)[0]:
        values: list[Any] = [row[name] for row in _manifest_rows(folder)]
        match rng.randrange(8):
            case 0:
                values = [odd_number(rng) % 2**31] * 3
            case 1:
                values = [[1.5], None, []]
            case 2:
                values = [b"\xff\xfe", None, b"a"]
        columns[name] = pyarrow.array(values)
        if rng.random() < 0.1:
            invalid = pyarrow.array([b"\xff\xfe", b"a", b"\x00"])
            columns[name] = pyarrow.StringArray.from_buffers(3, invalid.buffers()[1], invalid.buffers()[2])
    path = folder / "manifest.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    if rng.random() < 0.5:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    return lambda: scan_manifest(path)


def answers_csv_case(rng: random.Random, folder: Path) -> Case:
    path = folder / "answers.csv"
    path.write_bytes(mutate_text(rng, "key,y,x,label,seconds\na.png,1,2,cat,3.5\nb.png,0,0,void,\n"))
    per_pixel = rng.random() < 0.5
    return lambda: read_csv_answers(path, per_pixel=per_pixel)


# ---- images and weights


def image_case(rng: random.Random, folder: Path) -> Case:
    mode, suffix = rng.choice(
        [("RGB", "png"), ("P", "png"), ("L", "jpg"), ("RGB", "jpg"), ("RGBA", "webp"), ("L", "tif")]
    )
    path = folder / f"image.{suffix}"
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).convert(mode).save(path)
    path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    return lambda: decode_image_sets([[(path.name, path)]], 8, cache=None, memory_gb=None)


def weights_case(rng: random.Random, folder: Path) -> Case:
    suffix = rng.choice(["pt", "npz", "safetensors"])
    path = folder / f"weights.{suffix}"
    tensors = {"conv.weight": torch.ones(2, 3), "conv.bias": torch.zeros(2)}
    if suffix == "pt":
        stored = mutate_tree(rng, {"state_dict": tensors, "epoch": 3}) if rng.random() < 0.5 else tensors
        torch.save(stored, path)
    elif suffix == "npz":
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        arrays["conv.weight|q"] = np.ones(rng.choice([(), (2,), (2, 3), (0, 3)]), np.int8)
        if rng.random() < 0.7:
            arrays["conv.weight|s"] = np.ones(rng.choice([(), (2,), (7,)]), np.float32)
        np.savez(path, **arrays)
    else:
        from safetensors.torch import save_file

        save_file(tensors, path)
    if rng.random() < 0.6:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    return lambda: read_weights(path)


# ---- run folders


def damage_file(rng: random.Random, path: Path) -> None:
    """Damage a file of a run folder: its values where it is JSON or YAML, else its bytes."""
    if rng.random() < 0.2 or path.suffix not in (".json", ".jsonl", ".yaml"):
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    elif path.suffix == ".json":
        path.write_text(json.dumps(mutate_tree(rng, json.loads(path.read_text()))))
    elif path.suffix == ".yaml":
        tree = mutate_tree(rng, yaml.safe_load(path.read_text()))
        path.write_text(yaml.safe_dump(tree, allow_unicode=False))
    else:
        lines = path.read_text().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(mutate_tree(rng, json.loads(lines[at])))
        path.write_text("\n".join(lines) + "\n")


def run_folder_case(rng: random.Random, folder: Path) -> Case:
    """A finished run, read by the report and by `ducats watch`."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    is_finished = rng.random() < 0.5
    if rng.random() < 0.5:
        write_run(run, rounds=2, finished=is_finished)
    else:
        write_pixel_run(run, rounds=2, finished=is_finished)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.suffix != ".png")
    damage_file(rng, rng.choice(files))

    def read() -> None:
        RunWatcher().read_state(run)
        read_run(run)
        load_ledger(RunFolder(run)).labels_per_image()

    return read


def questions_case(rng: random.Random, folder: Path) -> Case:
    """Questions and answers, read as the labelling page does."""
    questions = folder / "questions"
    shutil.rmtree(questions, ignore_errors=True)
    store = write_round(questions, min_annotators=2)
    for annotator in ("anna", "ben"):
        submit_answer(store, "a", "cat", annotator, seconds=2.0)
    files = sorted(path for path in questions.rglob("*.json*") if path.is_file())
    damage_file(rng, rng.choice(files))

    def read() -> None:
        damaged = AnnotationStore(questions)
        summarise_rounds(damaged)
        summarise_annotators(damaged)
        damaged.receive([{"question": "b", "word": "dog", "annotator": "anna"}], channel="test")

    return read


CASES: Mapping[str, CaseMaker] = {
    "run_folder": run_folder_case,
    "questions": questions_case,
    "settings": settings_case,
    "config_file": config_file_case,
    "manifest_csv": manifest_csv_case,
    "manifest_parquet": manifest_parquet_case,
    "answers_csv": answers_csv_case,
    "image": image_case,
    "weights": weights_case,
}


def failure_of(name: str, seed: int, folder: Path) -> str | None:
    """Run one case; return the unhandled exception as text, None if the case was handled."""
    folder.mkdir(exist_ok=True)
    case = CASES[name](random.Random(f"{name} {seed}"), folder)
    try:
        case()
    except HANDLED_ERRORS:
        return None
    except Exception as error:
        return f"{name} {seed}: {type(error).__name__}: {str(error)[:200]}"
    return None
