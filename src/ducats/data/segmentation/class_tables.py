"""Published ids and colours of street-scene data sets, by name, including void ids."""

from collections.abc import Mapping

from ducats.data.segmentation.label_encoding import LabelEncoding, LabelFormat, parse_label_id


def _numbered(names: str) -> dict[int, str]:
    """Return names by id: their positions in a list that is separated by commas."""
    return dict(enumerate(" ".join(names.split()).split(", ")))


def _by_colour(colours: str) -> dict[str, str]:
    """Return names by colour, from a list of ``r g b name`` that is separated by commas."""
    pairs = (entry.rsplit(maxsplit=1) for entry in colours.split(","))
    return {colour.strip(): name for colour, name in pairs}


CITYSCAPES_IDS: Mapping[int, str] = {
    -1: "license plate",
    **_numbered("""
        unlabeled, ego vehicle, rectification border, out of roi, static, dynamic, ground, road, sidewalk,
        parking, rail track, building, wall, fence, guard rail, bridge, tunnel, pole, polegroup,
        traffic light, traffic sign, vegetation, terrain, sky, person, rider, car, truck, bus,
        caravan, trailer, train, motorcycle, bicycle
    """),
}
CITYSCAPES_VOID = (
    *("unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic", "ground"),
    *("parking", "rail track", "guard rail", "bridge", "tunnel", "polegroup", "caravan", "trailer"),
    "license plate",
)
GTAV_IDS: Mapping[int, str] = {**CITYSCAPES_IDS, 34: "license plate"}  # a palette cannot contain -1

SYNTHIA_IDS: Mapping[int, str] = _numbered("""
    void, sky, building, road, sidewalk, fence, vegetation, pole, car, traffic sign,
    person, bicycle, motorcycle, parking slot, road work, traffic light, terrain, rider, truck, bus,
    train, wall, lane marking
""")
SYNTHIA_VOID = ("void", "parking slot", "road work", "lane marking")

CLASSES_19 = tuple(name for name in CITYSCAPES_IDS.values() if name not in CITYSCAPES_VOID)
CLASSES_16 = tuple(name for name in CLASSES_19 if name not in ("terrain", "truck", "train"))
CLASSES_13 = tuple(name for name in CLASSES_16 if name not in ("wall", "fence", "pole"))

# CamVid's ids in SegNet's copy.
SEGNET_IDS: Mapping[int, str] = _numbered("""
    sky, building, pole, road, pavement, tree, sign symbol, fence, car, pedestrian,
    bicyclist, unlabelled
""")
CAMVID_COLOURS: Mapping[str, str] = _by_colour("""
    64 128 64 Animal, 192 0 128 Archway, 0 128 192 Bicyclist, 0 128 64 Bridge, 128 0 0 Building,
    64 0 128 Car, 64 0 192 CartLuggagePram, 192 128 64 Child, 192 192 128 Column_Pole,
    64 64 128 Fence, 128 0 192 LaneMkgsDriv, 192 0 64 LaneMkgsNonDriv, 128 128 64 Misc_Text,
    192 0 192 MotorcycleScooter, 128 64 64 OtherMoving, 64 192 128 ParkingBlock,
    64 64 0 Pedestrian, 128 64 128 Road, 128 128 192 RoadShoulder, 0 0 192 Sidewalk,
    192 128 128 SignSymbol, 128 128 128 Sky, 64 128 192 SUVPickupTruck, 0 0 64 TrafficCone,
    0 64 64 TrafficLight, 192 64 128 Train, 128 128 0 Tree, 192 128 192 Truck_Bus, 64 0 64 Tunnel,
    192 192 0 VegetationMisc, 0 0 0 Void, 64 192 0 Wall
""")

# Before 0.9.10 the list ended with the traffic sign.
CARLA_IDS_BEFORE_0_9_14: Mapping[int, str] = _numbered("""
    unlabeled, building, fence, other, pedestrian, pole, road line, road, sidewalk, vegetation,
    vehicles, wall, traffic sign, sky, ground, bridge, rail track, guard rail, traffic light, static,
    dynamic, water, terrain
""")
# In the order of Cityscapes.
CARLA_IDS_SINCE_0_9_14: Mapping[int, str] = _numbered("""
    unlabeled, road, sidewalk, building, wall, fence, pole, traffic light, traffic sign, vegetation,
    terrain, sky, pedestrian, rider, car, truck, bus, train, motorcycle, bicycle,
    static, dynamic, other, water, road line, ground, bridge, rail track, guard rail
""")

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
