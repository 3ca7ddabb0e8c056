"""Entries of the disk cache, written as docs/cache-format.md says, independently of the engine."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import xxhash


def fields(items: dict[str, str]) -> bytes:
    out = struct.pack("<I", len(items))
    for text in (part for item in items.items() for part in item):
        out += struct.pack("<I", len(text.encode())) + text.encode()
    return out


def make(
    root: Path,
    name: str,
    *,
    target: str = "cpu-avx2",
    compile_ms: float = 4.0,
    object_bytes: int = 2000,
    age: float = 0,
    plan: str = "",
    source: str = "define void @fj_mul_f32()",
) -> str:
    """Writes an entry as docs/cache-format.md says, independently of the engine; gives its key."""
    key = fields(
        {
            "domain": "fastjit kernel",
            "llvm": "22.1.8",
            "target": target,
            "plan": plan or f"plan {name}\nload 0\nstore 1",
        }
    )
    created = str(int(time.time() - age))
    meta = fields(
        {
            "function": name,
            "signature": "f32[*,1024]",
            "target": target,
            "compile_ms": str(compile_ms),
            "created": created,
        }
    )
    sections = [meta, key, b"%0 = input f32", source.encode(), os.urandom(object_bytes)]
    text = b"".join(sections[:4])
    padding = bytes(-(64 + len(text)) % 16)
    digest = xxhash.xxh3_128_digest(key)
    total = 64 + len(text) + len(padding) + object_bytes + 16
    header = struct.pack("<8sHHQ5I16s8s", b"FJITKRN\0", 1, 1, total, *map(len, sections), digest, bytes(8))
    data = header + text + padding + sections[4]
    folder = root / digest.hex()[:2]
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{digest.hex()}.fj"
    path.write_bytes(data + xxhash.xxh3_128_digest(data))
    path.chmod(0o600)
    os.utime(path, (time.time() - age, time.time() - age))
    return digest.hex()


def path_of(root: Path, key: str) -> Path:
    return root / key[:2] / f"{key}.fj"
