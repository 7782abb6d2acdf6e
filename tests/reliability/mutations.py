"""Inputs that are almost right: bytes of a good file, damaged in the ways in which files are damaged."""

import random
from collections.abc import Iterator

EXTREMES = (b"\x00", b"\xff" * 4, b"\x7f\xff\xff\xff", b"9" * 400, b"-1", b"NaN", b"1e999", b"[" * 3000, b'"')


def damaged(good: bytes, count: int, seed: int) -> Iterator[bytes]:
    """So many damaged copies: cut, flipped, doubled, shuffled, with extremes put in."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            _damage(data, rng)
        yield bytes(data)


def _damage(data: bytearray, rng: random.Random) -> None:
    if not data:
        return
    place, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 8, 64))
    kind = rng.randrange(6)
    if kind == 0:
        del data[place:]
    elif kind == 1:
        data[place] ^= 1 << rng.randrange(8)
    elif kind == 2:
        data[place : place + length] = rng.randbytes(length)
    elif kind == 3:
        del data[place : place + length]
    elif kind == 4:
        data[place:place] = data[place : place + length] * rng.choice((1, 3))
    else:
        data[place : place + rng.choice((0, length))] = rng.choice(EXTREMES)
