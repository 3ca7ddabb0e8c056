"""``fastjit cache``: arguments and printing. What the verbs do is in fastjit.cache."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastjit import cache
from fastjit._cache import BadEntry, CacheError, printable
from fastjit._cache_print import (
    ENTRY_COLUMNS,
    SCHEMA,
    SHOW_PARTS,
    clip,
    human_ago,
    human_size,
    human_time,
    note,
    print_json,
    print_listing,
    print_table,
    printable_lines,
    record,
)
from fastjit._tables import several

OK, FINDINGS, USAGE, NO_CACHE, PARTIAL = range(5)


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
    show.add_argument("key", metavar="KEY|FN", help="a key, or a function's name for its entry that was used last")
    part = show.add_mutually_exclusive_group()
    for name in SHOW_PARTS:
        part.add_argument(f"--{name}", dest="part", action="store_const", const=name)
    stats = verb("stats", "hits, misses, their reasons and the time saved")
    stats.add_argument("--since", type=age, metavar="AGE", help="7d, 12h (approximate for what was compacted)")
    stats.add_argument("--by", type=lambda name: {"fn": "function"}.get(name, name), choices=cache.STATS_BY)
    stats.add_argument("--zero", action="store_true", help="start counting anew")
    why = verb("why", "why two keys differ, field by field (exit code 1 when they do)")
    why.add_argument("keys", nargs="*", metavar="KEY", help="two keys")
    why.add_argument(
        "--last-miss",
        nargs="?",
        const="",
        metavar="FN",
        help="compare what was compiled last (for these functions) with the entry that it is most like",
    )
    verify = verb("verify", "find damaged entries (exit code 1 when there are); does not prove who wrote them")
    verify.add_argument("keys", nargs="*", metavar="KEY")
    verify.add_argument(
        "--deep", action="store_true", help="also validate and link each object, as the engine does (imports torch)"
    )
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


# ---- verbs -----------------------------------------------------------------------------------------------------------


def _dir(options: argparse.Namespace) -> int:
    path = cache.dir(options.cache_dir)
    if options.json:
        print_json(dir=path)
    else:
        print(path)
    return OK


def _info(options: argparse.Namespace) -> int:
    info = cache.info(options.cache_dir)
    if options.json:
        print_json(**asdict(info))
        return OK
    print(f"folder    {printable(info.path) or '(none)'}" + (f"  [{printable(info.problem)}]" if info.problem else ""))
    for setting in info.settings:
        print(f"  {setting.name:<27} {printable(setting.value):<40} from {setting.source or 'nothing'}")
    print(f"entries   {info.entries} of {info.max_entries}")
    for target, number in sorted(info.by_target.items()):
        print(f"  {printable(target):<27} {number}")
    share = 100 * info.bytes / info.max_bytes if info.max_bytes else 0
    print(f"size      {human_size(info.bytes)} of {human_size(info.max_bytes)} ({share:.1f} %)")
    if info.last_evicted:
        print(f"evicted   {human_ago(time.time() - info.last_evicted)}")
    print(f"format    {info.format}")
    return OK


def _ls(options: argparse.Namespace) -> int:
    listing = cache.ls(
        options.pattern, filters=options.filter, sort=options.sort, limit=options.limit, cache_dir=options.cache_dir
    )
    if options.json:
        print_json(entries=[record(entry) for entry in listing.entries], skipped=listing.skipped)
    elif options.csv:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(ENTRY_COLUMNS)
        writer.writerows(map(printable, map(str, record(entry).values())) for entry in listing.entries)
    elif options.quiet:
        for entry in listing.entries:
            print(entry.key)
    else:
        print_listing(listing)
    for reason, number in listing.skipped.items():
        note(f"{several(number, 'entry', 'entries')} not listed: {reason}")
    return PARTIAL if listing.skipped else OK


def _show(options: argparse.Namespace) -> int:
    shown = cache.show(options.key, cache_dir=options.cache_dir)
    if shown.others:
        number = several(len(shown.others) + 1, "entry", "entries")
        others = ", ".join(key[:8] for key in shown.others)
        note(f"{printable(options.key)} has {number}; this one was used last, the others are {others}")
    if options.part:
        try:
            text = SHOW_PARTS[options.part](shown)
        except LookupError as error:
            note(f"no {options.part}: {error.args[0]}")
            return FINDINGS
        if options.json:
            print_json(key=shown.entry.key, **{options.part: text})
        else:
            print(printable_lines(text))
        return OK
    if options.json:
        print_json(
            entry=record(shown.entry),
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
    print("\nMore: " + " ".join(f"--{name}" for name in SHOW_PARTS))
    return OK


def _stats(options: argparse.Namespace) -> int:
    stats = cache.stats(since=options.since, by=options.by, zero=options.zero, cache_dir=options.cache_dir)
    if options.json:
        print_json(**asdict(stats))
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
        print()
        _print_groups(options.by, stats.by)
    return OK


def _print_groups(by: str, groups: dict[str, dict[str, float]]) -> None:
    if by == "reason":
        now = time.time()
        print_table(
            ("REASON", "COUNT", "LAST"),
            [(printable(name), f"{it['count']:.0f}", human_ago(now - it["last"])) for name, it in groups.items()],
            frozenset((1, 2)),
            elastic=(0,),
        )
        return
    rows = (
        (
            clip(name, 50),
            f"{group['entries']:.0f}",
            human_size(group["bytes"]),
            f"{group['loads']:.0f}",
            human_time(group["saved_ms"]),
        )
        for name, group in sorted(groups.items(), key=lambda item: -item[1]["saved_ms"])
    )
    print_table((by.upper(), "ENTRIES", "SIZE", "LOADS", "SAVED"), rows, frozenset((1, 2, 3, 4)), elastic=(0,))


def _why(options: argparse.Namespace) -> int:
    if options.last_miss is not None:
        if options.keys:
            raise ValueError("give two keys, or --last-miss and perhaps a function")
        return _why_last_miss(options)
    if len(options.keys) != 2:
        raise ValueError("give two keys, or --last-miss")
    differences = cache.why(*options.keys, cache_dir=options.cache_dir)
    if options.json:
        print_json(differences=[asdict(item) for item in differences])
    elif not differences:
        print("the keys are equal")
    else:
        _print_differences(differences)
    return FINDINGS if differences else OK


def _why_last_miss(options: argparse.Namespace) -> int:
    miss = cache.last_miss(options.last_miss or None, cache_dir=options.cache_dir)
    if options.json:
        print_json(
            entry=record(miss.entry),
            nearest=record(miss.nearest) if miss.nearest else None,
            differences=[asdict(item) for item in miss.differences],
        )
    else:
        ago = human_ago(time.time() - miss.entry.created)
        print(f"compiled {ago}: {_name(miss.entry)}")
        print(f"nearest before it: {_name(miss.nearest)}" if miss.nearest else "no older entry is of its kind")
        _print_differences(miss.differences)
    return FINDINGS if miss.differences else OK


def _name(entry: cache.Entry) -> str:
    return f"{entry.key[:8]} {clip(entry.function, 60)}({clip(entry.signature, 60)})"


def _print_differences(differences: list[cache.Difference]) -> None:
    for item in differences:
        first, second = (printable_lines(text) or "(absent)" for text in (item.first, item.second))
        print(f"{printable(item.field)}:")
        for sign, lines in (("-", first), ("+", second)):
            print("\n".join(f"  {sign} {line}" for line in lines.splitlines()))


def _verify(options: argparse.Namespace) -> int:
    result = cache.verify(options.keys, deep=options.deep, fix=options.fix, cache_dir=options.cache_dir)
    if options.json:
        print_json(checked=result.checked, bad=result.bad, removed=result.removed)
    else:
        for key, reason in result.bad.items():
            print(f"{key}  {reason}" + ("  removed" if key in result.removed else ""))
        counts = f"{result.checked} checked, {len(result.bad)} bad"
        print(f"{counts}. This finds damage; it does not prove who wrote an entry")
    return FINDINGS if result.bad else OK


def _remove(options: argparse.Namespace, remove: Callable[[bool], cache.Removal]) -> int:
    plan = remove(True)
    what = f"{several(len(plan.entries), 'entry', 'entries')}, {human_size(plan.bytes)}"
    if not options.dry_run and plan.entries and not options.yes:
        if not sys.stdin.isatty():
            note(f"would remove {what}; give -y to do it, or -n to only look")
            return USAGE
        print(f"Remove {what}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            note("nothing removed")
            return OK
    result = plan if options.dry_run else remove(False)
    if options.json:
        print_json(
            removed=[record(entry) for entry in result.entries],
            bytes=result.bytes,
            failed=result.failed,
            dry_run=result.dry_run,
        )
    else:
        for entry in result.entries if options.dry_run else ():
            print(f"{entry.key}  {clip(entry.function, 60)}")
        print(
            ("would free " if options.dry_run else "freed ")
            + f"{human_size(result.bytes)} ({several(len(result.entries), 'entry', 'entries')})"
        )
    for key in result.failed:
        note(f"{key} could not be removed or changed meanwhile")
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
        note(str(error))
        return NO_CACHE
    except BadEntry as error:
        note(f"the entry cannot be read: {error.reason}")
        return FINDINGS
    except ValueError as error:
        note(str(error))
        return USAGE
    except BrokenPipeError:
        raise
    except OSError as error:
        note(f"the cache cannot be used: {printable(str(error))}")
        return NO_CACHE
