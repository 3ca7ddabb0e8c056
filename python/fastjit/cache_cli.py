"""``fastjit cache``: arguments and printing. What the verbs do is in fastjit.cache."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from fastjit import cache
from fastjit._cache import BadEntry, CacheError, printable

OK, FINDINGS, USAGE, NO_CACHE, PARTIAL = range(5)
SCHEMA = "fastjit.cache/1"
ENTRY_COLUMNS = ("key", "function", "signature", "target", "bytes", "loads", "compile_ms", "created", "last_used")


# ---- arguments -------------------------------------------------------------------------------------------------------


def _argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"'{text}' is not a number")
    return int(text)


def add_verbs(parser: argparse.ArgumentParser) -> None:
    size, age, count = map(_argument_type, (cache.parse_size, cache.parse_age, _natural))
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--cache-dir", metavar="DIR", help="look here instead of FASTJIT_CACHE_DIR")
    common.add_argument("--json", action="store_true", help=f"print JSON ({SCHEMA})")
    destructive = argparse.ArgumentParser(add_help=False)
    destructive.add_argument("-y", "--yes", action="store_true", help="do not ask")
    destructive.add_argument("-n", "--dry-run", action="store_true", help="only say what would be removed")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text, parents=[common, *parents])

    verb("dir", "print the folder")
    verb("info", "where the cache is, its settings and limits, what it holds")
    ls = verb("ls", "list the entries")
    ls.add_argument("pattern", nargs="?", metavar="FN|GLOB", help="only these functions")
    ls.add_argument(
        "--filter", action="append", default=[], metavar="COND", help="'size>1M,age>30d,device=cuda,arch=sm_90,loads=0'"
    )
    ls.add_argument(
        "--sort",
        default="used:desc",
        metavar="NAME[:desc]",
        help="size, loads, compile, saved, created, used, function",
    )
    ls.add_argument("--limit", type=count, metavar="N")
    ls.add_argument("-q", "--quiet", action="store_true", help="keys only")
    ls.add_argument("--csv", action="store_true")
    show = verb("show", "what one entry holds")
    show.add_argument("key")
    part = show.add_mutually_exclusive_group()
    for name in SHOW_PARTS:
        part.add_argument(f"--{name}", dest="part", action="store_const", const=name)
    stats = verb("stats", "hits, misses, their reasons and the time saved")
    stats.add_argument("--since", type=age, metavar="AGE", help="7d, 12h (approximate for what was compacted)")
    stats.add_argument("--by", choices=("function", "target"))
    stats.add_argument("--zero", action="store_true", help="start counting anew")
    why = verb("why", "why two keys differ, field by field (exit code 1 when they do)")
    why.add_argument("first", metavar="KEY1")
    why.add_argument("second", metavar="KEY2")
    verify = verb("verify", "check header, lengths, checksum and key of entries (exit code 1 when one is bad)")
    verify.add_argument("keys", nargs="*", metavar="KEY")
    verify.add_argument("--fix", action="store_true", help="remove bad entries")
    prune = verb("prune", "remove old, unused or useless entries", destructive)
    prune.add_argument("--keep-size", type=size, metavar="SIZE", help="keep the most recently used up to this size")
    prune.add_argument("--max-entries", type=count, metavar="N")
    prune.add_argument("--older-than", type=age, metavar="AGE", help="not used for 30d, 12h")
    prune.add_argument("--unused", action="store_true", help="never loaded")
    prune.add_argument("--stale", action="store_true", help="damaged, of another format, or for a CPU unlike this one")
    rm = verb("rm", "remove entries by key", destructive)
    rm.add_argument("keys", nargs="+", metavar="KEY")
    clear = verb("clear", "remove every entry", destructive)
    clear.add_argument("--fn", metavar="GLOB", help="only those of these functions")


# ---- printing --------------------------------------------------------------------------------------------------------


def human_size(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GB"


def human_time(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.3g} ms"
    return f"{ms / 1000:.3g} s" if ms < 100_000 else f"{ms / 60_000:.0f} min"


def human_ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


def _note(text: str) -> None:
    print(f"fastjit: {text}", file=sys.stderr)


def _print_json(**fields: Any) -> None:
    import json

    print(json.dumps({"schema": SCHEMA, **fields}, indent=2))


def _record(entry: cache.Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in ENTRY_COLUMNS}


def _print_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], right: frozenset[int]) -> None:
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = []
    for line in lines:
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        text.append("  ".join(cells).rstrip())
    print("\n".join(text))


def _clip(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def _unique_prefix(keys: Iterable[str]) -> int:
    """Digits that tell all keys apart, at least 8."""
    ordered = sorted(keys)
    return max((_common(a, b) + 1 for a, b in itertools.pairwise(ordered)), default=8)


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


# ---- verbs -----------------------------------------------------------------------------------------------------------


def _dir(options: argparse.Namespace) -> int:
    path = cache.dir(options.cache_dir)
    if options.json:
        _print_json(dir=path)
    else:
        print(path)
    return OK


def _info(options: argparse.Namespace) -> int:
    info = cache.info(options.cache_dir)
    if options.json:
        _print_json(**asdict(info))
        return OK
    print(f"folder    {printable(info.path) or '(none)'}" + (f"  [{printable(info.problem)}]" if info.problem else ""))
    for setting in info.settings:
        print(f"  {setting.name:<27} {printable(setting.value):<40} from {setting.source or 'nothing'}")
    print(f"entries   {info.entries} of {info.max_entries}")
    for target, number in sorted(info.by_target.items()):
        print(f"  {printable(target):<27} {number}")
    share = 100 * info.bytes / info.max_bytes if info.max_bytes else 0
    print(f"size      {human_size(info.bytes)} of {human_size(info.max_bytes)} ({share:.1f} %)")
    print(f"format    {info.format}")
    return OK


def _ls(options: argparse.Namespace) -> int:
    listing = cache.ls(
        options.pattern, filters=options.filter, sort=options.sort, limit=options.limit, cache_dir=options.cache_dir
    )
    if options.json:
        _print_json(entries=[_record(entry) for entry in listing.entries], skipped=listing.skipped)
    elif options.csv:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(ENTRY_COLUMNS)
        writer.writerows(_record(entry).values() for entry in listing.entries)
    elif options.quiet:
        for entry in listing.entries:
            print(entry.key)
    else:
        _print_listing(listing)
    for reason, number in listing.skipped.items():
        _note(f"{number} {'entry' if number == 1 else 'entries'} not listed: {reason}")
    return PARTIAL if listing.skipped else OK


def _print_listing(listing: cache.Listing) -> None:
    now = time.time()
    digits = max(8, _unique_prefix(entry.key for entry in listing.entries))
    rows = (
        (
            entry.key[:digits],
            _clip(entry.function, 40),
            _clip(entry.signature, 40),
            printable(entry.target),
            human_size(entry.bytes),
            str(entry.loads),
            human_time(entry.loads * entry.compile_ms) if entry.loads else "-",
            human_time(entry.compile_ms),
            human_ago(now - entry.last_used),
        )
        for entry in listing.entries
    )
    head = ("KEY", "FUNCTION", "SIGNATURE", "TARGET", "SIZE", "LOADS", "SAVED", "COMPILE", "LAST USED")
    if listing.entries:
        _print_table(head, rows, frozenset((4, 5, 6, 7)))
    shown = len(listing.entries)
    part = "" if shown == listing.total_entries else f"{shown} shown of "
    plural = "entry" if listing.total_entries == 1 else "entries"
    print(
        f"{part}{listing.total_entries} {plural}, {human_size(listing.total_bytes)}; "
        f"{listing.never_loaded} never loaded"
    )


def _disassemble(shown: cache.Shown) -> str | None:
    import shutil
    import subprocess
    import tempfile

    tools = ("cuobjdump",) if shown.kind == "cubin" else ("objdump", "llvm-objdump", "llvm-objdump-22")
    tool = next((path for name in tools if (path := shutil.which(name))), None)
    if tool is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(shown.object)
        file.flush()
        arguments = ["-sass"] if shown.kind == "cubin" else ["-d", "--no-show-raw-insn"]
        done = subprocess.run([tool, *arguments, file.name], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _key_text(shown: cache.Shown) -> str:
    lines = []
    for name, value in shown.key_fields.items():
        lines += [f"{name}:", *("  " + line for line in value.splitlines())] if "\n" in value else [f"{name}: {value}"]
    return "\n".join(lines)


SHOW_PARTS: dict[str, Callable[[cache.Shown], str | None]] = {
    "ir": lambda shown: shown.ir,
    "source": lambda shown: shown.source,
    "asm": _disassemble,
    "key": _key_text,
    "meta": lambda shown: "\n".join(f"{name}: {value}" for name, value in shown.meta.items()),
}


def _printable_lines(text: str) -> str:
    return "\n".join(printable(line.expandtabs()) for line in text.splitlines())


def _show(options: argparse.Namespace) -> int:
    shown = cache.show(options.key, cache_dir=options.cache_dir)
    if options.part:
        text = SHOW_PARTS[options.part](shown)
        if text is None:
            _note(
                "entries hold no assembly, and no disassembler (objdump, llvm-objdump, cuobjdump) "
                "was found or could read the object"
            )
            return FINDINGS
        if options.json:
            _print_json(key=shown.entry.key, **{options.part: text})
        else:
            print(_printable_lines(text))
        return OK
    if options.json:
        _print_json(
            entry=_record(shown.entry),
            kind=shown.kind,
            meta=shown.meta,
            key=shown.key_fields,
            ir=shown.ir,
            source=shown.source,
            object_bytes=len(shown.object),
            path=shown.entry.file.path,
        )
        return OK
    entry = shown.entry
    for name, value in (
        ("key", entry.key),
        ("function", entry.function),
        ("signature", entry.signature),
        ("target", f"{entry.target} ({shown.kind})"),
        ("size", f"{human_size(entry.bytes)}, of it object {human_size(len(shown.object))}"),
        ("compiled", f"{human_time(entry.compile_ms)}, {human_ago(time.time() - entry.created)}"),
        ("loads", f"{entry.loads}, last used {human_ago(time.time() - entry.last_used)}"),
        ("file", entry.file.path),
    ):
        print(f"{name:<10} {printable(value)}")
    print("\nMore: --ir --source --asm --key --meta")
    return OK


def _stats(options: argparse.Namespace) -> int:
    stats = cache.stats(since=options.since, by=options.by, zero=options.zero, cache_dir=options.cache_dir)
    if options.json:
        _print_json(**asdict(stats))
        return OK
    asked = stats.loads + stats.compiles
    share = f" ({100 * stats.loads / asked:.1f} %)" if asked else ""
    print(f"loaded from disk   {stats.loads} / {asked}{share}")
    print(f"compiled           {stats.compiles}, mean {human_time(stats.mean_compile_ms)}")
    print(f"time saved         {human_time(stats.saved_ms)}")
    print(f"entries            {stats.entries}, {human_size(stats.bytes)}; {stats.evicted} evicted")
    print(
        "entries not used   "
        + (", ".join(f"{printable(name)} {number}" for name, number in stats.faults.items()) or "none")
    )
    if stats.by:
        rows = (
            (
                _clip(name, 50),
                f"{group['entries']:.0f}",
                human_size(group["bytes"]),
                f"{group['loads']:.0f}",
                human_time(group["saved_ms"]),
            )
            for name, group in sorted(stats.by.items(), key=lambda item: -item[1]["saved_ms"])
        )
        print()
        _print_table((options.by.upper(), "ENTRIES", "SIZE", "LOADS", "SAVED"), rows, frozenset((1, 2, 3, 4)))
    return OK


def _why(options: argparse.Namespace) -> int:
    differences = cache.why(options.first, options.second, cache_dir=options.cache_dir)
    if options.json:
        _print_json(differences=[asdict(item) for item in differences])
    elif not differences:
        print("the keys are equal")
    else:
        for item in differences:
            first, second = (_printable_lines(text) or "(absent)" for text in (item.first, item.second))
            print(f"{printable(item.field)}:")
            for sign, lines in (("-", first), ("+", second)):
                print("\n".join(f"  {sign} {line}" for line in lines.splitlines()))
    return FINDINGS if differences else OK


def _verify(options: argparse.Namespace) -> int:
    result = cache.verify(options.keys, fix=options.fix, cache_dir=options.cache_dir)
    if options.json:
        _print_json(checked=result.checked, bad=result.bad, removed=result.removed)
    else:
        for key, reason in result.bad.items():
            print(f"{key}  {reason}" + ("  removed" if key in result.removed else ""))
        print(f"{result.checked} checked, {len(result.bad)} bad")
    return FINDINGS if result.bad else OK


def _remove(options: argparse.Namespace, remove: Callable[[bool], cache.Removal]) -> int:
    plan = remove(True)
    what = f"{len(plan.entries)} {'entry' if len(plan.entries) == 1 else 'entries'}, {human_size(plan.bytes)}"
    if not options.dry_run and plan.entries and not options.yes:
        if not sys.stdin.isatty():
            _note(f"would remove {what}; give -y to do it, or -n to only look")
            return USAGE
        print(f"Remove {what}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            _note("nothing removed")
            return OK
    result = plan if options.dry_run else remove(False)
    if options.json:
        _print_json(
            removed=[_record(entry) for entry in result.entries],
            bytes=result.bytes,
            failed=result.failed,
            dry_run=result.dry_run,
        )
    else:
        for entry in result.entries if options.dry_run else ():
            print(f"{entry.key}  {_clip(entry.function, 60)}")
        print(
            ("would free " if options.dry_run else "freed ")
            + f"{human_size(result.bytes)} ({len(result.entries)} entries)"
        )
    for key in result.failed:
        _note(f"{key} could not be removed or changed meanwhile")
    return PARTIAL if result.failed else OK


def _prune(options: argparse.Namespace) -> int:
    return _remove(
        options,
        lambda dry_run: cache.prune(
            keep_size=options.keep_size,
            max_entries=options.max_entries,
            older_than=options.older_than,
            unused=options.unused,
            stale=options.stale,
            dry_run=dry_run,
            cache_dir=options.cache_dir,
        ),
    )


def _rm(options: argparse.Namespace) -> int:
    return _remove(options, lambda dry_run: cache.rm(options.keys, dry_run=dry_run, cache_dir=options.cache_dir))


def _clear(options: argparse.Namespace) -> int:
    return _remove(
        options, lambda dry_run: cache.clear(function=options.fn, dry_run=dry_run, cache_dir=options.cache_dir)
    )


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "dir": _dir,
    "info": _info,
    "ls": _ls,
    "show": _show,
    "stats": _stats,
    "why": _why,
    "verify": _verify,
    "prune": _prune,
    "rm": _rm,
    "clear": _clear,
}


def run(options: argparse.Namespace) -> int:
    try:
        return VERBS[options.verb](options)
    except CacheError as error:
        _note(str(error))
        return NO_CACHE
    except BadEntry as error:
        _note(f"the entry cannot be read: {error.reason}")
        return FINDINGS
    except ValueError as error:
        _note(str(error))
        return USAGE
    except BrokenPipeError:
        raise
    except OSError as error:
        _note(f"the cache cannot be used: {printable(str(error))}")
        return NO_CACHE
