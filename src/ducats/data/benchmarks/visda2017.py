"""VisDA-2017: renderings of 12 kinds of things to photographs of them."""

from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, Listed, Place, Split, column
from ducats.data.benchmarks.listing import load_task
from ducats.data.benchmarks.reading import find_folder, from_list, read_folders
from ducats.domain import Shift

IMAGES = {  # of each class in train, validation
    "aeroplane": (14309, 3646),
    "bicycle": (7365, 3475),
    "bus": (16640, 4690),
    "car": (12800, 10401),
    "horse": (9512, 4691),
    "knife": (14240, 2075),
    "motorcycle": (17360, 5796),
    "person": (12160, 4000),
    "plant": (10731, 4549),
    "skateboard": (11680, 2281),
    "train": (16000, 4236),
    "truck": (9600, 5548),
}


def _read(root: Path, place: Place, split: Split) -> Listed | None:
    """What a domain's ``image_list.txt`` names, as published; without the list, what its folders hold."""
    domain = find_folder(root, place)
    if domain is not None and (domain / "image_list.txt").is_file():
        return from_list(root, domain / "image_list.txt", domain)
    return read_folders(root, place, split)


VISDA2017 = Benchmark(
    title="VisDA-2017",
    places=(Place("S", "train", ("synthetic",)), Place("R", "validation", ("real",))),
    classes=12,
    published="https://ai.bu.edu/visda-2017 (Peng et al., 2017; the classification track)",
    layout="""
train/aeroplane/*.png        with train/image_list.txt, as published, or without
validation/aeroplane/*.jpg   with validation/image_list.txt, or without
""",
    counts={("S", "all"): column(IMAGES, 0), ("R", "all"): column(IMAGES, 1)},
    read=_read,
    only=("S-R",),
)


def visda2017(
    *,
    root: str | Path,
    task: str = "S-R",
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Shift:
    """Read VisDA-2017: 152397 renderings of 12 classes as source, 55388 photographs as target.

    The target is the ``validation`` folder, as in published numbers on active adaptation; they test on the
    same images, so nothing is held out here. Classes are in the order of the lists' numbers, which is
    that of the alphabet. Keys are paths within the root.

    Args:
        root: The folder that holds ``train`` and ``validation``.
        task: ``S-R``, synthetic to real; there is no other.
        size: Height and width that images are squashed to.
        cache: Where decoded images go that do not fit in memory; see ``decode``.
        memory_gb: Gigabytes of decoded images to hold in memory, in all; None: see ``decode``.
    """
    return load_task(VISDA2017, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)
