"""The hosts of a job: which there are, and how a platform reaches them."""
import os
import socket
import subprocess
from dataclasses import dataclass, field

from errors import CONFIG, Failure

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "platforms")


@dataclass
class Host:
    name: str
    slots: int = 0  # ranks; 0: not said
    facts: dict = field(default_factory=dict)  # what node.sh printed: key -> list of values


class Platform:
    """A script of launch/platforms/."""

    def __init__(self, name, hosts, hostfile):
        if name == "auto":
            name = the_platform_here(hosts, hostfile)
        self.name = name
        self.script = os.path.join(FOLDER, name + ".sh")
        if not os.path.exists(self.script):
            raise Failure(CONFIG, f"--platform {name}: there are auto, {', '.join(sorted(entry[:-3] for entry in os.listdir(FOLDER)))}")
        if name == "ssh" and not (hosts or hostfile):
            raise Failure(CONFIG, "--platform ssh needs --hostfile FILE or --hosts a:8,b:8")
        if hostfile and not os.path.isfile(hostfile):
            raise Failure(CONFIG, f"--hostfile {hostfile}: no such file")
        self.environment = dict(os.environ, TANDEM_HOSTS=hosts, TANDEM_HOSTFILE=hostfile)

    def ask(self, *words):
        done = subprocess.run([self.script, *words], env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(CONFIG, f"{self.name} {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.splitlines()

    def hosts(self):
        """The hosts in the platform's order, each once: a later line for a host adds its slots, as for mpirun."""
        found = {}
        for line in self.ask("hosts"):
            name, *rest = line.split()
            if len(rest) > 1 or (rest and not rest[0].isdigit()) or rest == ["0"]:
                raise Failure(CONFIG, f"host '{line.strip()}': must be NAME, NAME:RANKS or NAME slots=RANKS, with 1 rank or more")
            slots = int(rest[0]) if rest else 0
            if name in found and (not slots or not found[name].slots):
                raise Failure(CONFIG, f"host {name} stands twice; say how many ranks at both places, or remove one")
            found.setdefault(name, Host(name)).slots += slots
        if not found:
            raise Failure(CONFIG, "no hosts: --hostfile or --hosts is empty")
        return list(found.values())

    def shared(self):
        return self.ask("shared")

    def reach(self, host, *command, **how):
        """Starts a command on a host."""
        return subprocess.Popen([self.script, "reach", host.name, *command], env=self.environment, **how)

    def launcher(self, ranks, hostfile):
        """The words before a command that start `ranks` ranks of it."""
        return self.ask("launcher", str(ranks), hostfile)


def the_platform_here(hosts, hostfile):
    """What --platform auto means."""
    if os.environ.get("SLURM_JOB_ID"):
        return "slurm"
    if hostfile or needs_ssh(hosts):
        return "ssh"
    if hosts:
        return "local"
    if os.environ.get("K_MPI_JOB_ROLE") == "launcher":  # the MPI Operator sets it
        return "kubernetes"
    sagemaker = os.path.join(os.environ.get("TANDEM_OPT_ML", "/opt/ml"), "input", "config", "resourceconfig.json")
    return "sagemaker" if os.path.exists(sagemaker) else "local"


def needs_ssh(hosts):
    here = {"localhost", socket.gethostname()}
    return bool(hosts) and {host.partition(":")[0] for host in hosts.split(",")} - here != set()
