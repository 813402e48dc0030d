"""Benchmarks in their published layouts, with a few images each."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from ducats.data.benchmarks.benchmark import normalise_name
from ducats.data.registry import DATASETS
from ducats.data.spec import DatasetSpec
from ducats.data.toy import toy
from ducats.utils.errors import UserError

office31, office_home, pacs = (DATASETS[name].load for name in ("office31", "office_home", "pacs"))
visda2017, domainnet, mini_domainnet = (
    DATASETS[name].load for name in ("visda2017", "domainnet", "mini_domainnet")
)
BENCHMARKS = {name: spec.benchmark for name, spec in DATASETS.items() if spec.benchmark is not None}


def write_image(path: Path, shade: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, shade, shade)).save(path)


def write_domain_folders(root: Path, domains: Iterable[str], classes: Iterable[str], count: int = 2) -> None:
    """Write class folders in domain folders; every image of a domain has its own shade."""
    for domain in domains:
        shades = iter(range(0, 256, 10))
        for name in classes:
            for number in range(count):
                write_image(root / domain / name / f"{number}.png", next(shades))


def write_list(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def ground_truth_of(data: Any) -> Any:
    assert data.ground_truth.dtype == torch.int64
    labels: list[int] = data.ground_truth[:].tolist()
    return labels


# -- class folders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("real", ["Real World", "RealWorld", "Real_World", "real_world"])
def test_office_home_in_ascii_order_for_every_spelling_of_real_world(tmp_path: Path, real: str) -> None:
    write_domain_folders(tmp_path, ["Art", real], ["Table", "TV", "Alarm_Clock"])
    data: Any = office_home(root=tmp_path, task="Ar-Rw", size=4)
    assert data.classes == ("Alarm_Clock", "TV", "Table")
    assert data.source.images.keys[0] == "Art/Alarm_Clock/0.png"
    assert data.source.labels[:].tolist() == [0, 0, 1, 1, 2, 2]
    assert data.pool.keys[-1] == f"{real}/Table/1.png"
    assert data.pool.files[-1] == tmp_path / real / "Table/1.png"
    assert ground_truth_of(data) == [0, 0, 1, 1, 2, 2]
    assert data.test is None  # published results use the target; this is a setting of the run


def test_office31_with_and_without_the_authors_images_folder(tmp_path: Path) -> None:
    write_domain_folders(tmp_path / "plain", ["amazon", "webcam"], ["mug", "bike"])
    write_domain_folders(tmp_path / "theirs", ["amazon/images", "webcam/images"], ["mug", "bike"])
    plain = office31(root=tmp_path / "plain", task="W-A", size=4)
    cache = tmp_path / "cache"
    theirs = office31(root=tmp_path / "theirs", task="W-A", size=4, cache=cache, memory_gb=0)
    assert len(list(cache.iterdir())) == 2
    assert plain.classes == theirs.classes == ("bike", "mug")
    assert plain.pool.keys[0] == "amazon/bike/0.png"
    assert theirs.pool.keys[0] == "amazon/images/bike/0.png"
    assert torch.equal(plain.pool.pixels[:], theirs.pool.pixels[:])
    assert ground_truth_of(plain) == ground_truth_of(theirs) == [0, 0, 1, 1]


@pytest.mark.parametrize("within", ["", "kfold", "pacs_data"])
def test_pacs_in_published_folders_ignores_the_lists(tmp_path: Path, within: str) -> None:
    write_domain_folders(tmp_path / within, ["photo", "art_painting"], ["house", "dog"])
    write_list(tmp_path / within / "photo_train_kfold.txt", ["photo/dog/0.png 1"])
    data = pacs(root=tmp_path, task="P-A", size=4)
    assert data.classes == ("dog", "house")
    assert len(data.source) == 4  # whole domains: the lists are for another protocol
    assert data.test is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("webcam/ruler/0.png", "amazon lacks classes .* has: ruler"),
        ("amazon/ruler/0.png", "webcam lacks classes .* has: ruler"),
        ("webcam/stray.png", r"webcam has 1 image outside .* stray\.png"),
        ("Webcam/mug/0.png", "has 2 folders for webcam: Webcam, webcam"),
    ],
)
def test_invalid_class_folders(tmp_path: Path, more: str, message: str) -> None:
    write_domain_folders(tmp_path, ["amazon", "webcam"], ["mug", "bike"])
    write_image(tmp_path / more)
    with pytest.raises(UserError, match=message):
        office31(root=tmp_path, task="A-W")


def test_too_many_classes(tmp_path: Path) -> None:
    write_domain_folders(tmp_path, ["photo", "sketch"], [f"class {i}" for i in range(8)], count=1)
    with pytest.raises(UserError, match="has 8 classes, but PACS has 7"):
        pacs(root=tmp_path, task="P-S")


# -- lists -------------------------------------------------------------------------------------------


def test_visda_with_and_without_lists(tmp_path: Path) -> None:
    write_domain_folders(tmp_path, ["train", "validation"], ["truck", "aeroplane"])
    plain = visda2017(root=tmp_path, size=4)
    assert plain.classes == ("aeroplane", "truck")
    assert plain.pool.keys[0] == "validation/aeroplane/0.png"
    for domain in ("train", "validation"):
        names = ["truck/1.png 11", "aeroplane/0.png 0", "aeroplane/1.png 0"]
        write_list(tmp_path / domain / "image_list.txt", names)
    listed = visda2017(root=tmp_path, task="synthetic->real", size=4)
    assert listed.classes == ("aeroplane", "truck")
    assert listed.pool.keys == tuple(f"validation/{name.split()[0]}" for name in names)
    assert ground_truth_of(listed) == [1, 0, 0]
    assert listed.test is None
    (tmp_path / "train/image_list.txt").unlink()
    write_list(tmp_path / "validation/image_list.txt", ["truck/1.png 0", "aeroplane/0.png 1"])
    assert visda2017(root=tmp_path, size=4).classes == ("truck", "aeroplane")  # in the order of one list


@pytest.fixture
def mini_root(tmp_path: Path) -> Path:
    """Two domains with lists; class 0 is not the first in alphabetical order."""
    write_domain_folders(tmp_path, ["clipart", "sketch"], ["zebra", "ant"], count=3)
    for domain, spelt in (("clipart", "clipart"), ("sketch", "Sketch")):
        images = [f"{domain}/{name}" for name in ("zebra", "ant")]
        train = [f"{image}/{i}.png {number}" for number, image in enumerate(images) for i in (2, 0)]
        test = [f"{image}/1.png {number}" for number, image in enumerate(images)]
        write_list(tmp_path / f"splits_mini/{spelt}_train.txt", train)
        write_list(tmp_path / f"splits_mini/{spelt}_test.txt", test)
    return tmp_path


def test_train_lists_are_source_and_pool_and_test_list_is_test_set(mini_root: Path) -> None:
    data: Any = mini_domainnet(root=mini_root, task="clp-skt", size=4)
    assert data.classes == ("zebra", "ant")
    names = ("zebra/2.png", "zebra/0.png", "ant/2.png", "ant/0.png")
    assert data.source.images.keys == tuple(f"clipart/{name}" for name in names)
    assert data.pool.keys[0] == "sketch/zebra/2.png"
    assert ground_truth_of(data) == [0, 0, 1, 1]
    assert data.test.images.keys == ("sketch/zebra/1.png", "sketch/ant/1.png")
    assert data.test.labels[:].tolist() == [0, 1]
    assert not {*data.test.images.keys} & {*data.pool.keys}
    assert data.pool.pixels[:, 0, 0, 0].tolist() == [20, 0, 50, 30]


def test_path_prefixes_from_another_machine_are_ignored(mini_root: Path) -> None:
    for file in (mini_root / "splits_mini").iterdir():
        write_list(file, [f"data/domainnet/{line}" for line in file.read_text().splitlines()])
    assert mini_domainnet(root=mini_root, task="c->s", size=4).pool.keys[0] == "sketch/zebra/2.png"


@pytest.mark.parametrize("folder", ["", "splits", "{}"])
def test_domainnet_lists_in_all_folders(mini_root: Path, folder: str) -> None:
    for file in (mini_root / "splits_mini").iterdir():
        domain = file.name.split("_")[0].lower()
        write_list(mini_root / folder.format(domain) / file.name, file.read_text().splitlines())
    data = domainnet(root=mini_root, task="skt-clp", size=4)
    assert (len(data.source), len(data.pool), len(data.test or ())) == (4, 4, 2)


def test_class_that_is_only_in_a_test_list(mini_root: Path) -> None:
    """Like t-shirt in DomainNet's paintings."""
    write_image(mini_root / "clipart/t-shirt/0.png")
    write_image(mini_root / "sketch/t-shirt/0.png")
    for name, split in (("clipart", "test"), ("Sketch", "train")):
        file = mini_root / f"splits_mini/{name}_{split}.txt"
        write_list(file, [*file.read_text().splitlines(), f"{name.lower()}/t-shirt/0.png 2"])
    for task in ("clp-skt", "skt-clp"):
        data = mini_domainnet(root=mini_root, task=task, size=4)
        assert data.classes == ("zebra", "ant", "t-shirt")
        assert 2 in (data.ground_truth if task == "clp-skt" else data.source.labels).tolist()  # type: ignore[union-attr]


