"""What the program `tandem` estimates before anything is launched."""
import json
import subprocess

from command_line import printable
from errors import CONFIG, Failure

from .options import assignments


def ask(request, *words):
    """The answer of `tandem estimate` with the request's settings and these words, or None; and why there is none."""
    command = [request.tandem, "estimate", *request.config_words, *assignments(request.settings), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    problems = printable("; ".join(line.removeprefix("tandem: ") for line in done.stderr.splitlines()))
    if done.returncode not in (0, CONFIG):
        raise Failure(done.returncode, problems)
    return (None, problems) if done.returncode else (json.loads(done.stdout), "")


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
