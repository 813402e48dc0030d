"""Office-31: 31 classes of office objects from an online shop, a webcam and an SLR camera."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, DomainInfo, count_from_table
from ducats.data.benchmarks.reader import list_class_folders
from ducats.data.benchmarks.tasks import load_task
from ducats.data.domain import AdaptationData
from ducats.data.spec import DatasetSpec

_CLASS_COUNTS = {  # per class, in amazon, dslr and webcam
    "back_pack": (92, 12, 29),
    "bike": (82, 21, 21),
    "bike_helmet": (72, 24, 28),
    "bookcase": (82, 12, 12),
    "bottle": (36, 16, 16),
    "calculator": (94, 12, 31),
    "desk_chair": (91, 13, 40),
    "desk_lamp": (97, 14, 18),
    "desktop_computer": (97, 15, 21),
    "file_cabinet": (81, 15, 19),
    "headphones": (99, 13, 27),
    "keyboard": (100, 10, 27),
    "laptop_computer": (100, 24, 30),
    "letter_tray": (98, 16, 19),
    "mobile_phone": (100, 31, 30),
    "monitor": (99, 22, 43),
    "mouse": (100, 12, 30),
    "mug": (94, 8, 27),
    "paper_notebook": (96, 10, 28),
    "pen": (95, 10, 32),
    "phone": (93, 13, 16),
    "printer": (100, 15, 20),
    "projector": (98, 23, 30),
    "punchers": (98, 18, 27),
    "ring_binder": (90, 10, 40),
    "ruler": (75, 7, 11),
    "scissors": (100, 18, 25),
    "speaker": (99, 26, 30),
    "stapler": (99, 21, 24),
    "tape_dispenser": (96, 22, 23),
    "trash_can": (64, 15, 21),
}


OFFICE31 = Benchmark(
    title="Office-31",
    domains=(DomainInfo("A", "amazon"), DomainInfo("W", "webcam"), DomainInfo("D", "dslr")),
    n_classes=31,
    download_info="https://faculty.cc.gatech.edu/~judy/domainadapt (Saenko et al., ECCV 2010)",
    layout="""
amazon/images/back_pack/*.jpg   (or amazon/back_pack/*.jpg)
dslr/...
webcam/...
""",
    counts={
        ("A", "all"): count_from_table(_CLASS_COUNTS, 0),
        ("D", "all"): count_from_table(_CLASS_COUNTS, 1),
        ("W", "all"): count_from_table(_CLASS_COUNTS, 2),
    },
    list_files=partial(
        list_class_folders, search_folders=("", "domain_adaptation_images"), class_parents=("images",)
    ),
)


def office31(
    *,
    root: str | Path,
    task: str,
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Read a task of Office-31: 4110 images of 31 classes in three domains; every pair is a task.

    Published results are evaluated on the target images, including the labelled ones, so there is no test
    set. Classes are in ASCII order. Keys are paths relative to the root.

    Args:
        root: Folder that contains ``amazon``, ``dslr`` and ``webcam``.
        task: Source and target: ``A-W``, ``D-A``, ...; ``A2W`` and ``amazon->webcam`` also work.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode_images``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode_images``.
    """
    return load_task(OFFICE31, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)


OFFICE31_SPEC = DatasetSpec(office31, per_pixel=False, benchmark=OFFICE31)
