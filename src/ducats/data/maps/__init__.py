"""Data whose pixels have labels: images, label files, and what the numbers in these mean.

A reader lists pairs of files first (``pairs``), so that what lacks is known before anything is decoded; says
what their numbers mean, by name (``codes``); and has both decoded (``loading``).
"""

from ducats.data.maps.camvid import camvid, carla, carla_camvid
from ducats.data.maps.cityscapes import gtav_cityscapes, synthia_cityscapes
from ducats.data.maps.codes import Codes, UnknownIdError
from ducats.data.maps.folders import labelled_maps, map_folders
from ducats.data.maps.label_maps import LabelMaps, Masks, hold_maps
from ducats.data.maps.loading import Listing, Reader
from ducats.data.maps.pairs import Layout, Part, pair_up

__all__ = [
    "Codes",
    "LabelMaps",
    "Layout",
    "Listing",
    "Masks",
    "Part",
    "Reader",
    "UnknownIdError",
    "camvid",
    "carla",
    "carla_camvid",
    "gtav_cityscapes",
    "hold_maps",
    "labelled_maps",
    "map_folders",
    "pair_up",
    "synthia_cityscapes",
]
