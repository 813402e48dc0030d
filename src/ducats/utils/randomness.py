"""Named random streams: every use has its own generator, so a resumed run draws the same numbers."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def derive_seed(seed: int, *names: str | int) -> int:
    """Derive a 63-bit seed for a named use; different names give unrelated seeds.

    >>> derive_seed(0, "query", 1) == derive_seed(0, "query", 1)
    True
    >>> derive_seed(0, "query", 1) == derive_seed(0, "query", 2)
    False
    """
    text = "/".join(repr(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def make_generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a new generator for a named use, e.g. ``make_generator(seed, "query", stage)``."""
    return torch.Generator().manual_seed(derive_seed(seed, *names))


@contextmanager
def global_seed(seed: int, *names: str | int) -> Iterator[None]:
    """Seed torch's global generators inside the block, for code without a generator argument, as dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, *names))
        yield


def uniform_per_location(generator: torch.Generator, image: Tensor, position: Tensor) -> Tensor:
    """Draw a uniform number per location ``(image, position)``: ``(R,), (R,) -> (R,)`` float64 in [0, 1).

    A number depends only on the generator and the location, not on the order, number or device of the
    samples. A permuted or split pool therefore draws the same numbers. (SplitMix64's finaliser over both.)
    """
    salt = int(torch.randint(0, 2**62, (), generator=generator))
    bits = _mix(image + salt)
    bits = _mix(bits ^ _mix(position + _to_signed64(0x9E3779B97F4A7C15)))
    return _shift_right_logical(bits, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right_logical(x, 30)) * _to_signed64(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right_logical(x, 27)) * _to_signed64(0x94D049BB133111EB)
    return x ^ _shift_right_logical(x, 31)


def _shift_right_logical(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; int64 stands for uint64 here, and overflow is intended."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _to_signed64(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
