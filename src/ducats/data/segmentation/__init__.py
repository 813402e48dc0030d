"""Segmentation data sets: images, label files and their label encoding.

A reader first lists pairs of files (``file_pairs``), so missing files are found before anything is decoded.
It then maps the ids in label files to classes by name (``label_encoding``) and decodes all files
(``reader``).
"""
