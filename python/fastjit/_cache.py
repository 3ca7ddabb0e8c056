"""Reads the disk cache: the folder, its entries, its statistics. Standard library only, executes nothing it reads.

The format is docs/cache-format.md; jit/cache/ is the writer.
"""

# pathlib would cost a third of the start-up time.
# ruff: noqa: PTH100, PTH102, PTH103, PTH105, PTH108, PTH112, PTH114, PTH117, PTH120, PTH208
from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1
HEADER = struct.Struct("<8sHHQ5I16s8s")
MAGIC = b"FJITKRN\0"
CHECKSUM_BYTES = 16
MAX_ENTRY_BYTES = 64 << 20
KINDS = {1: "cpu-elf", 2: "cubin"}
SECTIONS = ("meta", "key", "ir", "source", "object")
_HEX = frozenset("0123456789abcdef")
_HEAD_BYTES = 4096


class CacheError(Exception):
    """The cache is missing, unreadable or refused."""


class BadEntry(Exception):
    """An entry that the engine would not load; `reason` is the engine's word for it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Location:
    path: str
    source: str
    problem: str = ""


def locate(cache_dir: str | None = None) -> Location:
    """Where the engine would look; `cache_dir` goes before the environment."""
    if cache_dir is not None:
        return Location(os.path.abspath(cache_dir), "--cache-dir")
    own = os.environ.get("FASTJIT_CACHE_DIR", "").strip()
    if own:
        if not os.path.isabs(own):
            shown = printable(own[:60])
            return Location("", "FASTJIT_CACHE_DIR", f"FASTJIT_CACHE_DIR='{shown}' is not an absolute path")
        return Location(_tidy(own), "FASTJIT_CACHE_DIR")
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):
        return Location(_tidy(xdg + "/fastjit"), "XDG_CACHE_HOME")
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return Location(_tidy(home + "/.cache/fastjit"), "HOME")
    return Location("", "", "neither FASTJIT_CACHE_DIR nor HOME is set")


def _tidy(path: str) -> str:
    return path.rstrip("/") or "/"


def folder_problem(path: str) -> str:
    """Why the engine refuses this folder, or ""."""
    try:
        info = os.lstat(path)
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(info.st_mode):
        return "it is not a folder, or a symlink"
    if info.st_uid != os.geteuid():
        return "it belongs to another user"
    if info.st_mode & 0o022:
        return "others may write to it (chmod go-w)"
    return ""


def make_folder(path: str) -> None:
    """The cache folder and those above it, for this user alone, as the engine makes them."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


@dataclass(frozen=True)
class File:
    """One entry's file and what its first bytes say."""

    key: str
    path: str
    info: os.stat_result
    kind: str = ""
    meta: dict[str, str] = field(default_factory=dict)
    fault: str = ""


def is_key(text: str) -> bool:
    return len(text) == 32 and _HEX.issuperset(text)


