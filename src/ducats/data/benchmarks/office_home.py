"""Office-Home: art, clip art, product pictures and photographs of 65 everyday things."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, Count, Place
from ducats.data.benchmarks.listing import load_task
from ducats.data.benchmarks.reading import read_folders
from ducats.domain import Shift

OFFICE_HOME = Benchmark(
    title="Office-Home",
    places=(Place("Ar", "Art"), Place("Cl", "Clipart"), Place("Pr", "Product"), Place("Rw", "Real World")),
    classes=65,
    published="https://hemanthdv.github.io/officehome-dataset (Venkateswara et al., CVPR 2017)",
    layout="""
Art/Alarm_Clock/*.jpg
Clipart/...
Product/...
Real World/...   (or RealWorld, Real_World)
""",
    counts={
        ("Ar", "all"): Count(2427, 65),
        ("Cl", "all"): Count(4365, 65),
        ("Pr", "all"): Count(4439, 65),
        ("Rw", "all"): Count(4357, 65),
    },
    read=partial(read_folders, within=("", "OfficeHomeDataset_10072016")),
)


def office_home(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Shift:
    """Read a task of Office-Home: 15588 images of 65 classes in four domains, each to each other.

    The published lists train and test on the same target images, so nothing is held out here. Classes are
    sorted as ASCII, as in the published lists (``TV`` before ``Table``). Keys are paths within the root.

    Args:
        root: The folder that holds ``Art``, ``Clipart``, ``Product`` and ``Real World``.
        task: Source and target: ``Ar-Cl``, ``Rw-Pr``, ...; ``Ar2Cl`` and ``Art->Clipart`` mean the same.
        size: Height and width that images are squashed to.
        cache: Where decoded images go that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of decoded images to hold in memory, in all; None: see ``decode``.
    """
    return load_task(OFFICE_HOME, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)
