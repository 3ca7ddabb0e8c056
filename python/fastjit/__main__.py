"""``python -m fastjit`` is the ``fastjit`` command."""

import sys

from fastjit.cli import main

if __name__ == "__main__":
    sys.exit(main())
