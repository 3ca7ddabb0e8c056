"""The most that a call makes a process hold, for processes that measure nothing else.

torch's allocator on the CPU is plain malloc, so what a call needs is what the process holds. malloc would keep what is
freed, and where a block lies among the holes of its heap is chance: by the pages that it touched, the same eager call
needed 0.8 to 1.3 of what it needed in the next process. So blocks from 32 KiB on are mapped one by one here, for all
variants, and their pages are gone when they are freed.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

from fastjit._bench.worker import status_bytes

M_MMAP_THRESHOLD, MAPPED_FROM = -3, 32 << 10
PEAK_CALLS = 3


def map_blocks() -> None:
    """Before anything is allocated that counts."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)


def held_bytes() -> int:
    """What the process holds once FastJIT's pool of warm memory and the free heap have gone back to the system."""
    from fastjit import _C

    gc.collect()
    _C.pool_clear()
    ctypes.CDLL(None).malloc_trim(0)
    return status_bytes("VmRSS")


def peak_of_calls(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """What a warm call needs at most beyond what is held before it, and what that is. The least of three calls counts,
    as another thread of the process only ever adds; `before` is run before each and belongs to none.

    Writing 5 to /proc/self/clear_refs sets the high-water mark (VmHWM) back to what is held: the mark less what was
    held is what the call needs, the pool's own rounding up included.
    """
    peaks = []
    for _ in range(PEAK_CALLS):
        before()
        held = held_bytes()
        Path("/proc/self/clear_refs").write_text("5")
        call()
        peaks.append(max(0, status_bytes("VmHWM") - held))
    return min(peaks), held
