import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ducats.data.domain import AdaptationData
from ducats.data.manifest import manifest
from ducats.utils.errors import UserError

HEADER = "key,path,domain,label,split"
ROWS = (
    "s1,img/1.png,source,dog,train",
    "s2,img/2.png,source,cat,",
    "p1,img/3.png,target,dog,train",
    "p2,img/ö 4.png,target,cat,",
    "t1,img/5.png,target,cat,test",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "img").mkdir()
    for i, name in enumerate(("1", "2", "3", "ö 4", "5")):
        Image.new("RGB", (4, 4), (40 * i, 0, 0)).save(tmp_path / "img" / f"{name}.png")
    return tmp_path


def write(root: Path, rows: Sequence[str] = ROWS, header: str = HEADER) -> Path:
    path = root / "list.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def read(root: Path, rows: Sequence[str] = ROWS, header: str = HEADER) -> AdaptationData:
    return manifest(path=write(root, rows, header), size=4)


def content(data: Any) -> list[object]:
    tensors = (data.pool.pixels, data.source.labels, data.ground_truth, data.test.labels)
    names = (data.classes, data.source.images.keys, data.pool.keys, data.pool.files, data.test.images.keys)
    return [*names, *(tensor[:].tolist() for tensor in tensors)]


def test_rows_are_split_into_source_pool_and_test(root: Path) -> None:
    data: Any = read(root)
    assert data.classes == ("cat", "dog")
    assert data.source.images.keys == ("s1", "s2")
    assert data.source.labels[:].tolist() == [1, 0]
    assert data.pool.keys == ("p1", "p2")
    assert data.pool.pixels[:, 0, 0, 0].tolist() == [80, 120]
    assert data.ground_truth[:].tolist() == [1, 0]
    assert data.test.images.keys == ("t1",)
    assert data.test.labels[:].tolist() == [0]


def test_target_and_test_may_have_classes_that_the_source_lacks(root: Path) -> None:
    path = write(root, (*ROWS[:3], "p2,img/ö 4.png,target,owl,train", "t1,img/5.png,target,ant,test"))
    with pytest.raises(UserError, match="--new-classes"):
        manifest(path=path, size=4)
    data: Any = manifest(path=path, size=4, new_classes=True)
    assert (data.classes, data.target_only_classes) == (("cat", "dog"), ("ant", "owl"))
    assert (data.ground_truth[:].tolist(), data.test.labels[:].tolist()) == ([1, 3], [2])
    assert data.test.classes == data.all_classes == ("cat", "dog", "ant", "owl")