# Lines added to one list, and the message.
BAD_LINES = [
    ("Sketch_train", "sketch/zebra/0.png zero", r"Sketch_train\.txt, line 5: .* is not `class/image number`"),
    ("Sketch_train", "0.png 0", r"line 5: '0\.png 0' is not"),
    ("Sketch_train", "sketch/zebra/0.png", "line 5: .* is not"),
    ("Sketch_train", "clipart/zebra/0.png 0", "line 5: the image is in 'clipart', not in 'sketch'"),
    ("Sketch_train", "sketch/zebra/0.png 1", "line 5: the class 'zebra' has the number 1, but 0"),
    ("Sketch_train", "sketch/bee/0.png 2", r"clipart_train\.txt lacks classes .*: bee"),
    ("Sketch_train", "sketch/ant/9.png 1", r"1 of 5 images cannot be read: .*ant/9\.png \(no such file\)"),
]


@pytest.mark.parametrize(("name", "line", "words"), BAD_LINES)
def test_rejects_invalid_lines(mini_root: Path, name: str, line: str, words: str) -> None:
    file = mini_root / f"splits_mini/{name}.txt"
    write_list(file, [*file.read_text().splitlines(), line])
    with pytest.raises(UserError, match=words):
        mini_domainnet(root=mini_root, task="clp-skt", size=4)


