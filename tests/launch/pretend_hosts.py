#!/usr/bin/env python3
"""Pretend hosts: several hosts on one machine, for tests of launch/.

Each host has network, UTS and mount namespaces of its own: an address, a host name, and a /tmp, /run and /dev/shm that no
other host sees; what the user's shell does at a login is left out. The hosts are `host0`, `host1` and so on, and find each
other by name. Their links meet in a bridge, which has a namespace of its own, so no setting of this machine's network
matters. All other folders are those of this machine, and so is this clone, wherever it lies.

    with Hosts(2) as hosts:
        hosts.run("host0", ["ping", "-c", "1", "host1"])

Closing kills all processes in the hosts, which are found by their network namespace. A guard process does this, also when
the test itself is killed.
"""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

# tests/run.sh lets Open MPI use shared memory alone, which reaches no other host.
os.environ.pop("OMPI_MCA_btl", None)
ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TOOLS = ["ip", "mount", "nsenter", "tc", "unshare"]
PRIVATE = ["/tmp", "/run", "/dev/shm"]

# What the tests do with namespaces, in namespaces that end with it.
TRIAL = """ip link add bridge type bridge && ip link add left type veth peer name right && mount -t tmpfs tmpfs /tmp &&
           tc qdisc add dev left root tbf rate 100mbit burst 256kb latency 400ms"""

# The first process of a host: $1 its name, $2 the size of /dev/shm, $3 a file for /etc/hosts, then folders that are the same
# on all hosts. It ends when its input is closed.
HOLDER = """set -e
hostname "$1"; mount --bind "$3" /etc/hosts; size=$2; shift 3
mount -t tmpfs tmpfs /run
mkdir -m 1777 /run/new_tmp
mount -t tmpfs -o mode=1777 tmpfs /run/new_tmp
for folder; do
  mkdir -p "/run/new_tmp${folder#/tmp}"; mount --bind "$folder" "/run/new_tmp${folder#/tmp}"
done
mount --rbind /run/new_tmp /tmp
umount --recursive --lazy /run/new_tmp
rmdir /run/new_tmp
mount -t tmpfs -o "mode=1777,size=$size" tmpfs /dev/shm
if [ -e ~/.bashrc ]; then mount --bind /dev/null ~/.bashrc; fi
echo ready; exec cat"""

# Connects a host with the bridge: $1 a process in its namespace, $2 the name of the bridge's end, $3 the address.
CONNECT = """set -e
ip link add "$2" type veth peer name eth0 netns "$1"
ip link set "$2" master bridge up
nsenter -t "$1" -n sh -c "ip link set lo up; ip address add $3/24 dev eth0; ip link set eth0 up" """

# Puts a file at a path: $1 the path, $2 its mode; the content is the input. What is there stays unchanged on other hosts. A
# path that does not exist gets an overlay over the nearest folder that does.
REPLACE = """set -e
place=$(mktemp -d /run/replaced.XXXXXX)
if [ ! -e "$1" ]; then
  folder=$1
  until [ -d "$folder" ]; do folder=$(dirname "$folder"); done
  mkdir "$place/upper" "$place/work"
  mount -t overlay -o "lowerdir=$folder,upperdir=$place/upper,workdir=$place/work" overlay "$folder"
  mkdir -p "$(dirname "$1")"
  : >"$1"
fi
cat >"$place/file"; chmod "$2" "$place/file"; mount --bind "$place/file" "$1" """


def why_not(*programs):
    """Why there can be no pretend hosts here, or not these programs in them; empty if there can."""
    if os.geteuid() != 0:
        return "pretend hosts need root"
    missing = [name for name in [*TOOLS, *programs] if not shutil.which(name)]
    if missing:
        return f"not installed: {' '.join(missing)} (launch/setup.sh --tests)"
    trial = subprocess.run(["unshare", "-n", "-u", "-m", "sh", "-c", TRIAL], capture_output=True, text=True)
    return f"this machine allows no pretend hosts: {trial.stderr.strip()}" if trial.returncode else ""


def require(*programs):
    """Skips a test where there can be no pretend hosts. TANDEM_REQUIRE_CLUSTER=1 makes it fail instead."""
    reason = why_not(*programs)
    if reason and os.environ.get("TANDEM_REQUIRE_CLUSTER") == "1":
        raise AssertionError(f"TANDEM_REQUIRE_CLUSTER=1, but {reason}")
    if reason:
        raise unittest.SkipTest(reason)


def namespace(process):
    """What tells network namespaces apart; None if the process has ended."""
    try:
        place = os.stat(f"/proc/{process}/ns/net")
        return place.st_dev, place.st_ino
    except OSError:
        return None


def members(namespaces):
    """The processes in these namespaces."""
    return [int(process) for process in filter(str.isdigit, os.listdir("/proc")) if namespace(process) in namespaces]


def kill_members(namespaces):
    """Until none is left: one that was killed may have started another just before."""
    while True:
        found = members(namespaces)
        if not found:
            return
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def guard(folder, holders):
    """Waits until its input is closed, then ends everything in the hosts and removes their folder."""
    kept = [os.open(f"/proc/{holder}/ns/net", os.O_RDONLY) for holder in holders]  # so that no other namespace gets their numbers
    namespaces = {(os.fstat(file).st_dev, os.fstat(file).st_ino) for file in kept}
    assert namespace(os.getpid()) not in namespaces  # the machine's own
    print("ready", flush=True)
    sys.stdin.read()
    kill_members(namespaces)
    shutil.rmtree(folder)


