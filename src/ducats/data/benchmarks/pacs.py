"""PACS: photographs, paintings, cartoons and sketches of seven classes."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, Count, Place
from ducats.data.benchmarks.listing import load_task
from ducats.data.benchmarks.reading import read_folders
from ducats.domain import Shift

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def _count(*images: int) -> Count:
    return Count(sum(images), len(CLASSES), dict(zip(CLASSES, images, strict=True)))


PACS = Benchmark(
    title="PACS",
    places=(
        Place("P", "photo"),
        Place("A", "art_painting", ("art",)),
        Place("C", "cartoon"),
        Place("S", "sketch"),
    ),
    classes=len(CLASSES),
    published="https://dali-dl.github.io/project_iccv2017.html (Li et al., ICCV 2017)",
    layout="""
photo/dog/*.jpg   (these four also in kfold/ or pacs_data/)
art_painting/...
cartoon/...
sketch/...
""",
    counts={
        ("P", "all"): _count(189, 202, 182, 186, 199, 280, 432),
        ("A", "all"): _count(379, 255, 285, 184, 201, 295, 449),
        ("C", "all"): _count(389, 457, 346, 135, 324, 288, 405),
        ("S", "all"): _count(772, 740, 753, 608, 816, 80, 160),
    },
    read=partial(read_folders, within=("", "kfold", "pacs_data")),
)


def pacs(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Shift:
    """Read a task of PACS: 9991 images of 7 classes in four domains; every pair is a task.

    Its lists (such as ``photo_train_kfold.txt``, with classes counted from 1) are for generalisation to an
    unseen domain. Adaptation uses whole domains, so the lists are ignored and there is no test set. Classes
    are in ASCII order. Keys are paths relative to the root.

    Args:
        root: Folder that contains ``photo``, ``art_painting``, ``cartoon`` and ``sketch``.
        task: Source and target: ``P-A``, ``C-S``, ...; ``P2A`` and ``photo->art`` also work.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode``.
    """
    return load_task(PACS, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)
