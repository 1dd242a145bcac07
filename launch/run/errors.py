"""How a launcher ends when it cannot go on. README.md lists the codes, which are those of `tandem`."""
import contextlib
import os
import sys

CONFIG, DATA, NUMERICAL, TEMPORARY, STOPPED = 2, 3, 64, 75, 85


class Failure(Exception):
    """Lines for the user, and the exit code."""

    def __init__(self, code, *lines):
        super().__init__("\n".join(lines))
        self.code, self.lines = code, lines


def say(line):
    """Nobody need be able to read it: a full disk or a reader that is gone ends no job."""
    if sys.stderr is None:  # closed at the start, so that 2 may be another file now
        return
    with contextlib.suppress(OSError):
        os.write(2, f"run: {line}\n".encode(errors="backslashreplace"))  # one write, unlike print(): the job writes to the same stream
