"""Garbled files for every reader, played in a process of their own so that a crash or a hang is seen.

    python -m tests.data.fuzz COUNT FOLDER [READER …]

writes small valid files, mutates them with fixed seeds and reads them. The outcome of a read must be a data set,
or a ValueError or OSError whose text names the file, in bounded memory and time.
"""

import faulthandler
import resource
import struct
import sys
import time
import warnings
from pathlib import Path
from typing import IO

import numpy as np

from fedwcm.data.formats import safety
from tests.data.fuzz_specimens import READERS, SEED, Reader

HANG = 20.0
"""Seconds after which a single read counts as a hang."""

UNPACKED = 32 * 2**20
"""The floor of what may be unpacked, lowered so that the growth of memory tells whether bounds are kept."""

GROWTH = 400 * 2**20
EDGES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """A few random changes: flipped and overwritten bytes, numbers at the edges, cuts and insertions."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if not changed:
            break
        # Headers and footers say how much there is: half of the changes go there.
        size = len(changed)
        near = int(rng.integers(min(size, 160)))
        at = int(rng.choice([near, size - 1 - near, int(rng.integers(size)), int(rng.integers(size))]))
        match rng.integers(6):
            case 0:
                changed[at] ^= 1 << int(rng.integers(8))
            case 1:
                changed[at] = int(rng.integers(256))
            case 2:
                width, order = int(rng.choice([1, 2, 4, 8])), "<>"[rng.integers(2)]
                word = EDGES[rng.integers(len(EDGES))] & (2 ** (8 * width) - 1)
                number = struct.pack(f"{order}{ {1: 'B', 2: 'H', 4: 'I', 8: 'Q'}[width] }", word)
                changed[at : at + width] = number
            case 3:
                del changed[at:]
            case 4:
                changed[at:at] = rng.bytes(int(rng.integers(1, 16)))
            case 5:
                end = at + int(rng.integers(1, 64))
                changed[at:end] = changed[at:end] * int(rng.integers(0, 4))
    return bytes(changed)


def fuzz_reader(name: str, reader: Reader, count: int, folder: Path, progress: IO[str]) -> dict[str, int]:
    """Read `count` garbled variants; raises AssertionError for an outcome that is not allowed."""
    for specimen in reader.specimens:
        (folder / specimen.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / specimen.path).write_bytes(specimen.pack(specimen.content))
    reader.read(folder)  # the files are valid before they are garbled
    before, outcomes = _peak(), {"read": 0, "refused": 0}
    for number in range(count):
        progress.seek(0)
        progress.write(f"{name} {number}\n")
        progress.flush()
        rng = np.random.default_rng([SEED, number, *name.encode()])
        specimen = reader.specimens[rng.integers(len(reader.specimens))]
        path, whole = folder / specimen.path, specimen.pack(specimen.content)
        inside = rng.integers(2) == 0
        path.write_bytes(specimen.pack(mutate(specimen.content, rng)) if inside else mutate(whole, rng))
        faulthandler.dump_traceback_later(HANG, exit=True)
        outcomes[_outcome(f"{name} {number}", reader, folder)] += 1
        faulthandler.cancel_dump_traceback_later()
        path.write_bytes(whole)
        assert _peak() - before < GROWTH, f"{name} {number}: took {(_peak() - before) >> 20} MiB"
    return outcomes


def _outcome(case: str, reader: Reader, folder: Path) -> str:
    try:
        reader.read(folder)
    except (ValueError, OSError) as error:
        text = str(error)
    except BaseException as error:
        raise AssertionError(f"{case}: {error!r}") from error
    else:
        return "read"
    assert reader.name in text, f"{case}: the error names no file: {text}"
    assert len(text) < 5000, f"{case}: an error of {len(text)} characters"
    return "refused"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(count: int, folder: Path, names: list[str]) -> None:
    """Play the named readers, or all, and print what came of it."""
    warnings.simplefilter("ignore")
    safety.FLOOR = UNPACKED
    with (folder / "progress").open("w") as progress:
        for name in names or list(READERS):
            start = time.process_time()
            outcomes = fuzz_reader(name, READERS[name](), count, folder / name, progress)
            seconds = time.process_time() - start
            print(f"{name}: {outcomes['read']} read, {outcomes['refused']} refused, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
