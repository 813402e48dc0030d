"""Published ids and colours of street-scene data sets, by name, including void ids."""

from collections.abc import Mapping

from ducats.data.segmentation.label_encoding import LabelEncoding, LabelFormat, parse_label_id

CITYSCAPES_IDS: Mapping[int, str] = {
    -1: "license plate",
    0: "unlabeled",
    1: "ego vehicle",
    2: "rectification border",
    3: "out of roi",
    4: "static",
    5: "dynamic",
    6: "ground",
    7: "road",
    8: "sidewalk",
    9: "parking",
    10: "rail track",
    11: "building",
    12: "wall",
    13: "fence",
    14: "guard rail",
    15: "bridge",
    16: "tunnel",
    17: "pole",
    18: "polegroup",
    19: "traffic light",
    20: "traffic sign",
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    29: "caravan",
    30: "trailer",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}
CITYSCAPES_VOID = (
    "unlabeled",
    "ego vehicle",
    "rectification border",
    "out of roi",
    "static",
    "dynamic",
    "ground",
    "parking",
    "rail track",
    "guard rail",
    "bridge",
    "tunnel",
    "polegroup",
    "caravan",
    "trailer",
    "license plate",
)
GTAV_IDS: Mapping[int, str] = {**CITYSCAPES_IDS, 34: "license plate"}  # a palette cannot contain -1

SYNTHIA_IDS: Mapping[int, str] = {
    0: "void",
    1: "sky",
    2: "building",
    3: "road",
    4: "sidewalk",
    5: "fence",
    6: "vegetation",
    7: "pole",
    8: "car",
    9: "traffic sign",
    10: "person",
    11: "bicycle",
    12: "motorcycle",
    13: "parking slot",
    14: "road work",
    15: "traffic light",
    16: "terrain",
    17: "rider",
    18: "truck",
    19: "bus",
    20: "train",
    21: "wall",
    22: "lane marking",
}
SYNTHIA_VOID = ("void", "parking slot", "road work", "lane marking")

CLASSES_19 = tuple(name for name in CITYSCAPES_IDS.values() if name not in CITYSCAPES_VOID)
CLASSES_16 = tuple(name for name in CLASSES_19 if name not in ("terrain", "truck", "train"))
CLASSES_13 = tuple(name for name in CLASSES_16 if name not in ("wall", "fence", "pole"))

SEGNET_IDS: Mapping[int, str] = {  # CamVid's, in SegNet's copy
    0: "sky",
    1: "building",
    2: "pole",
    3: "road",
    4: "pavement",
    5: "tree",
    6: "sign symbol",
    7: "fence",
    8: "car",
    9: "pedestrian",
    10: "bicyclist",
    11: "unlabelled",
}
CAMVID_COLOURS: Mapping[str, str] = {
    "64 128 64": "Animal",
    "192 0 128": "Archway",
    "0 128 192": "Bicyclist",
    "0 128 64": "Bridge",
    "128 0 0": "Building",
    "64 0 128": "Car",
    "64 0 192": "CartLuggagePram",
    "192 128 64": "Child",
    "192 192 128": "Column_Pole",
    "64 64 128": "Fence",
    "128 0 192": "LaneMkgsDriv",
    "192 0 64": "LaneMkgsNonDriv",
    "128 128 64": "Misc_Text",
    "192 0 192": "MotorcycleScooter",
    "128 64 64": "OtherMoving",
    "64 192 128": "ParkingBlock",
    "64 64 0": "Pedestrian",
    "128 64 128": "Road",
    "128 128 192": "RoadShoulder",
    "0 0 192": "Sidewalk",
    "192 128 128": "SignSymbol",
    "128 128 128": "Sky",
    "64 128 192": "SUVPickupTruck",
    "0 0 64": "TrafficCone",
    "0 64 64": "TrafficLight",
    "192 64 128": "Train",
    "128 128 0": "Tree",
    "192 128 192": "Truck_Bus",
    "64 0 64": "Tunnel",
    "192 192 0": "VegetationMisc",
    "0 0 0": "Void",
    "64 192 0": "Wall",
}

