"""The hosts of a job: which there are, and how a platform reaches them."""
import codecs
import os
import re
import socket
import subprocess
from dataclasses import dataclass, field

from command_line import SHOWN
from errors import CONFIG, Failure
from job import prepare

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}  # at the begin of a file
# Words that Open MPI 4 has for other things in a hostfile, as they are written here.
KEYWORDS = "boards count cores cpu max-slots port slot slots sockets user-name username".split()
LONGEST_NAME = 253  # letters
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "platforms")
OWN_HOSTS = ("kubernetes", "sagemaker")  # platforms that start a job on all of their hosts


@dataclass
class Host:
    name: str
    slots: int = 0  # ranks; 0: not said
    facts: dict = field(default_factory=dict)  # what node.sh printed: key -> list of values
    answer_s: float = 0  # how long its answer took; logins may be slow


class Platform:
    """A script of launch/platforms/."""

    def __init__(self, name, hosts, hostfile):
        if name == "auto":
            name = the_platform_here(hosts, hostfile)
        self.name = name
        self.script = os.path.join(FOLDER, name + ".sh")
        if not os.path.exists(self.script):
            raise Failure(CONFIG, f"--platform {name}: there are auto, {', '.join(sorted(entry[:-3] for entry in os.listdir(FOLDER)))}")
        if name == "local" and (hostfile or others(hosts)):
            raise Failure(CONFIG, f"--platform local is this machine alone, and {hostfile or ', '.join(others(hosts))} may be another: give "
                                  "--hosts localhost:N, or take --platform ssh")
        if name in OWN_HOSTS and (hosts or hostfile):
            raise Failure(CONFIG, f"{'--hosts' if hosts else '--hostfile'} means nothing here: the hosts are those of the platform {name}; leave it "
                                  "out, or name another with --platform, such as ssh")
        if name == "ssh" and not (hosts or hostfile):
            raise Failure(CONFIG, "--platform ssh needs --hostfile FILE or --hosts a:8,b:8")
        if hostfile and not os.path.isfile(hostfile):
            raise Failure(CONFIG, f"--hostfile {hostfile}: {'is no regular file' if os.path.exists(hostfile) else 'no such file'}")
        self.named = bool(hosts or hostfile)
        self.environment = dict(os.environ, TANDEM_HOSTS=hosts, TANDEM_HOSTFILE=hostfile)

    def ask(self, *words, script=None):
        """The lines that the script prints; README.md says which it knows."""
        done = subprocess.run([script or self.script, *words], env=self.environment, capture_output=True)
        if done.returncode != 0:
            raise Failure(CONFIG, f"{self.name} {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
        encoding = next((name for mark, name in MARKS.items() if done.stdout.startswith(mark)), "utf-8")
        return done.stdout.decode(encoding, "replace").splitlines()

    def hosts(self):
        """The hosts in the platform's order, or in that of the list or file that the user gave."""
        found = self.hosts_in(self.ask("hosts"))
        if self.name != "slurm" or not self.named:
            return list(found.values())
        chosen = self.hosts_in(self.ask("hosts", script=os.path.join(FOLDER, "ssh.sh")))
        strangers = [name for name in chosen if name not in found]
        if strangers:
            raise Failure(CONFIG, f"{', '.join(strangers)[:SHOWN]}: no host of this Slurm job, which has {', '.join(found)[:SHOWN]}")
        for name, host in chosen.items():
            host.slots = host.slots or found[name].slots
        return list(chosen.values())

    def hosts_in(self, lines):
        """Hosts by name, each once: a later line for a host adds its slots, as for mpirun."""
        found = {}
        # Open MPI 4 hangs on names that have other characters. srun takes an underscore, too.
        pattern = rf"([A-Za-z0-9][A-Za-z0-9.{'_' * (self.name == 'slurm')}-]*)(?:(?::|\s+|\s+slots\s*=\s*)(0*[1-9][0-9]{{0,5}}))?"
        for line in lines:
            line = line.partition("#")[0].strip()
            if not line:
                continue
            read = re.fullmatch(pattern, re.sub(r"\s+max[_-]slots\s*=\s*[0-9]+", "", line))
            if not read or read[1] in KEYWORDS or len(read[1]) > LONGEST_NAME:
                raise Failure(CONFIG, f"host {line[:SHOWN]!r}: must be NAME, NAME:RANKS or NAME slots=RANKS, with 1 rank or more; a name has at most "
                                      f"{LONGEST_NAME} letters, digits, dots and hyphens, for Open MPI takes no underscore and no IPv6 address, "
                                      f"nor any of {', '.join(KEYWORDS)}")
            name, slots = read[1], int(read[2] or 0)
            if name in found and (not slots or not found[name].slots):
                raise Failure(CONFIG, f"host {name} stands twice; say how many ranks at both places, or remove one")
            found.setdefault(name, Host(name)).slots += slots
        if not found:
            raise Failure(CONFIG, "no hosts: --hostfile or --hosts is empty")
        return found

    def reach(self, host, *command, **how):
        """Starts a command on a host."""
        return subprocess.Popen([self.script, "reach", host.name, *command], env=self.environment, preexec_fn=prepare, **how)


def others(hosts):
    """The names in --hosts that are not those of this machine."""
    return sorted({re.split(r"[:\s]", host.strip())[0] for host in hosts.split(",")} - {"localhost", socket.gethostname(), ""})


def the_platform_here(hosts, hostfile):
    """What --platform auto means."""
    if os.environ.get("SLURM_JOB_ID"):
        return "slurm"
    if hostfile or others(hosts):
        return "ssh"
    if hosts:
        return "local"
    if os.environ.get("K_MPI_JOB_ROLE") == "launcher":  # the MPI Operator sets it
        return "kubernetes"
    sagemaker = os.path.join(os.environ.get("TANDEM_OPT_ML", "/opt/ml"), "input", "config", "resourceconfig.json")
    return "sagemaker" if os.path.exists(sagemaker) else "local"
