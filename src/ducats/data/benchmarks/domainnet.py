"""DomainNet: 345 classes in six domains, each with a train and a test list."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, DomainInfo, ImageCount
from ducats.data.benchmarks.reader import list_split_file
from ducats.data.benchmarks.tasks import load_task
from ducats.data.domain import AdaptationData
from ducats.data.spec import DatasetSpec

CLIPART, PAINTING = DomainInfo("clp", "clipart", ("c",)), DomainInfo("pnt", "painting", ("p",))
REAL, SKETCH = DomainInfo("rel", "real", ("r",)), DomainInfo("skt", "sketch", ("s",))
INFOGRAPH, QUICKDRAW = DomainInfo("inf", "infograph", ("i",)), DomainInfo("qdr", "quickdraw", ("q",))
DOMAINNET_URL = "https://ai.bu.edu/M3SDA (Peng et al., ICCV 2019)"

DOMAINNET = Benchmark(
    title="DomainNet",
    domains=(CLIPART, INFOGRAPH, PAINTING, QUICKDRAW, REAL, SKETCH),
    n_classes=345,
    download_info=f"{DOMAINNET_URL}, images and lists of the cleaned version",
    layout="""
clipart/aircraft_carrier/*.jpg
clipart_train.txt, clipart_test.txt   (also in splits/ or in clipart/)
infograph, painting, quickdraw, real and sketch likewise
""",
    # In the published painting lists, t-shirt is only in the test list and syringe only in the train list.
    counts={
        ("clp", "train"): ImageCount(33525, 345),
        ("clp", "test"): ImageCount(14604, 345),
        ("inf", "train"): ImageCount(36023, 345),
        ("inf", "test"): ImageCount(15582, 345),
        ("pnt", "train"): ImageCount(50416),
        ("pnt", "test"): ImageCount(21850),
        ("qdr", "train"): ImageCount(120750, 345),
        ("qdr", "test"): ImageCount(51750, 345),
        ("rel", "train"): ImageCount(120906, 345),
        ("rel", "test"): ImageCount(52041, 345),
        ("skt", "train"): ImageCount(48212, 345),
        ("skt", "test"): ImageCount(20916, 345),
    },
    list_files=partial(list_split_file, list_folders=("", "splits")),
    has_test_lists=True,
)


def domainnet(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Read a task of DomainNet: 345 classes in six domains; every pair is a task.

    Source and pool are the train lists of their domains; the test set is the target's test list. Classes are
    in the order of the lists' class indices. Keys are paths relative to the root.

    Args:
        root: Folder that contains ``clipart`` and the other domains, and the lists.
        task: Source and target: ``clp-skt``, ``rel-qdr``, ...; ``real->quickdraw`` also works.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode_images``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode_images``.
    """
    return load_task(DOMAINNET, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)


DOMAINNET_SPEC = DatasetSpec(domainnet, per_pixel=False, benchmark=DOMAINNET)
