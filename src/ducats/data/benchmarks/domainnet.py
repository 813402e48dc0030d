"""DomainNet: 345 classes in six domains, each with a train and a test list."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, Count, Place
from ducats.data.benchmarks.listing import load_task
from ducats.data.benchmarks.reading import read_list
from ducats.domain import Shift

CLIPART, PAINTING = Place("clp", "clipart", ("c",)), Place("pnt", "painting", ("p",))
REAL, SKETCH = Place("rel", "real", ("r",)), Place("skt", "sketch", ("s",))
INFOGRAPH, QUICKDRAW = Place("inf", "infograph", ("i",)), Place("qdr", "quickdraw", ("q",))
IMAGES = "https://ai.bu.edu/M3SDA (Peng et al., ICCV 2019)"

DOMAINNET = Benchmark(
    title="DomainNet",
    places=(CLIPART, INFOGRAPH, PAINTING, QUICKDRAW, REAL, SKETCH),
    classes=345,
    published=f"{IMAGES}, images and lists of the cleaned version",
    layout="""
clipart/aircraft_carrier/*.jpg
clipart_train.txt, clipart_test.txt   (also in splits/ or in clipart/)
infograph, painting, quickdraw, real and sketch likewise
""",
    # In the published painting lists, t-shirt is only in the test list and syringe only in the train list.
    counts={
        ("clp", "train"): Count(33525, 345),
        ("clp", "test"): Count(14604, 345),
        ("inf", "train"): Count(36023, 345),
        ("inf", "test"): Count(15582, 345),
        ("pnt", "train"): Count(50416),
        ("pnt", "test"): Count(21850),
        ("qdr", "train"): Count(120750, 345),
        ("qdr", "test"): Count(51750, 345),
        ("rel", "train"): Count(120906, 345),
        ("rel", "test"): Count(52041, 345),
        ("skt", "train"): Count(48212, 345),
        ("skt", "test"): Count(20916, 345),
    },
    read=partial(read_list, lists=("", "splits")),
    held_out=True,
)


def domainnet(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Shift:
    """Read a task of DomainNet: 345 classes in six domains; every pair is a task.

    Source and pool are the train lists of their domains; the test set is the target's test list. Classes are
    in the order of the lists' class indices. Keys are paths relative to the root.

    Args:
        root: Folder that contains ``clipart`` and the other domains, and the lists.
        task: Source and target: ``clp-skt``, ``rel-qdr``, ...; ``real->quickdraw`` also works.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode``.
    """
    return load_task(DOMAINNET, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)
