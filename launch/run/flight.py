"""The flight records of a run, which say which rank is the cause when a job hangs or loses a rank."""
import os
import re
import subprocess

from job import prepare

LONGEST_S = 30  # `tandem inspect` looks twice in 12 s at ranks on other hosts


def start_in(folder):
    """What tells the records of one start from those of another; empty without records."""
    try:
        with open(os.path.join(folder, "rank-0000"), "rb") as record:
            return record.read(16)
    except OSError:
        return b""


def cause(tandem, run):
    """The last line of `tandem inspect RUN --flight`, or "" where it names no rank."""
    try:
        done = subprocess.run([tandem, "inspect", run, "--flight"], capture_output=True, text=True, errors="replace", timeout=LONGEST_S,
                              preexec_fn=prepare)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((line for line in done.stdout.splitlines()[-1:] if re.match("rank|all ranks", line)), "")
