"""Office-Home: art, clip art, product images and photographs of 65 classes of everyday objects."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, DomainInfo, ImageCount
from ducats.data.benchmarks.reader import list_class_folders
from ducats.data.benchmarks.tasks import load_task
from ducats.data.domain import AdaptationData
from ducats.data.spec import DatasetSpec

OFFICE_HOME = Benchmark(
    title="Office-Home",
    domains=(
        DomainInfo("Ar", "Art"),
        DomainInfo("Cl", "Clipart"),
        DomainInfo("Pr", "Product"),
        DomainInfo("Rw", "Real World"),
    ),
    n_classes=65,
    download_info="https://hemanthdv.github.io/officehome-dataset (Venkateswara et al., CVPR 2017)",
    layout="""
Art/Alarm_Clock/*.jpg
Clipart/...
Product/...
Real World/...   (or RealWorld, Real_World)
""",
    counts={
        ("Ar", "all"): ImageCount(2427, 65),
        ("Cl", "all"): ImageCount(4365, 65),
        ("Pr", "all"): ImageCount(4439, 65),
        ("Rw", "all"): ImageCount(4357, 65),
    },
    list_files=partial(list_class_folders, search_folders=("", "OfficeHomeDataset_10072016")),
)


def office_home(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Read a task of Office-Home: 15588 images of 65 classes in four domains; every pair is a task.

    The published lists use the same target images for training and testing, so there is no test set. Classes
    are in ASCII order, as in the published lists (``TV`` before ``Table``). Keys are paths relative to the
    root.

    Args:
        root: Folder that contains ``Art``, ``Clipart``, ``Product`` and ``Real World``.
        task: Source and target: ``Ar-Cl``, ``Rw-Pr``, ...; ``Ar2Cl`` and ``Art->Clipart`` also work.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode_images``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode_images``.
    """
    return load_task(OFFICE_HOME, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)


OFFICE_HOME_SPEC = DatasetSpec(office_home, per_pixel=False, benchmark=OFFICE_HOME)