def test_byte_order_mark_line_ends_blank_lines_and_spaces_are_ignored(root: Path) -> None:
    plain = read(root)
    text = "\r\n".join([HEADER, *ROWS[:2], "", *(row.replace(",", " , ") for row in ROWS[2:])]) + "\r\n"
    (root / "list.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert content(manifest(path=root / "list.csv", size=4)) == content(plain)


def test_optional_other_and_quoted_cells_and_absolute_paths(root: Path) -> None:
    (root / "img/3.png").rename(root / 'img/a, "b".png')
    rows = ["img/1.png,source,a,?", f"{root}/img/2.png,source,b,?", '"img/a, ""b"".png",target,,?']
    data = read(root, rows, "path,domain,label,labels")  # not a misspelt `label`, which exists
    assert data.source.images.keys == ("img/1.png", f"{root}/img/2.png")
    assert data.pool.keys == ('img/a, "b".png',)
    assert data.ground_truth is None
    assert data.test is None


def parquet(root: Path, columns: Mapping[str, Sequence[object]]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(arrow.table(dict(columns)), root / "list.parquet")
    return root / "list.parquet"


def columns() -> dict[str, list[object]]:
    cells = [[cell or None for cell in row.split(",")] for row in ROWS]
    return {name: [row[i] for row in cells] for i, name in enumerate(HEADER.split(","))}


def test_parquet_equals_csv(root: Path) -> None:
    path = parquet(root, columns() | {"remark": [[1]] * 5})
    assert content(manifest(path=path, size=4)) == content(read(root))


def test_parquet_labels_may_be_numbers(root: Path) -> None:
    data = manifest(path=parquet(root, columns() | {"label": [2, 1, None, None, 1]}), size=4)
    assert data.classes == ("1", "2")
    assert data.ground_truth is None


def test_invalid_parquet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(root, columns() | {"domain": ["source", "source", "moon", "target", "target"]})
    with pytest.raises(UserError, match=r"list\.parquet, row 3: the domain is 'moon'"):
        manifest(path=path)
    parquet(root, {"path": ["a"], "domain": ["source"], "Label": ["x"]})
    with pytest.raises(UserError, match=r"list\.parquet, header: .*did you mean 'label'"):
        manifest(path=path)
    path.write_text("no")
    with pytest.raises(UserError, match=r"list\.parquet is not a valid Parquet file"):
        manifest(path=path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'ducats\[parquet\]'"):
        manifest(path=path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,,source,dog,", r"line 7: the path is empty"),
        ("x,img/1.png,Source,dog,", r"line 7: the domain is 'Source'; it must be source or target"),
        ("x,img/1.png,,dog,", r"line 7: the domain is ''"),
        ("x,img/1.png,target,dog,val", r"line 7: the split is 'val'; it must be train or test"),
        ("x,img/1.png,source,dog,test", r"line 7: a source image cannot be in the test split"),
        ("x,img/1.png,source,,", r"line 7: a source image needs a label"),
        ("x,img/1.png,target,,test", r"line 7: a test image needs a label"),
        ("x,img/9.png,target,dog,", r"line 7: .*img/9\.png does not exist"),
        ("x,img/1.png,target,cow,", r"split train.* 'cow' .*line 7.* 'cat', 'dog'"),
        ("x,img/1.png,target,cow,test", r"split test.* 'cow' .*line 7"),
        ("s1,img/1.png,target,dog,", r"line 7: the key 's1' is already used on line 2"),
        ("x,img/1.png,target,dog,,more", r"line 7: more cells than the header has columns"),
        ('x,"img/1.png,target,dog,', r"line 7: unexpected end of data"),
        ("x,img/1.png,target,,", r"1 of 3 target rows .* lack a label .*line 7"),
    ],
)
def test_errors_name_the_row(root: Path, row: str, message: str) -> None:
    with pytest.raises(UserError, match=r"list\.csv.*" + message) as caught:
        read(root, [*ROWS, row])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("key,path,domain,lable,split", "unknown column 'lable'; did you mean 'label'"),
        ("keys,path,domain,label,split", "unknown column 'keys'; did you mean 'key'"),
        ("key,path,domain,label,Split", "unknown column 'Split'; did you mean 'split'"),
        ("key,path,domain,class,split", "missing column 'label'; found 'key', 'path', 'domain', 'class'"),
        ("key;path;domain;label;split", "missing column 'path', 'domain', 'label'; .* separated by commas"),
        ("key,path,domain,label,label", "the column 'label' occurs more than once"),
    ],
)
def test_invalid_headers(root: Path, header: str, message: str) -> None:
    with pytest.raises(UserError, match=r"list\.csv, header: .*" + message):
        read(root, ROWS, header)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no rows"),
        (ROWS[2:], r".domain source. contains no images"),
        (ROWS[:2], r".domain target, split train. contains no images"),
        (ROWS[:1] + ROWS[2:], "only one class, 'dog'"),
    ],
)
def test_tables_without_source_or_pool(root: Path, rows: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=rf"list\.csv.* {message}"):
        read(root, rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.csv", b"", r"list\.csv, header: missing column .* an empty line"),
        ("list.csv", "\n".join([HEADER, *ROWS]).encode("latin-1"), r"list\.csv is not UTF-8"),
        ("nowhere.csv", None, r"nowhere\.csv does not exist"),
        ("list.xlsx", b"", r"list\.xlsx must be a \.csv or \.parquet file"),
    ],
)
def test_invalid_files(root: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (root / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        manifest(path=root / name)
