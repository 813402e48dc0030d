"""Benchmarks of image files: Office-31, Office-Home, PACS, VisDA-2017, DomainNet and miniDomainNet."""

from functools import partial
from pathlib import Path

from ducats.data.benchmarks.benchmark import (
    Benchmark,
    DomainInfo,
    FileList,
    ImageCount,
    Split,
    count_classes,
    count_lists,
)
from ducats.data.benchmarks.reader import (
    find_domain_folder,
    list_class_folders,
    list_split_file,
    parse_list_file,
)

# Published results are evaluated on the target images, including the labelled ones: there is no test set.
_OFFICE31_CLASSES = """
    back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer file_cabinet
    headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug paper_notebook pen
    phone printer projector punchers ring_binder ruler scissors speaker stapler tape_dispenser
    trash_can
"""
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
        ("A", "all"): count_classes(
            _OFFICE31_CLASSES,
            "92 82 72 82 36 94 91 97 97 81 99 100 100 98 100 99"
            " 100 94 96 95 93 100 98 98 90 75 100 99 99 96 64",
        ),
        ("D", "all"): count_classes(
            _OFFICE31_CLASSES,
            "12 21 24 12 16 12 13 14 15 15 13 10 24 16 31 22 12 8 10 10 13 15 23 18 10 7 18 26 21 22 15",
        ),
        ("W", "all"): count_classes(
            _OFFICE31_CLASSES,
            "29 21 28 12 16 31 40 18 21 19 27 27 30 19 30 43 30 27 28 32 16 20 30 27 40 11 25 30 24 23 21",
        ),
    },
    list_files=partial(
        list_class_folders, search_folders=("", "domain_adaptation_images"), class_parent="images"
    ),
)

# The published lists use the same target images for training and testing: there is no test set.
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

# The lists (such as photo_train_kfold.txt, with classes counted from 1) are for generalisation to an unseen
# domain. Adaptation uses whole domains, so they are ignored and there is no test set.
_PACS_CLASSES = "dog elephant giraffe guitar horse house person"
PACS = Benchmark(
    title="PACS",
    domains=(
        DomainInfo("P", "photo"),
        DomainInfo("A", "art_painting", ("art",)),
        DomainInfo("C", "cartoon"),
        DomainInfo("S", "sketch"),
    ),
    n_classes=7,
    download_info="https://dali-dl.github.io/project_iccv2017.html (Li et al., ICCV 2017)",
    layout="""
photo/dog/*.jpg   (these four also in kfold/ or pacs_data/)
art_painting/...
cartoon/...
sketch/...
""",
    counts={
        ("P", "all"): count_classes(_PACS_CLASSES, "189 202 182 186 199 280 432"),
        ("A", "all"): count_classes(_PACS_CLASSES, "379 255 285 184 201 295 449"),
        ("C", "all"): count_classes(_PACS_CLASSES, "389 457 346 135 324 288 405"),
        ("S", "all"): count_classes(_PACS_CLASSES, "772 740 753 608 816 80 160"),
    },
    list_files=partial(list_class_folders, search_folders=("", "kfold", "pacs_data")),
)


def _list_visda(root: Path, domain: DomainInfo, split: Split) -> FileList | None:
    """List the images of a domain from its ``image_list.txt``, or from its folders without one."""
    domain_folder = find_domain_folder(root, domain)
    if domain_folder is not None and (domain_folder / "image_list.txt").is_file():
        return parse_list_file(root, domain_folder / "image_list.txt", domain_folder)
    return list_class_folders(root, domain, split)


# Renderings to photographs. The target is the folder `validation`, as in published results on active
# adaptation. These are evaluated on the same images, so there is no test set.
_VISDA_CLASSES = "aeroplane bicycle bus car horse knife motorcycle person plant skateboard train truck"
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
        ("S", "all"): count_classes(
            _VISDA_CLASSES, "14309 7365 16640 12800 9512 14240 17360 12160 10731 11680 16000 9600"
        ),
        ("R", "all"): count_classes(
            _VISDA_CLASSES, "3646 3475 4690 10401 4691 2075 5796 4000 4549 2281 4236 5548"
        ),
    },
    list_files=_list_visda,
    task_subset=("S-R",),
)

# Every domain has a train and a test list.
_CLIPART, _PAINTING = DomainInfo("clp", "clipart", ("c",)), DomainInfo("pnt", "painting", ("p",))
_REAL, _SKETCH = DomainInfo("rel", "real", ("r",)), DomainInfo("skt", "sketch", ("s",))
_INFOGRAPH, _QUICKDRAW = DomainInfo("inf", "infograph", ("i",)), DomainInfo("qdr", "quickdraw", ("q",))
_DOMAINNET_URL = "https://ai.bu.edu/M3SDA (Peng et al., ICCV 2019)"
DOMAINNET = Benchmark(
    title="DomainNet",
    domains=(_CLIPART, _INFOGRAPH, _PAINTING, _QUICKDRAW, _REAL, _SKETCH),
    n_classes=345,
    download_info=f"{_DOMAINNET_URL}, images and lists of the cleaned version",
    layout="""
clipart/aircraft_carrier/*.jpg
clipart_train.txt, clipart_test.txt   (also in splits/ or in clipart/)
infograph, painting, quickdraw, real and sketch likewise
""",
    # In the published painting lists, t-shirt is only in the test list and syringe only in the train list.
    counts={
        **count_lists(345, clp=(33525, 14604), inf=(36023, 15582), qdr=(120750, 51750)),
        **count_lists(345, rel=(120906, 52041), skt=(48212, 20916)),
        **count_lists(None, pnt=(50416, 21850)),
    },
    list_files=partial(list_split_file, list_folders=("", "splits")),
    has_test_lists=True,
)

MINI_DOMAINNET = Benchmark(
    title="miniDomainNet",
    domains=(_CLIPART, _PAINTING, _REAL, _SKETCH),
    n_classes=126,
    download_info=(
        f"{_DOMAINNET_URL}, the images; https://github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md), the lists"
    ),
    layout="""
clipart/aircraft_carrier/*.jpg   (DomainNet's images)
splits_mini/clipart_train.txt, splits_mini/clipart_test.txt
painting, real and sketch likewise
""",
    counts=count_lists(126, clp=(18073, 630), pnt=(30572, 630), rel=(64979, 630), skt=(23862, 630)),
    list_files=partial(list_split_file, list_folders=("splits_mini", "")),
    has_test_lists=True,
)
