"""The ``fastjit`` command. Starts without torch: ``bench`` and ``compare`` import it when they run."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

OK, FINDINGS, USAGE, NO_CACHE, PARTIAL = range(5)
_DELEGATED = {"bench": "fastjit.bench_cli", "compare": "fastjit.bench_cli"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        from fastjit._cache import printable

        super().error(printable(message))  # it quotes arguments, which may hold anything


def build_parser() -> argparse.ArgumentParser:
    from fastjit import cache_cli

    parser = _Parser(prog="fastjit", description="Makes repeated PyTorch code fast.")
    parser.add_argument("--version", action="store_true", help="versions of the package, LLVM, torch and Python")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("bench", help="time a function or statement under several compilers", add_help=False)
    commands.add_parser("compare", help="the same as bench", add_help=False)
    doctor = commands.add_parser("doctor", help="what is present on this machine, and one tiny compile")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--no-compile", action="store_true", help="do not import torch for the compile check")
    docs = commands.add_parser("docs", help="print a page of the documentation")
    docs.add_argument("page", nargs="?", default="", help="limits, for example; without it, the list of pages")
    cache_cli.add_verbs(commands.add_parser("cache", help="list, inspect and clean the kernel cache"))
    return parser


def _version() -> int:
    from fastjit import doctor

    for name, value in doctor.versions().items():
        print(f"{name:<10} {value}")
    return OK


def _docs(page: str) -> int:
    from fastjit import _docs

    try:
        print(_docs.text(page), end="")
    except LookupError as error:
        print(f"fastjit docs: {error.args[0]}", file=sys.stderr)
        return USAGE
    return OK


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit code: 0 ok, 1 findings, 2 usage, 3 no usable cache, 4 done in part."""
    _mend_streams()
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # `fastjit cache ls | head` must not end in a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _mend_streams() -> None:
    """Streams that the shell closed are empty; what the terminal has no letters for is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in _DELEGATED:
        import importlib

        return int(importlib.import_module(_DELEGATED[arguments[0]]).main(arguments) or 0)
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.version:
        return _version()
    if options.command == "doctor":
        from fastjit import doctor

        return doctor.main(as_json=options.json, compile_check=not options.no_compile)
    if options.command == "docs":
        return _docs(options.page)
    if options.command == "cache":
        from fastjit import cache_cli

        return cache_cli.run(options)
    parser.print_help()
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
