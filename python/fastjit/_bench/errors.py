"""What went wrong, in words that name the argument and the way out."""


class BenchError(Exception):
    """Bad usage: the command prints the text and exits with 2."""
