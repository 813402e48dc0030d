"""VisDA-2017: from renderings to photographs of 12 classes of objects."""

from pathlib import Path

from ducats.data.benchmarks.benchmark import Benchmark, DomainInfo, FileList, Split, count_from_table
from ducats.data.benchmarks.reader import find_domain_folder, list_class_folders, parse_list_file
from ducats.data.benchmarks.tasks import load_task
from ducats.data.domain import AdaptationData
from ducats.data.spec import DatasetSpec

_CLASS_COUNTS = {  # per class, in train and validation
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


def _list_files(root: Path, domain: DomainInfo, split: Split) -> FileList | None:
    """List the images of a domain from its ``image_list.txt``, or from its folders without one."""
    domain_folder = find_domain_folder(root, domain)
    if domain_folder is not None and (domain_folder / "image_list.txt").is_file():
        return parse_list_file(root, domain_folder / "image_list.txt", domain_folder)
    return list_class_folders(root, domain, split)


VISDA2017 = Benchmark(
    title="VisDA-2017",
    domains=(DomainInfo("S", "train", ("synthetic",)), DomainInfo("R", "validation", ("real",))),
    n_classes=12,
    download_info="https://ai.bu.edu/visda-2017 (Peng et al., 2017; the classification track)",
    layout="""
train/aeroplane/*.png        with train/image_list.txt, as published, or without
validation/aeroplane/*.jpg   with validation/image_list.txt, or without
""",
    counts={
        ("S", "all"): count_from_table(_CLASS_COUNTS, 0),
        ("R", "all"): count_from_table(_CLASS_COUNTS, 1),
    },
    list_files=_list_files,
    task_subset=("S-R",),
)


def visda2017(
    *,
    root: str | Path,
    task: str = "S-R",
    size: int = 256,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> AdaptationData:
    """Read VisDA-2017: 152397 renderings of 12 classes as source, 55388 photographs as target.

    The target is the ``validation`` folder, as in published results on active adaptation. These are evaluated
    on the same images, so there is no test set. Classes are in the order of the lists' class indices, which
    is alphabetical. Keys are paths relative to the root.

    Args:
        root: Folder that contains ``train`` and ``validation``.
        task: ``S-R``, synthetic to real, is the only one.
        size: Height and width that images are resized to, ignoring the aspect ratio.
        cache: Folder for decoded images that do not fit in memory; see ``decode_images``.
        memory_gb: Gigabytes of decoded images to hold in memory, in total; None: see ``decode_images``.
    """
    return load_task(VISDA2017, root=root, task=task, size=size, cache=cache, memory_gb=memory_gb)


VISDA2017_SPEC = DatasetSpec(visda2017, per_pixel=False, benchmark=VISDA2017)
