"""Streaming pools of any size: folders, tables of paths and tar shards, on local disk or behind a URL.

Only the samples being processed are in memory. Listing a pool does not import torch.
"""

from ducats.pool.opening import Kind, open_pool
from ducats.pool.sample import Pool, Sample

__all__ = ["Kind", "Pool", "Sample", "open_pool"]
