"""Append-only, on-disk ledger of acquired labels. Its length is the budget spent.

A label has a location: an image and a position in it. The position is 0 if labels are per image. The files
store runs of locations in one image. They are memory-mapped and never read whole, so a ledger of 100 million
pixels opens instantly.
"""

from ducats.ledger.book import Bought, Entry, Ledger, Resolution
from ducats.ledger.maps import TargetMaps
from ducats.ledger.middles import middles
from ducats.ledger.notes import Notes
from ducats.ledger.request import Asked, Block, Request, RequestWriter

__all__ = [
    "Asked",
    "Block",
    "Bought",
    "Entry",
    "Ledger",
    "Notes",
    "Request",
    "RequestWriter",
    "Resolution",
    "TargetMaps",
    "middles",
]
