"""Segmentation data sets: images, label files and their label encoding.

A reader first lists pairs of files (``pairs``), so missing files are found before anything is decoded. It
then maps the numbers in label files to classes by name (``codes``) and decodes all files (``loading``).
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
