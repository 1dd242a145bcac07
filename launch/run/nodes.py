"""Asks all hosts at once: what they are (launch/node.sh), and whether they share a folder."""
import os
import pathlib
import secrets
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from errors import CONFIG, TEMPORARY, Failure, say
from job import SESSIONS

LAUNCH = pathlib.Path(__file__).resolve().parent.parent
ANSWER_S = 10  # a host must answer within this time
SHARED_S = 5   # the other hosts must see a file that one of them wrote within this time
LOST_S = 9     # a host that is silent for so long is lost, while the ranks are asked to save
END_S = 2      # a host that is silent for so long, and as long as its first answer took, is lost once its job has ended
LONGEST_LIST = 200  # letters; names of hosts that are waited for
LOGIN = "ssh is refused ({}): let this user log in with a key, without a password"
# What is refused now is refused later, too: words of ssh and srun, and a line for the user.
REFUSED = {"Permission denied": LOGIN, "Host key verification failed": LOGIN, "REMOTE HOST IDENTIFICATION HAS CHANGED": LOGIN,
           "Invalid generic resource": "srun is refused ({}): ask sbatch for GPUs with --gpus-per-node"}


def names_of(hosts):
    names = ", ".join(host.name for host in hosts)
    return names if len(names) <= LONGEST_LIST else names[:LONGEST_LIST] + "..."


def on_all(hosts, work):
    """[work(host) for each host], all at once."""
    with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
        return list(pool.map(work, hosts))


def call(platform, host, script, *arguments, seconds=ANSWER_S):
    """Runs a bash script on a host: (its output, what went wrong or "")."""
    process = platform.reach(host, "bash", "-s", "--", *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, errors="replace", start_new_session=True)
    SESSIONS.add(process.pid)
    try:
        output, errors = process.communicate(script, timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "", f"no answer within {seconds} s"
    finally:
        SESSIONS.discard(process.pid)
    return output, (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1] if process.returncode else ""


def ask(platform, host, arguments, deadline):
    """Fills host.facts. Returns what is wrong, after `deadline` (of time.monotonic) at the latest; "" if it answered."""
    while True:
        began = time.monotonic()
        output, error = call(platform, host, (LAUNCH / "node.sh").read_text(), *arguments)
        lines = output.splitlines()
        if not error and lines[-1:] == ["end"]:
            host.answer_s = time.monotonic() - began
            for line in lines[:-1]:
                key, _, value = line.partition(" ")
                host.facts.setdefault(key, []).append(value)
            return ""
        error = error or "its answer is cut off"
        if time.monotonic() >= deadline or any(text in error for text in REFUSED):
            return error
        time.sleep(1)


def ask_all(platform, hosts, arguments, wait, min_hosts, only_show=False):
    """The hosts that answered within `wait` seconds. Failure when fewer than `min_hosts` did (0: all must). only_show: all hosts."""
    began = time.monotonic()
    errors = on_all(hosts, lambda host: ask(platform, host, arguments, began))
    silent = [host for host, error in zip(hosts, errors) if error and not any(text in error for text in REFUSED)]
    if silent and time.monotonic() < began + wait:
        say(f"no answer yet from {names_of(silent)}: waits {wait} s at most (--wait)")
        later = dict(zip((host.name for host in silent), on_all(silent, lambda host: ask(platform, host, arguments, began + wait))))
        errors = [later.get(host.name, error) for host, error in zip(hosts, errors)]
    refused = [next((line for text, line in REFUSED.items() if text in error), "") for error in errors]
    lines = [f"{host.name}: " + (line or f"silent for {wait} s ({{}}): start it, or take it off the list").format(error)
             for host, error, line in zip(hosts, errors, refused) if error]
    answered = [host for host, error in zip(hosts, errors) if not error or only_show]
    if len(answered) < (min_hosts or len(hosts)):
        raise Failure(CONFIG if any(refused) else TEMPORARY, *lines)
    for line in lines:
        say(f"{line}; {'shown as if it had no GPU' if only_show else 'goes on without it'}")
    return answered


def lost(platform, hosts):
    """The names of hosts that do not answer for LOST_S seconds. Slurm watches its hosts itself."""
    deadline, silent = time.monotonic() + LOST_S, hosts if platform.name != "slurm" and len(hosts) > 1 else []
    while True:
        errors = on_all(silent, lambda host: call(platform, host, "true", seconds=LOST_S / 2 + host.answer_s)[1])
        silent = [host for host, error in zip(silent, errors) if error]
        if not silent or time.monotonic() >= deadline:
            return [host.name for host in silent]
        time.sleep(1)


def wait_for_gpus(platform, hosts, arguments, wait):
    """Asks hosts again on which a process has a GPU, for `wait` seconds at most: one that was killed may hold it a little longer."""
    deadline, told = time.monotonic() + wait, False
    while (busy := [host for host in hosts if "gpu_process" in host.facts]) and time.monotonic() < deadline:
        if not told:
            say(f"GPUs are in use on {names_of(busy)}: waits {wait} s at most (--wait)")
            told = True
        time.sleep(1)
        for host in busy:
            host.facts.clear()
        ask_all(platform, busy, arguments, wait, 0)


def find_unshared(platform, hosts, folder):
    """The first host makes a file in `folder`; a host that does not see it gets the fact "not_shared". Failure when one does not answer."""
    mark = os.path.join(folder, f".shared-{secrets.token_hex(8)}")

    def answer(host, script):
        output, error = call(platform, host, script, mark)
        if error:
            raise Failure(TEMPORARY, f"{host.name}: lost before the start ({error}): start it, or take it off the list")
        return "".join(output.splitlines()[-1:])  # a login may print before it
    said = answer(hosts[0], '{ mkdir -p "$(dirname "$1")" && echo >"$1" && echo yes; } 2>&1; true')
    if said != "yes":
        raise Failure(CONFIG, f"{hosts[0].name}: cannot write to {folder} ({said}): choose another run.dir")
    wait = (f'for i in {{1..{10 * SHARED_S}}}; do if [ -e "$1" ]; then echo yes; exit; fi; ls "$(dirname "$1")" >/dev/null 2>&1; sleep 0.1; done; '
            "echo no")
    try:
        for host, said in zip(hosts, on_all(hosts, lambda host: answer(host, wait))):
            if said != "yes":
                host.facts["not_shared"] = [said]
    finally:
        call(platform, hosts[0], 'rm -f "$1"', mark)


def count_started(platform, host, folder, ranks, seconds):
    """How many ranks have left their mark in a folder (launch/rank.sh); removes it. A listing may be an older one on NFS."""
    count = 'n=0; for ((i = 0; i < $2; i++)); do [ ! -e "$1/$i" ] || n=$((n + 1)); done; echo $n; rm -rf "$1"'
    lines = call(platform, host, count, folder, str(ranks), seconds=seconds)[0].split()  # a login may print before it
    return int(lines[-1]) if lines and lines[-1].isdecimal() else 0


def end_job(platform, hosts, job, records):
    """Kills what is left of a job on the hosts that can be reached, and keeps its flight records in the folder `records`."""
    script = (LAUNCH / "end_job.sh").read_text() + "shift\n" + (LAUNCH / "keep_flight.sh").read_text()
    def end(host):
        is_lost = platform.name != "local" and call(platform, host, "true", seconds=END_S + host.answer_s)[1]
        return is_lost or call(platform, host, script, job, records)
    on_all(hosts, end)
