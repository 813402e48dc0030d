"""Pools that are read while they are scored: folders, tables of paths, tar shards; here, or behind a URL.

Nothing is held but what is being looked at, so a pool may be of any size. Listing one needs no torch.
"""

from ducats.pool.opening import Kind, open_pool
from ducats.pool.sample import Pool, Sample

__all__ = ["Kind", "Pool", "Sample", "open_pool"]