CARLA_IDS_BEFORE_0_9_14: Mapping[
    int, str
] = {  # before 0.9.14; before 0.9.10 the list ended with the traffic sign
    0: "unlabeled",
    1: "building",
    2: "fence",
    3: "other",
    4: "pedestrian",
    5: "pole",
    6: "road line",
    7: "road",
    8: "sidewalk",
    9: "vegetation",
    10: "vehicles",
    11: "wall",
    12: "traffic sign",
    13: "sky",
    14: "ground",
    15: "bridge",
    16: "rail track",
    17: "guard rail",
    18: "traffic light",
    19: "static",
    20: "dynamic",
    21: "water",
    22: "terrain",
}
CARLA_IDS_SINCE_0_9_14: Mapping[int, str] = {  # since 0.9.14, in the order of Cityscapes
    0: "unlabeled",
    1: "road",
    2: "sidewalk",
    3: "building",
    4: "wall",
    5: "fence",
    6: "pole",
    7: "traffic light",
    8: "traffic sign",
    9: "vegetation",
    10: "terrain",
    11: "sky",
    12: "pedestrian",
    13: "rider",
    14: "car",
    15: "truck",
    16: "bus",
    17: "train",
    18: "motorcycle",
    19: "bicycle",
    20: "static",
    21: "dynamic",
    22: "other",
    23: "water",
    24: "road line",
    25: "ground",
    26: "bridge",
    27: "rail track",
    28: "guard rail",
}

# Classes shared by CARLA and CamVid. CamVid's names are grouped as in SegNet's copy, whose classes the
# original refines. Riders count as persons, because CamVid does not separate riders from their vehicles.
CARLA_CAMVID_CLASSES: Mapping[str, tuple[str, ...]] = {
    "road": ("road", "road line", "Road", "LaneMkgsDriv", "LaneMkgsNonDriv"),
    "sidewalk": ("sidewalk", "pavement", "Sidewalk", "ParkingBlock", "RoadShoulder"),
    "building": ("building", "wall", "Building", "Wall", "Bridge", "Tunnel", "Archway"),
    "fence": ("fence", "Fence"),
    "pole": ("pole", "Column_Pole", "TrafficCone"),
    "sign": ("traffic sign", "traffic light", "sign symbol", "SignSymbol", "Misc_Text", "TrafficLight"),
    "vegetation": ("vegetation", "terrain", "tree", "Tree", "VegetationMisc"),
    "sky": ("sky", "Sky"),
    "person": (
        *("pedestrian", "rider", "bicyclist", "Pedestrian", "Child", "CartLuggagePram", "Animal"),
        *("Bicyclist", "MotorcycleScooter"),
    ),
    "car": ("car", "truck", "bus", "vehicles", "Car", "SUVPickupTruck", "Truck_Bus", "Train", "OtherMoving"),
}
CAMVID_VOID = ("unlabelled", "Void")
CARLA_VOID = (
    *("unlabeled", "other", "ground", "bridge", "rail track", "guard rail", "static", "dynamic", "water"),
    *("train", "motorcycle", "bicycle"),
)


def cityscapes_encoding(
    id_names: Mapping[int, str],
    void_names: tuple[str, ...],
    classes: tuple[str, ...],
    label_format: LabelFormat,
) -> LabelEncoding:
    """Return the encoding of ids with Cityscapes names; other classes of the nineteen become void."""
    dropped = frozenset(CLASSES_19) - frozenset(classes)
    return LabelEncoding(
        classes, id_names, {name: (name,) for name in classes}, frozenset(void_names) | dropped, label_format
    )


def carla_camvid_encoding(
    id_names: Mapping[int, str], void_names: tuple[str, ...], label_format: LabelFormat
) -> LabelEncoding:
    """Return the encoding of CARLA or CamVid ids with the classes that both share."""
    return LabelEncoding(
        tuple(CARLA_CAMVID_CLASSES), id_names, CARLA_CAMVID_CLASSES, frozenset(void_names), label_format
    )


def names_by_colour_id(colours: Mapping[str, str]) -> dict[int, str]:
    """Return names by the ids of their colours."""
    return {parse_label_id(colour, "colours"): name for colour, name in colours.items()}
