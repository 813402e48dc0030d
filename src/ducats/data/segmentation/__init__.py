"""Segmentation data sets: images, label files and their label encoding.

A reader first lists pairs of files (``pairs``), so missing files are found before anything is decoded. It
then maps the numbers in label files to classes by name (``codes``) and decodes all files (``loading``).
"""

from ducats.data.segmentation.camvid import carla_camvid, find_camvid, find_carla
from ducats.data.segmentation.cityscapes import gtav_cityscapes, synthia_cityscapes
from ducats.data.segmentation.file_pairs import FileLayout, SplitFiles, require_pairs
from ducats.data.segmentation.folders import load_segmentation_folder, segmentation_folders
from ducats.data.segmentation.label_encoding import LabelEncoding, UnknownIdError
from ducats.data.segmentation.label_maps import FileLabelMaps, VoidMasks, load_label_maps
from ducats.data.segmentation.reader import SegmentationListing, SegmentationReader

__all__ = [
    "LabelEncoding",
    "FileLabelMaps",
    "FileLayout",
    "SegmentationListing",
    "VoidMasks",
    "SplitFiles",
    "SegmentationReader",
    "UnknownIdError",
    "find_camvid",
    "find_carla",
    "carla_camvid",
    "gtav_cityscapes",
    "load_label_maps",
    "load_segmentation_folder",
    "segmentation_folders",
    "require_pairs",
    "synthia_cityscapes",
]
