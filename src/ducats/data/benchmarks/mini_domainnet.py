"""miniDomainNet: 126 classes and four domains of DomainNet, with its own lists."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, ImageCount
from ducats.data.benchmarks.domainnet import CLIPART, DOMAINNET_URL, PAINTING, REAL, SKETCH
from ducats.data.benchmarks.reader import list_split_file
from ducats.data.benchmarks.tasks import load_task
from ducats.data.domain import AdaptationData
from ducats.data.spec import DatasetSpec

MINI_DOMAINNET = Benchmark(
    title="miniDomainNet",
    domains=(CLIPART, PAINTING, REAL, SKETCH),
    n_classes=126,
    download_info=(
        f"{DOMAINNET_URL}, the images; https://github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md), the lists"
    ),
    layout="""
clipart/aircraft_carrier/*.jpg   (DomainNet's images)
splits_mini/clipart_train.txt, splits_mini/clipart_test.txt
painting, real and sketch likewise
""",
    counts={
        ("clp", "train"): ImageCount(18073, 126),
        ("clp", "test"): ImageCount(630, 126),
        ("pnt", "train"): ImageCount(30572, 126),
        ("pnt", "test"): ImageCount(630, 126),
        ("rel", "train"): ImageCount(64979, 126),
        ("rel", "test"): ImageCount(630, 126),
        ("skt", "train"): ImageCount(23862, 126),
        ("skt", "test"): ImageCount(630, 126),
    },
    list_files=partial(list_split_file, list_folders=("splits_mini", "")),
    has_test_lists=True,
)


def mini_domainnet(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Read a task of miniDomainNet: 126 classes of DomainNet in four domains; every pair is a task.

    Source and pool are the train lists of their domains; the test set is the target's test list (630 images).
    Classes are in the order of the lists' class indices. Keys are paths relative to the root.

    Args:
        root: Folder that contains ``clipart`` and the other domains, and the lists in ``splits_mini``.
        task: Source and target: ``clp-skt``, ``rel-pnt``, ...; ``real->painting`` also works.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode_images``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode_images``.
    """
    return load_task(MINI_DOMAINNET, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)


MINI_DOMAINNET_SPEC = DatasetSpec(mini_domainnet, per_pixel=False, benchmark=MINI_DOMAINNET)
