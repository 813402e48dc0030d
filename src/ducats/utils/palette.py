"""Class colours, the same in all figures and pages. Standard library only."""

from collections.abc import Sequence
from itertools import cycle

Colour = tuple[int, int, int]  # red, green, blue

CITYSCAPES_COLOURS: dict[str, Colour] = {  # the official colours
    "road": (128, 64, 128),
    "sidewalk": (244, 35, 232),
    "building": (70, 70, 70),
    "wall": (102, 102, 156),
    "fence": (190, 153, 153),
    "pole": (153, 153, 153),
    "traffic light": (250, 170, 30),
    "traffic sign": (220, 220, 0),
    "vegetation": (107, 142, 35),
    "terrain": (152, 251, 152),
    "sky": (70, 130, 180),
    "person": (220, 20, 60),
    "rider": (255, 0, 0),
    "car": (0, 0, 142),
    "truck": (0, 0, 70),
    "bus": (0, 60, 100),
    "train": (0, 80, 100),
    "motorcycle": (0, 0, 230),
    "bicycle": (119, 11, 32),
}
CLASS_ALIASES = {
    "pedestrian": "person",
    "sign": "traffic sign",
    "light": "traffic light",
    "tree": "vegetation",
    "pavement": "sidewalk",
    "motorbike": "motorcycle",
    "bicyclist": "rider",
}
TAB20_COLOURS: tuple[Colour, ...] = (  # matplotlib's tab20, saturated colours first
    *((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189)),
    *((140, 86, 75), (227, 119, 194), (127, 127, 127), (188, 189, 34), (23, 190, 207)),
    *((174, 199, 232), (255, 187, 120), (152, 223, 138), (255, 152, 150), (197, 176, 213)),
    *((196, 156, 148), (247, 182, 210), (199, 199, 199), (219, 219, 141), (158, 218, 229)),
)


def class_colours(classes: Sequence[str]) -> list[Colour]:
    """Return a colour per class: that of Cityscapes if the name is known there, else one of twenty.

    >>> class_colours(["road", "Pedestrian", "unicorn"])
    [(128, 64, 128), (220, 20, 60), (31, 119, 180)]
    """
    others = cycle(TAB20_COLOURS)
    normalised = [name.lower().replace("_", " ").replace("-", " ").strip() for name in classes]
    return [CITYSCAPES_COLOURS.get(CLASS_ALIASES.get(name, name)) or next(others) for name in normalised]