class Hosts:
    """`count` hosts. `folder` is a new folder that is the same on all of them. `shared`: further folders that they share; each
    must exist. `shm`: the size of /dev/shm."""

    def __init__(self, count, shared=(), shm="1g"):
        self.names = [f"host{i}" for i in range(count)]
        self.addresses = {name: f"10.77.0.{i + 1}" for i, name in enumerate(self.names)}
        self.folder = tempfile.mkdtemp(prefix="pretend-hosts-")
        known = os.path.join(self.folder, "hosts")
        with open(known, "w") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in self.addresses.items()))
        covered = [folder for folder in [ROOT, self.folder, *shared] if folder.startswith("/tmp/")]
        self.bridge = self._hold("-n", script="ip link add bridge type bridge; ip link set bridge up; echo ready; exec cat")
        self.holders = {name: self._hold("-n", "-u", "-m", script=HOLDER, arguments=[name, shm, known, *covered])
                        for name in self.names}
        holders = [self.bridge, *self.holders.values()]
        if any([holder.stdout.readline() != "ready\n" for holder in holders]):  # of all: each is in its namespaces then, or ended
            for holder in holders:
                holder.communicate()
            shutil.rmtree(self.folder)
            raise RuntimeError("the pretend hosts cannot be made; the lines above say why")
        guard = [sys.executable, os.path.abspath(__file__), self.folder, *(str(holder.pid) for holder in holders)]
        self.guard = subprocess.Popen(guard, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if self.guard.stdout.readline() != "ready\n":
            raise RuntimeError("the guard of the pretend hosts has ended")
        for name, holder in self.holders.items():
            subprocess.run(self._at_bridge("sh", "-c", CONNECT, "connect", holder.pid, name, self.addresses[name]), check=True)

    @staticmethod
    def _hold(*namespaces, script, arguments=()):
        return subprocess.Popen(["unshare", *namespaces, "sh", "-c", script, "holder", *arguments], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)

    def _at_bridge(self, *command):
        return ["nsenter", "-t", str(self.bridge.pid), "-n", *map(str, command)]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Ends everything in the hosts, and waits for it. May be called twice."""
        for process in [self.guard, self.bridge, *self.holders.values()]:
            process.communicate()

    def start(self, name, command, cwd=None, **how):
        """Starts a command in a host. The process is the command itself, so signals reach it."""
        settings = ["-u", "TMPDIR", *(["-C", cwd] if cwd else [])]  # temporary files are in the host's own /tmp
        holder = str(self.holders[name].pid)
        return subprocess.Popen(["nsenter", "-t", holder, "-n", "-u", "-m", "env", *settings, *map(str, command)], **how)

    def run(self, name, command, input=None, timeout=60, check=True, **how):
        """Runs a command in a host to its end, and returns its output and exit code. By default it must end with 0."""
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how}
        process = self.start(name, command, stdin=subprocess.PIPE, **how)
        try:
            output, errors = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{name}: {command} ran longer than {timeout} s: {process.communicate()}")
        if check and process.returncode != 0:
            raise AssertionError(f"{name}: {command} ended with {process.returncode}\n{output}\n{errors}")
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def processes(self, name):
        """The command lines of the processes in a host, by their numbers."""
        found = {}
        for process in members({namespace(self.holders[name].pid)}):
            with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", errors="replace") as file:
                found[process] = file.read().replace("\0", " ").strip()
        return {process: command for process, command in found.items() if command and process != self.holders[name].pid}

    def cut(self, name):
        """Cuts a host's link. Connections stay open, and nothing arrives."""
        subprocess.run(self._at_bridge("ip", "link", "set", name, "down"), check=True)

    def mend(self, name):
        subprocess.run(self._at_bridge("ip", "link", "set", name, "up"), check=True)

    def shape(self, name, rate):
        """Limits a host's link in both directions, as to "100mbit"."""
        limit = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "400ms"]
        subprocess.run(self._at_bridge("tc", "qdisc", "replace", "dev", name, *limit), check=True)
        self.run(name, ["tc", "qdisc", "replace", "dev", "eth0", *limit])

    def replace(self, name, path, content, mode="755"):
        """Puts a file with this text at a path of one host, for instance another /usr/bin/nvidia-smi."""
        self.run(name, ["sh", "-c", REPLACE, "replace", path, mode], input=content)

    def start_sshd(self):
        """Starts an sshd in each host, and lets `ssh HOST` as root go from each to all without a question. As with any sshd,
        a command that comes through it finds hardly any environment."""
        keys = os.path.join(self.folder, "ssh")
        os.mkdir(keys)
        for key in ["host", "user"]:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(keys, key)], check=True)
        server, client = os.path.join(keys, "sshd_config"), os.path.join(keys, "ssh_config")
        with open(server, "w") as file:
            file.write(f"HostKey {keys}/host\nAuthorizedKeysFile {keys}/user.pub\nStrictModes no\nMaxStartups 100\n"
                       "PermitRootLogin prohibit-password\nPidFile none\n")
        with open(client, "w") as file:
            file.write(f"IdentityFile {keys}/user\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n")
        for name in self.names:
            self.run(name, ["sh", "-c", f"mkdir /run/sshd; mount --bind {client} /etc/ssh/ssh_config"])
            log = os.path.join(keys, f"{name}.log")
            self.run(name, ["/usr/sbin/sshd", "-f", server, "-E", log])  # it listens before it goes to the background


if __name__ == "__main__":
    if len(sys.argv) > 1:
        guard(sys.argv[1], sys.argv[2:])
    sys.exit(why_not() or 0)  # nothing, and 0, if there can be pretend hosts
