"""Where and with what a study was measured: commit, versions, devices, date."""
import hashlib
import platform
import shutil
import socket
import subprocess
import time

from .options import ROOT

GPU_FACTS = "name,driver_version,clocks.sm,clocks.mem,power.limit"


def output(*command):
    """The lines that a command prints; none when it is not there or fails."""
    if not shutil.which(command[0]):
        return []
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def cpu():
    with open("/proc/cpuinfo") as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def environment(request, hosts):
    """`devices` are those of this machine. The first lines of each launch say what its ranks computed on."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": (output("git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12") or ["not in a repository"])[0],
        "tandem_sha256": digest(request.tandem),
        "versions": {"python": platform.python_version(), "kernel": platform.release(),
                     "mpi": (output("mpirun", "--version") or ["not found"])[0]},
        "hosts": hosts or [socket.gethostname()],
        "cpu": cpu(),
        "devices": output("nvidia-smi", f"--query-gpu={GPU_FACTS}", "--format=csv,noheader"),
    }
