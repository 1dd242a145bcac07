"""How run.sh ends when a job cannot be started. README.md lists the codes."""
import sys

CONFIG, DATA, TEMPORARY, STOPPED = 2, 3, 75, 85


class Failure(Exception):
    """Lines for the user, and the exit code."""

    def __init__(self, code, *lines):
        super().__init__("\n".join(lines))
        self.code, self.lines = code, lines


def say(line):
    print(f"run: {line}", file=sys.stderr, flush=True)
