"""Append-only, on-disk ledger of acquired labels. Its length is the budget spent.

A label has a location: an image and a position in it. The position is 0 if labels are per image. The files
store runs of locations in one image. They are memory-mapped and never read whole, so a ledger of 100 million
pixels opens instantly.
"""

from ducats.ledger.initial_labels import InitialLabels, load_initial_labels, open_initial_ledger
from ducats.ledger.label_ledger import Ledger, PixelLabels, load_ledger, open_ledger
from ducats.ledger.request import Request, RequestSpool, RequestWriter, load_request, save_request
from ducats.ledger.target_maps import TargetMaps
from ducats.ledger.units import central_pixels

__all__ = [
    "InitialLabels",
    "Ledger",
    "PixelLabels",
    "Request",
    "RequestSpool",
    "RequestWriter",
    "TargetMaps",
    "central_pixels",
    "load_initial_labels",
    "load_ledger",
    "load_request",
    "open_initial_ledger",
    "open_ledger",
    "save_request",
]
