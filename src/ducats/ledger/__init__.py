"""The ledger: every label that was bought, append-only on disk. Labels spent is what it holds.

A label has an address: an image, and a position in it, which is 0 where the image is one row. The files hold
runs of addresses of one image; they are mapped and never read whole, so a ledger of 100 million pixels opens
at once.
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
