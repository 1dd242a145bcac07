"""What the program `tandem` says before anything is launched: which settings there are, and its estimates."""
import json
import re
import subprocess

from errors import CONFIG, Failure
from settings import read_file

from .options import assignments


def ask(tandem, words):
    """Exit code, standard output, and what it said was wrong, as one line."""
    done = subprocess.run([tandem, *words], capture_output=True, text=True)
    problems = [line.replace("tandem: ", "", 1) for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, done.stdout, "; ".join(problems)


def check_settings(request, sweep):
    """Names and values of settings. Their combinations depend on the number of ranks; estimate() checks them."""
    settings = {**request.settings, **sweep}
    code, output, problems = ask(request.tandem, ["estimate", *request.config_words, *assignments(settings), "--help"])
    if code != 0:
        raise Failure(CONFIG, problems)
    return output


def configured(request, sweep, key, help_text):
    """The value of a setting: the command line wins over files, a later file over an earlier one. `help_text` has the default."""
    chosen = {}
    for path in request.configs:
        chosen.update(read_file(path))
    chosen.update({**request.settings, **sweep})
    if key in chosen:
        return chosen[key]
    return re.search(rf"--{re.escape(key)} +(\S+)", help_text).group(1)


class Estimates:
    """`tandem estimate` for the GPU of the study, or for this machine's CPU."""

    def __init__(self, request, node_size, gpu):
        self.request, self.node_size, self.gpu = request, node_size, gpu

    def of(self, ranks, settings):
        """What is predicted, or None and why the case cannot run."""
        settings = {**self.request.settings, **settings}
        words = ["estimate", *self.request.config_words, *assignments(settings), f"--ranks={ranks}", f"--gpu={self.gpu}", "--json"]
        if "dist.node_size" not in settings:
            words.append(f"--node-size={min(ranks, self.node_size)}")
        code, output, problems = ask(self.request.tandem, words)
        if code == CONFIG:
            return None, problems
        if code != 0:
            raise Failure(code, problems)
        answer = json.loads(output)
        [row] = [row for row in answer["rows"] if row["given"]]
        if not row["fits"]:
            return None, answer["verdict"]
        keys = ["step_ms", "exposed_comm_ms", "wire_bytes", "peak_bytes", "mfu"]
        return {**{key: row[key] for key in keys}, "memory_bytes": answer["memory_bytes"], "assumed": answer["assumed"]}, ""
