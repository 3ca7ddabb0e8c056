"""`make bench`: every benchmark in a process of its own, one after the other, then the tables of README and docs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("import_time", "dispatch", "first_call", "fastswish", "matmul_epilogue", "guards", "parameters", "traffic")
NAMES += ("chains",)


def main(argv: list[str]) -> int:
    unknown = [word for word in argv if not word.startswith("-") and word not in NAMES]
    if unknown:
        print(f"run_all: no benchmark '{unknown[0]}'; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    options = [word for word in argv if word.startswith("-")]
    failed = []
    for name in [word for word in argv if word in NAMES] or NAMES:
        if subprocess.run([sys.executable, str(HERE / f"{name}.py"), *options]).returncode != 0:
            failed.append(name)
        print(flush=True)
    if failed:
        print(f"run_all: failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    if "--quick" not in options:
        return subprocess.run([sys.executable, str(HERE / "report.py")]).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