def test_lists_with_contradictory_or_duplicate_class_numbers(mini_root: Path) -> None:
    for name in ("clipart", "Sketch"):
        file = mini_root / f"splits_mini/{name}_test.txt"
        write_list(file, [*file.read_text().splitlines(), f"{name.lower()}/bee/0.png 1"])
    with pytest.raises(UserError, match="give the number 1 to 'ant' and to 'bee'"):
        mini_domainnet(root=mini_root, task="clp-skt", size=4)
    for name in ("train", "test"):
        file = mini_root / f"splits_mini/Sketch_{name}.txt"
        swapped = {"0": "1", "1": "0"}
        write_list(file, [line[:-1] + swapped[line[-1]] for line in file.read_text().splitlines()])
    with pytest.raises(UserError, match="'zebra' the number 1, but another list"):
        mini_domainnet(root=mini_root, task="clp-skt", size=4)


# -- tasks -------------------------------------------------------------------------------------------


TASKS = {"office_home": 12, "office31": 6, "visda2017": 1, "pacs": 12, "mini_domainnet": 12} | {
    "domainnet": 30,
    "digit_sets": 3,
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_spelling_is_one_task(name: str) -> None:
    benchmark = BENCHMARKS[name]
    assert len(set(benchmark.tasks)) == TASKS[name]
    task_of: dict[str, str] = {}
    for task in benchmark.tasks:
        source, target = benchmark.source_and_target(task)
        assert (source.short_name, target.short_name) == tuple(task.split("-"))
        for one in (source.short_name, source.name, *source.aliases):
            for two in (target.short_name, target.name, *target.aliases):
                for spelling in (f"{one}-{two}", f"{one}2{two}", f"{one} -> {two}", f"{one}→{two}".upper()):
                    assert benchmark.canonical_task(spelling) == task
                    assert task_of.setdefault(normalise_name(spelling), task) == task


@pytest.mark.parametrize("task", ["A-A", "A-X", "", "A", "A-W-D", "A-D2W", 7, None])
def test_rejects_unknown_tasks(tmp_path: Path, task: str) -> None:
    with pytest.raises(UserError, match=f"no task {task!r}; its tasks are A-W, A-D, W-A, W-D, D-A, D-W"):
        office31(root=tmp_path, task=task)


def test_canonical_task() -> None:
    assert DATASETS["office_home"].canonical_task("art->clipart") == "Ar-Cl"
    assert (
        DATASETS["office_home"].canonical_task("art->nowhere") == "art->nowhere"
    )  # rejected when it is read
    assert DatasetSpec(toy).canonical_task("art->clipart") == "art->clipart"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_missing_options_are_reported_with_the_tasks(name: str) -> None:
    benchmark = BENCHMARKS[name]
    with pytest.raises(UserError, match=rf"^the data set '{name}' needs --root") as caught:
        DATASETS[name].require_params(name, {})
    assert ("and --task" in str(caught.value)) == (len(benchmark.tasks) > 1)
    assert (benchmark.tasks[-1] in str(caught.value)) == (len(benchmark.tasks) > 1)
    DATASETS[name].require_params(name, {"root": "x", "task": "y"})


# -- missing files -----------------------------------------------------------------------------------


def make_other_files(root: Path) -> None:
    root.mkdir()
    for i in range(10):
        (root / f"{i}.tar").touch()


FOUND_INSTEAD: dict[str, Callable[[Path], None]] = {
    "the folder does not exist": lambda root: None,
    "it is a file": Path.touch,
    "it contains nothing": Path.mkdir,
    "it contains 0.tar, 1.tar, 2.tar, 3.tar, 4.tar, 5.tar, 6.tar, 7.tar and 2 more": make_other_files,
}


@pytest.mark.parametrize("found", FOUND_INSTEAD)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_error_for_missing_files_says_where_to_get_them(tmp_path: Path, name: str, found: str) -> None:
    benchmark = BENCHMARKS[name]
    FOUND_INSTEAD[found](tmp_path / "data")
    with pytest.raises(UserError) as caught:
        DATASETS[name].load(root=tmp_path / "data", task=benchmark.tasks[0])
    message, (source, _) = str(caught.value), benchmark.source_and_target(benchmark.tasks[0])
    assert f"are not in {tmp_path / 'data'} ({found})" in message
    assert message.startswith(f"{benchmark.title}: the images of {source.name}")
    for line in benchmark.layout.strip().splitlines():
        assert f"\n  {line}" in message
    assert "http" in message or "torchvision" in message


def test_error_names_the_missing_domain(tmp_path: Path) -> None:
    write_domain_folders(tmp_path, ["amazon"], ["mug", "bike"])
    (tmp_path / "webcam").mkdir()
    for task, missing in (("A-D", "dslr"), ("A-W", "webcam")):
        with pytest.raises(UserError, match=rf"images of {missing} are not in .*contains amazon, webcam"):
            office31(root=tmp_path, task=task)


def test_lists_without_images_and_images_without_lists(mini_root: Path) -> None:
    (mini_root / "splits_mini/Sketch_test.txt").rename(mini_root / "elsewhere.txt")
    with pytest.raises(UserError, match=r"images of sketch \(test\) are not in .*Dassl"):
        mini_domainnet(root=mini_root, task="clp-skt")
    for path in (mini_root / "clipart").rglob("*.png"):
        path.unlink()
    with pytest.raises(UserError, match=r"images of clipart \(train\) are not in"):
        mini_domainnet(root=mini_root, task="clp-skt")


# -- published counts --------------------------------------------------------------------------------

TOTALS = {
    "office_home": [2427, 4365, 4439, 4357],
    "office31": [2817, 795, 498],
    "visda2017": [152397, 55388],
    "pacs": [1670, 2048, 2344, 3929],
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_counts_are_complete_and_consistent(name: str) -> None:
    benchmark = BENCHMARKS[name]
    splits = ("train", "test") if benchmark.has_test_lists else ("all",)
    assert set(benchmark.counts) == {
        (domain.short_name, split) for domain in benchmark.domains for split in splits
    }
    for count in benchmark.counts.values():
        assert count.classes in (None, benchmark.n_classes)
        if count.per_class:
            assert sum(count.per_class.values()) == count.total
            assert len(count.per_class) == benchmark.n_classes
    if name in TOTALS:
        totals = [benchmark.counts[domain.short_name, "all"].total for domain in benchmark.domains]
        assert totals == TOTALS[name]


def test_docs_cover_every_benchmark() -> None:
    from ducats.config import load_config

    page = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")
    for name, benchmark in BENCHMARKS.items():
        config_name = name.replace("_", "-")
        assert load_config([f"data/{config_name}"]).data.name == name
        assert f"ducats run -c data/{config_name} --root" in page
        assert all(address in page for address in re.findall(r"https://[\w./~-]+", benchmark.download_info))
