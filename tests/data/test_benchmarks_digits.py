"""MNIST, USPS and SVHN: a few images of each, in torchvision's file formats."""

import bz2
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ducats.data.benchmarks.digit_sets import digit_sets
from ducats.utils.errors import UserError


def write_mnist(root: Path) -> None:
    folder = root / "MNIST/raw"
    folder.mkdir(parents=True)
    for part, labels in (("train", [5, 0, 3]), ("t10k", [7, 1])):
        pixels = bytes(10 * label for label in labels for _ in range(28 * 28))
        images = struct.pack(">IIII", 0x803, len(labels), 28, 28) + pixels
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, len(labels)) + bytes(labels)
        )


def write_usps(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, labels in (("usps.bz2", [9, 2]), ("usps.t.bz2", [4])):
        level = " ".join(f"{i + 1}:-1.0" for i in range(256))
        text = "".join(f"{label + 1} {level}\n" for label in labels)  # labels in the file start at 1
        (folder / name).write_bytes(bz2.compress(text.encode()))


def write_svhn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(SVHN, "_check_integrity", lambda self: True)  # checksums of the real files
    for split, labels in (("train", [10, 6, 1, 2]), ("test", [3])):  # 10 means 0
        pixels: NDArray[np.uint8] = np.zeros((32, 32, 3, len(labels)), np.uint8)
        pixels[:, :, 0] = 200  # red
        savemat(folder / f"{split}_32x32.mat", {"X": pixels, "y": np.array(labels)[:, None]})


def test_mnist_to_usps(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_usps(tmp_path)
    data: Any = digit_sets(root=tmp_path, task="M-U", size=12)
    assert data.classes == tuple("0123456789")
    assert data.source.images.keys == ("MNIST/train/00000", "MNIST/train/00001", "MNIST/train/00002")
    assert data.source.labels[:].tolist() == [5, 0, 3]
    assert data.source.images.pixels.shape == (3, 3, 12, 12)
    assert data.source.images.pixels[:, :, 6, 6].tolist() == [[50] * 3, [0] * 3, [30] * 3]
    assert data.pool.keys == ("USPS/train/00000", "USPS/train/00001")
    assert data.ground_truth[:].tolist() == [9, 2]
    assert data.test.images.keys == ("USPS/test/00000",)
    assert data.test.labels[:].tolist() == [4]


def test_svhn_to_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)
    write_svhn(tmp_path / "SVHN", monkeypatch)  # a separate folder also works
    data: Any = digit_sets(root=tmp_path, task="S2M")
    assert data.test.labels[:].tolist() == [7, 1]
    assert data.pool.pixels.shape == (3, 3, 32, 32)
    assert data.source.labels[:].tolist() == [0, 6, 1, 2]
    assert data.source.images.pixels[0, :, 0, 0].tolist() == [200, 0, 0]


@pytest.mark.parametrize(
    ("params", "message"),
    [({"task": "M-S"}, "tasks are M-U, U-M, S-M"), ({"task": "M-U", "size": 0}, "cannot be 0 pixels wide")],
)
def test_invalid_params(tmp_path: Path, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        digit_sets(root=tmp_path, **params)


def test_corrupt_and_missing_files(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with pytest.raises(UserError, match=r"images of USPS \(train\) are not in .*contains MNIST"):
        digit_sets(root=tmp_path, task="M-U")
    write_usps(tmp_path)
    (tmp_path / "usps.t.bz2").write_bytes(b"no bzip")
    with pytest.raises(UserError, match=r"usps\.t\.bz2 cannot be read as USPS"):
        digit_sets(root=tmp_path, task="M-U")
    (tmp_path / "train_32x32.mat").write_bytes(b"half a download")
    (tmp_path / "test_32x32.mat").write_bytes(b"")
    with pytest.raises(UserError, match=r"train_32x32\.mat cannot be read as SVHN"):
        digit_sets(root=tmp_path, task="S-M")
