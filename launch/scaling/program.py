"""What the program `tandem` estimates before anything is launched."""
import json
import subprocess

from command_line import printable
from errors import CONFIG, Failure

from .options import assignments


def estimate(request, node_size, gpu, ranks, settings):
    """What is predicted for that GPU, or "none" for this machine's CPU; or None, and why the case cannot run."""
    settings = {**request.settings, **settings}
    words = ["estimate", *request.config_words, *assignments(settings), f"--ranks={ranks}", f"--gpu={gpu}", "--json"]
    if "dist.node_size" not in settings:
        words.append(f"--node-size={min(ranks, node_size)}")
    done = subprocess.run([request.tandem, *words], capture_output=True, text=True)
    problems = printable("; ".join(line.removeprefix("tandem: ") for line in done.stderr.splitlines()))
    if done.returncode == CONFIG:
        return None, problems
    if done.returncode != 0:
        raise Failure(done.returncode, problems)
    answer = json.loads(done.stdout)
    [row] = [row for row in answer["rows"] if row["given"]]
    if not row["fits"]:
        return None, answer["verdict"]
    keys = ["step_ms", "exposed_comm_ms", "wire_bytes", "peak_bytes", "mfu"]
    return {**{key: row[key] for key in keys}, "memory_bytes": answer["memory_bytes"], "assumed": answer["assumed"]}, ""
