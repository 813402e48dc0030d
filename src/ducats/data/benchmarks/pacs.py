"""PACS: photographs, paintings, cartoons and sketches of seven classes."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, DomainInfo, ImageCount
from ducats.data.benchmarks.reader import list_class_folders
from ducats.data.benchmarks.tasks import load_task
from ducats.data.domain import AdaptationData
from ducats.data.spec import DatasetSpec

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def _class_counts(*images: int) -> ImageCount:
    return ImageCount(sum(images), len(PACS_CLASSES), dict(zip(PACS_CLASSES, images, strict=True)))


PACS = Benchmark(
    title="PACS",
    domains=(
        DomainInfo("P", "photo"),
        DomainInfo("A", "art_painting", ("art",)),
        DomainInfo("C", "cartoon"),
        DomainInfo("S", "sketch"),
    ),
    n_classes=len(PACS_CLASSES),
    download_info="https://dali-dl.github.io/project_iccv2017.html (Li et al., ICCV 2017)",
    layout="""
photo/dog/*.jpg   (these four also in kfold/ or pacs_data/)
art_painting/...
cartoon/...
sketch/...
""",
    counts={
        ("P", "all"): _class_counts(189, 202, 182, 186, 199, 280, 432),
        ("A", "all"): _class_counts(379, 255, 285, 184, 201, 295, 449),
        ("C", "all"): _class_counts(389, 457, 346, 135, 324, 288, 405),
        ("S", "all"): _class_counts(772, 740, 753, 608, 816, 80, 160),
    },
    list_files=partial(list_class_folders, search_folders=("", "kfold", "pacs_data")),
)


def pacs(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Read a task of PACS: 9991 images of 7 classes in four domains; every pair is a task.

    Its lists (such as ``photo_train_kfold.txt``, with classes counted from 1) are for generalisation to an
    unseen domain. Adaptation uses whole domains, so the lists are ignored and there is no test set. Classes
    are in ASCII order. Keys are paths relative to the root.

    Args:
        root: Folder that contains ``photo``, ``art_painting``, ``cartoon`` and ``sketch``.
        task: Source and target: ``P-A``, ``C-S``, ...; ``P2A`` and ``photo->art`` also work.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode_images``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode_images``.
    """
    return load_task(PACS, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)


PACS_SPEC = DatasetSpec(pacs, per_pixel=False, benchmark=PACS)
