"""miniDomainNet: 126 classes and four domains of DomainNet, with its own lists."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, Count
from ducats.data.benchmarks.domainnet import CLIPART, IMAGES, PAINTING, REAL, SKETCH
from ducats.data.benchmarks.listing import load_task
from ducats.data.benchmarks.reading import read_list
from ducats.domain import Shift

MINI_DOMAINNET = Benchmark(
    title="miniDomainNet",
    places=(CLIPART, PAINTING, REAL, SKETCH),
    classes=126,
    published=f"{IMAGES}, the images; https://github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md), the lists",
    layout="""
clipart/aircraft_carrier/*.jpg   (DomainNet's images)
splits_mini/clipart_train.txt, splits_mini/clipart_test.txt
painting, real and sketch likewise
""",
    counts={
        ("clp", "train"): Count(18073, 126),
        ("clp", "test"): Count(630, 126),
        ("pnt", "train"): Count(30572, 126),
        ("pnt", "test"): Count(630, 126),
        ("rel", "train"): Count(64979, 126),
        ("rel", "test"): Count(630, 126),
        ("skt", "train"): Count(23862, 126),
        ("skt", "test"): Count(630, 126),
    },
    read=partial(read_list, lists=("splits_mini", "")),
    held_out=True,
)


def mini_domainnet(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Shift:
    """Read a task of miniDomainNet: 126 classes of DomainNet in four domains; every pair is a task.

    Source and pool are the train lists of their domains; the test set is the target's test list (630 images).
    Classes are in the order of the lists' class indices. Keys are paths relative to the root.

    Args:
        root: Folder that contains ``clipart`` and the other domains, and the lists in ``splits_mini``.
        task: Source and target: ``clp-skt``, ``rel-pnt``, ...; ``real->painting`` also works.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode``.
    """
    return load_task(MINI_DOMAINNET, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)
