"""Figures of one program, from what its processes answered (a dictionary a variant or part); None where there is none.

`peak` holds the bytes of a warm call by eager and by FastJIT, `planning` the milliseconds of a first call's recording
and compilation, `counted` the launches of a program that is made for the count alone.
"""

from __future__ import annotations

from typing import Any

Found = dict[str, Any]
NOISE_BYTES = 256 << 10  # the kernel counts pages a CPU in batches of 32, so a reading of two CPUs is off by up to that


def best_other(found: Found) -> tuple[str, float] | None:
    times = {name: one["best_s"] for name, one in found.items() if name != "fastjit" and "best_s" in one}
    return min(times.items(), key=lambda item: item[1]) if times else None


def over_best(found: Found) -> float | None:
    """How many times as fast FastJIT's call is as that of the fastest other."""
    other = best_other(found)
    ours = found.get("fastjit", {}).get("best_s")
    return other[1] / ours if other is not None and ours else None


def first_beyond_eager(found: Found) -> float | None:
    """Seconds of FastJIT's first call that eager's does not take."""
    firsts = [found.get(name, {}).get("first_s") for name in ("fastjit", "eager")]
    return firsts[0] - firsts[1] if None not in firsts else None


def launches(found: Found) -> int | None:
    """Of the program as it is held beside its source's count."""
    return found.get("counted", found.get("fastjit", {})).get("launches")


def ran_eagerly(found: Found) -> bool:
    """Whether a measured call of FastJIT's was no hit."""
    return not found.get("peak", {}).get("fastjit", {}).get("all_hits", True)


def peak_over_eager(found: Found) -> float | None:
    """A difference within the noise is none, and eager's bytes count as no fewer than that."""
    bytes_of = [found.get("peak", {}).get(name, {}).get("peak_bytes") for name in ("fastjit", "eager")]
    if None in bytes_of or ran_eagerly(found):
        return None
    ours, eager = bytes_of
    return 1.0 if abs(ours - eager) <= NOISE_BYTES else ours / max(eager, NOISE_BYTES)
