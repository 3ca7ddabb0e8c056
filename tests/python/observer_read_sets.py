"""Writes what every read pattern gives under this Python, as JSON: observer_read_sets.py LIBRARY OUT."""

import json
import re
import sys
import warnings
from pathlib import Path

from observer_cases import SOUND
from observer_container_cases import CONTAINERS
from observer_shape_cases import SHAPES
from observer_tools import load, observe, program
from observer_unsound_cases import UNSOUND

# Python's own modules have their code on other lines in each version.
LINES_OF_PYTHON = re.compile(r"(<frozen [\w.]+>):\d+")


def read_sets(library: Path) -> dict[str, list[str]]:
    """By pattern: the sentence that makes it unsound, if any, and every fact in words, in reading order."""
    ext = load(library)
    found = {}
    for case in [*SOUND, *CONTAINERS, *SHAPES, *UNSOUND]:
        module = program(case.source)
        with warnings.catch_warnings(action="ignore"):
            seen = observe(ext, module.f, *eval(case.args, module.__dict__))
        facts = seen.facts.describe() if not seen.unsound else []
        found[case.name] = [LINES_OF_PYTHON.sub(r"\1", line) for line in (seen.unsound, *facts)]
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(read_sets(Path(sys.argv[1]))))
