"""Segmentation data sets: images, label files and their label encoding.

A reader first lists pairs of files (``file_pairs``), so missing files are found before anything is decoded.
It then maps the ids in label files to classes by name (``label_encoding``) and decodes all files
(``reader``).
"""

from ducats.data.segmentation.camvid import CARLA_CAMVID_SPEC, carla_camvid, find_camvid, find_carla
from ducats.data.segmentation.cityscapes import (
    GTAV_CITYSCAPES_SPEC,
    SYNTHIA_CITYSCAPES_SPEC,
    gtav_cityscapes,
    synthia_cityscapes,
)
from ducats.data.segmentation.file_pairs import FileLayout, SplitFiles, require_pairs
from ducats.data.segmentation.folders import (
    SEGMENTATION_FOLDERS_SPEC,
    load_segmentation_folder,
    segmentation_folders,
)
from ducats.data.segmentation.label_encoding import LabelEncoding, UnknownIdError
from ducats.data.segmentation.label_maps import FileLabelMaps, VoidMasks, load_label_maps
from ducats.data.segmentation.reader import SegmentationListing, SegmentationReader

__all__ = [
    "CARLA_CAMVID_SPEC",
    "GTAV_CITYSCAPES_SPEC",
    "SEGMENTATION_FOLDERS_SPEC",
    "SYNTHIA_CITYSCAPES_SPEC",
    "FileLabelMaps",
    "FileLayout",
    "LabelEncoding",
    "SegmentationListing",
    "SegmentationReader",
    "SplitFiles",
    "UnknownIdError",
    "VoidMasks",
    "carla_camvid",
    "find_camvid",
    "find_carla",
    "gtav_cityscapes",
    "load_label_maps",
    "load_segmentation_folder",
    "require_pairs",
    "segmentation_folders",
    "synthia_cityscapes",
]