def scan(root: str) -> list[File]:
    """Every entry, good or bad. Raises CacheError when the folder cannot be used."""
    problem = folder_problem(root)
    if problem:
        raise CacheError(f"{printable(root)}: {problem}")
    files = []
    try:
        folders = sorted(name for name in os.listdir(root) if len(name) == 2 and _HEX.issuperset(name))
    except OSError as error:
        raise CacheError(f"{printable(root)}: {error.strerror}") from error
    for folder in folders:
        try:
            names = os.listdir(f"{root}/{folder}")
        except OSError:
            continue
        files += [
            entry
            for name in names
            if name.endswith(".fj") and is_key(name[:-3])
            if (entry := read_head(name[:-3], f"{root}/{folder}/{name}")) is not None
        ]
    return files


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _check_file(info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_nlink > 1 or info.st_mode & 0o022:
        raise BadEntry("unsafe-file")
    if info.st_size > MAX_ENTRY_BYTES:
        raise BadEntry("too-large")
    if info.st_size < HEADER.size + CHECKSUM_BYTES:
        raise BadEntry("truncated")


def read_head(key: str, path: str) -> File | None:
    """Header and meta, without the checksum. None when the entry has just gone."""
    try:
        fd = _open(path)
    except FileNotFoundError:
        return None
    except OSError:
        return File(key, path, os.lstat(path), fault="unsafe-file" if os.path.islink(path) else "io-error")
    try:
        info = os.fstat(fd)
        try:
            _check_file(info)
            head = os.read(fd, _HEAD_BYTES)
            kind, lengths = _parse_header(head, info.st_size, key)
            if HEADER.size + lengths[0] > len(head):
                head = os.pread(fd, HEADER.size + lengths[0], 0)
            return File(key, path, info, kind, parse_fields(head[HEADER.size : HEADER.size + lengths[0]]))
        except BadEntry as bad:
            return File(key, path, info, fault=bad.reason)
        except OSError:
            return File(key, path, info, fault="io-error")
    finally:
        os.close(fd)


def _parse_header(head: bytes, size: int, key: str) -> tuple[str, tuple[int, ...]]:
    magic, version, kind, total, *lengths, digest, zero = HEADER.unpack_from(head)
    if magic != MAGIC:
        raise BadEntry("not-an-entry")
    if version != FORMAT or kind not in KINDS:
        raise BadEntry("foreign-version")
    if total > size:
        raise BadEntry("truncated")
    if total < size or zero != bytes(8):
        raise BadEntry("malformed")
    if _object_at(lengths) + lengths[4] + CHECKSUM_BYTES != size:
        raise BadEntry("malformed")
    if digest.hex() != key:
        raise BadEntry("key-mismatch")
    return KINDS[kind], tuple(lengths)


def _object_at(lengths: list[int] | tuple[int, ...]) -> int:
    return (HEADER.size + sum(lengths[:4]) + 15) // 16 * 16


def parse_fields(data: bytes) -> dict[str, str]:
    """Length-prefixed names and values. Raises BadEntry."""
    values: list[str] = []
    at = 4
    count = int.from_bytes(data[:4], "little")
    if len(data) < 4 or count > len(data) // 8:
        raise BadEntry("malformed")
    for _ in range(2 * count):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or end > len(data):
            raise BadEntry("malformed")
        values.append(data[at + 4 : end].decode("utf-8", "backslashreplace"))
        at = end
    if at != len(data):
        raise BadEntry("malformed")
    return dict(zip(values[::2], values[1::2], strict=True))


def read_sections(file: File) -> dict[str, bytes]:
    """The sections of a whole entry, lengths checked. Raises BadEntry or OSError."""
    fd = _open(file.path)
    with os.fdopen(fd, "rb") as stream:
        info = os.fstat(fd)
        _check_file(info)
        data = stream.read(MAX_ENTRY_BYTES + 1)
    if len(data) < info.st_size:
        raise BadEntry("truncated")
    _, lengths = _parse_header(data, len(data), file.key)
    sections = {}
    at = HEADER.size
    for name, length in zip(SECTIONS, lengths, strict=True):
        if name == "object":
            at = _object_at(lengths)
        sections[name] = data[at : at + length]
        at += length
    sections["file"] = data
    return sections


def checksum_fault(file: File) -> str:
    """What the engine would say against the entry (all but the object's own check), or ""."""
    if file.fault:
        return file.fault
    digest = xxh3_128()
    try:
        sections = read_sections(file)
        data = sections["file"]
        if digest(data[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
            return "checksum"
        if digest(sections["key"]).hex() != file.key:
            return "key-mismatch"
        text_end = HEADER.size + sum(len(sections[name]) for name in SECTIONS[:4])
        if data[text_end : -CHECKSUM_BYTES - len(sections["object"])].strip(b"\0"):
            return "malformed"
        parse_fields(sections["key"])
    except BadEntry as bad:
        return bad.reason
    except OSError:
        return "io-error"
    return ""


def xxh3_128() -> Any:
    try:
        import xxhash
    except ImportError:
        raise CacheError("checking checksums needs the xxhash package: pip install xxhash") from None
    return xxhash.xxh3_128_digest


def printable(text: str) -> str:
    """Text from a file as it may be shown on a terminal: control and unpaired characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# ---- the statistics log: lines "kind id count seconds" -------------------------------------------------------------


@dataclass
class Count:
    count: int = 0
    last: float = 0.0


_LOG_LINE = re.compile(r"([!-~]{1,64}) ([!-~]{1,64}) ([0-9]{1,18}) ([0-9]{1,12})")


def read_log(root: str, since: float = 0.0) -> dict[tuple[str, str], Count]:
    """Sums by (kind, id). Lines that do not parse are skipped."""
    totals: dict[tuple[str, str], Count] = {}
    try:
        with os.fdopen(_open(f"{root}/stats"), encoding="latin-1") as stream:
            lines = stream.read(16 << 20).splitlines()
    except OSError:
        return totals
    for line in lines:
        match = _LOG_LINE.fullmatch(line)
        if not match or int(match[4]) < since:
            continue
        parts = match.groups()
        total = totals.setdefault((parts[0], parts[1]), Count())
        total.count += int(parts[2])
        total.last = max(total.last, float(parts[3]))
    return totals


def write_log(root: str, totals: dict[tuple[str, str], Count]) -> None:
    """Replaces the log by one line a sum."""
    text = "".join(f"{kind} {name} {total.count} {int(total.last)}\n" for (kind, name), total in totals.items())
    os.makedirs(f"{root}/tmp", mode=0o700, exist_ok=True)
    temp = f"{root}/tmp/{os.urandom(16).hex()}.tmp"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as stream:
            stream.write(text)
        os.replace(temp, f"{root}/stats")
    except BaseException:
        os.unlink(temp)
        raise


def remove(file: File) -> bool:
    """Unlinks the entry if it is still the file that was read. False when it is not, or cannot be."""
    try:
        now = os.lstat(file.path)
        if (now.st_ino, now.st_mtime_ns, now.st_size) != (file.info.st_ino, file.info.st_mtime_ns, file.info.st_size):
            return False
        if stat.S_ISDIR(now.st_mode):  # at the path of an entry: nothing of the engine's is in it
            import shutil

            shutil.rmtree(file.path)
        else:
            os.unlink(file.path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def forget_usage(root: str) -> None:
    """The engine sums up again when its totals are gone: call after removing entries."""
    with contextlib.suppress(OSError):
        os.unlink(f"{root}/usage")
