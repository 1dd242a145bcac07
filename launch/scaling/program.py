"""What the program `tandem` estimates before anything is launched."""
import json
import subprocess

from command_line import printable
from errors import CONFIG, Failure
from job import MEANING

from .options import assignments


def ask(request, *words):
    """The answer of `tandem estimate` with the request's settings and these words, or None; and why there is none."""
    command = [request.tandem, "estimate", *request.config_words, *assignments(request.settings), *words, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise Failure(CONFIG, f"{request.tandem} does not start: {error.strerror}")
    problems = printable("; ".join(line.removeprefix("tandem: ") for line in done.stderr.splitlines()))
    if done.returncode == CONFIG:
        return None, problems
    if done.returncode != 0 and done.returncode in MEANING:
        raise Failure(done.returncode, problems)
    try:
        return json.loads("" if done.returncode else done.stdout), ""
    except ValueError:
        raise Failure(CONFIG, f"{request.tandem} gives no estimate ({problems or 'no JSON'}); build it with launch/build.sh")


def estimate(request, node_size, gpu, ranks, settings):
    """What is predicted for that GPU, or "none" for this machine's CPU; or None, and why the case cannot run."""
    words = [*assignments(settings), f"--ranks={ranks}", f"--gpu={gpu}"]
    if "dist.node_size" not in {**request.settings, **settings}:
        words.append(f"--node-size={min(ranks, node_size)}")
    answer, problems = ask(request, *words)
    if not answer:
        return None, problems
    [row] = [row for row in answer["rows"] if row["given"]]
    if not row["fits"]:
        return None, answer["verdict"]
    keys = ["step_ms", "exposed_comm_ms", "wire_bytes", "peak_bytes", "mfu"]
    return {**{key: row[key] for key in keys}, "memory_bytes": answer["memory_bytes"], "assumed": answer["assumed"]}, ""
