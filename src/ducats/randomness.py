"""Randomness by name: every use has its own generator, so a restarted run draws the same."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def seed_of(seed: int, *names: str | int) -> int:
    """Derive a 63-bit seed for one named use; other names give unrelated seeds.

    >>> seed_of(0, "query", 1) == seed_of(0, "query", 1), seed_of(0, "query", 1) == seed_of(0, "query", 2)
    (True, False)
    """
    text = "/".join(repr(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def fork(seed: int, *names: str | int) -> torch.Generator:
    """Return a fresh generator for one named use, e.g. ``fork(seed, "query", stage)``."""
    return torch.Generator().manual_seed(seed_of(seed, *names))


@contextmanager
def global_seed(seed: int, *names: str | int) -> Iterator[None]:
    """Seed torch's global generators inside the block, for what takes no other: initialisation, dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(seed, *names))
        yield


def draw_per_address(generator: torch.Generator, image: Tensor, position: Tensor) -> Tensor:
    """Draw one uniform number per address ``(image, position)``: ``(R,), (R,) -> (R,)`` float64 in [0, 1).

    A number depends on the generator and the address alone, not on the order or the number of rows, nor on
    their device, so a permuted or a split pool draws the same. (SplitMix64's finaliser over both.)
    """
    salt = int(torch.randint(0, 2**62, (), generator=generator))
    bits = _mix(image + salt)
    bits = _mix(bits ^ _mix(position + _signed(0x9E3779B97F4A7C15)))
    return _shifted(bits, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in: int64 stands for 64 bits without a sign here, and overflows at will."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
