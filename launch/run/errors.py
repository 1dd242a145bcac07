"""How a launcher ends when it cannot go on. README.md lists the codes, which are those of `tandem`."""
import sys

CONFIG, DATA, NUMERICAL, TEMPORARY, STOPPED = 2, 3, 64, 75, 85


class Failure(Exception):
    """Lines for the user, and the exit code."""

    def __init__(self, code, *lines):
        super().__init__("\n".join(lines))
        self.code, self.lines = code, lines


def say(line):
    sys.stderr.write(f"run: {line}\n")  # one write, unlike print(): the job writes to the same stream
