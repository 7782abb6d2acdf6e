"""Allocator settings that keep freed memory in the process.

By default, glibc returns every large block to the system as soon as it is freed and requests new, zeroed pages at
the next step. On convolutional models this takes a tenth to a quarter of the time.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**30


def keep_freed_memory() -> None:
    """Return the memory that is free now to the system, and make the allocator reuse large blocks from now on.

    Does nothing if the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        library = ctypes.CDLL(None)
        mallopt, malloc_trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return
    malloc_trim(0)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    mallopt(_M_TRIM_THRESHOLD, _LARGEST)
