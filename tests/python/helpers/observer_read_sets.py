"""Writes what every read pattern gives under this Python, as JSON: observer_read_sets.py OUT."""

import json
import re
import sys
import warnings
from pathlib import Path

from observer_cases import SOUND
from observer_container_cases import CONTAINERS
from observer_function_cases import FUNCTIONS
from observer_shape_cases import SHAPES
from observer_tools import built, observe, program
from observer_unsound_cases import UNSOUND

# A fact that code of the standard library read: that code differs from version to version.
READ_ELSEWHERE = re.compile(r"\((?!model\.py:)[^()]*:\d+\)$")


def read_sets() -> dict[str, list[str]]:
    """By pattern: the sentence that makes it unsound, if any, and the facts that its own code read, in order."""
    ext = built()
    found = {}
    for case in [*SOUND, *CONTAINERS, *SHAPES, *FUNCTIONS, *UNSOUND]:
        module = program(case.source)
        with warnings.catch_warnings(action="ignore"):
            seen = observe(ext, module.f, *eval(case.args, module.__dict__))
        facts = seen.facts.describe() if not seen.unsound else []
        found[case.name] = [seen.unsound, *(fact for fact in facts if not READ_ELSEWHERE.search(fact))]
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(read_sets()))
