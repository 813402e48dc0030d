"""Streaming pools of any size: folders, tables of paths and tar shards, on local disk or behind a URL.

Only the samples being processed are in memory.
"""

from ducats.data.streaming.factory import DEFAULT_MAX_SAMPLE_MB, PoolFormat, open_pool
from ducats.data.streaming.pool import Pool, PoolSample

__all__ = ["DEFAULT_MAX_SAMPLE_MB", "Pool", "PoolFormat", "PoolSample", "open_pool"]
