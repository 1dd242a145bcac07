"""A Slurm cluster on pretend hosts: slurmctld on the last of them, a slurmd with pretended GPUs on each of the others."""
import glob
import os
import re
import subprocess

from pretend_hosts import Hosts
from supervised import wait_until

PROGRAMS = ["gcc", "munged", "sbatch", "slurmctld", "slurmd"]
PLUGINS = "/usr/lib/*/slurm-wlm/*"
AUTO_RESUME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "auto_resume.c")
GPUS = 2  # on each host

CONFIG = """ClusterName=pretended
SlurmctldHost={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
PluginDir={folder}/plugins
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=8
KillWait=5
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
GresTypes=gpu
NodeName={nodes} CPUs=8 RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes={nodes} Default=YES MaxTime=60 State=UP
"""


class Cluster:
    """`count` hosts with a slurmd. `folder` is the same on all of them and on this machine, as are the folders in `shared`.
    `pmix`: whether Slurm was built with PMIx."""

    def __init__(self, count, shared=(), pmix=True):
        self.pmix = pmix
        self.hosts = Hosts(count + 1, shared)
        try:
            self.folder = self.hosts.folder
            *self.nodes, self.controller = self.hosts.names
            self._configure()
            self._start()
        except BaseException:
            self.hosts.close()
            raise

    def close(self):
        self.hosts.close()

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def _configure(self):
        os.mkdir(self.path("state"))
        os.mkdir(self.path("plugins"))
        for plugin in glob.glob(PLUGINS):
            if self.pmix or "pmix" not in plugin:
                os.symlink(plugin, os.path.join(self.path("plugins"), os.path.basename(plugin)))
        self.environment = dict(os.environ, SLURM_CONF=self.write("slurm.conf", CONFIG.format(
            controller=self.controller, folder=self.folder, nodes=",".join(self.nodes), gpus=GPUS)))
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", self.path("auto_resume.so"), AUTO_RESUME], check=True)
        self.write("plugstack.conf", f"required {self.path('auto_resume.so')}\n")
        devices = []
        for i in range(GPUS):
            devices.append(self.path(f"gpu{i}"))
            os.mknod(devices[-1], 0o20666, os.makedev(1, 3))
        self.write("gres.conf", "".join(f"Name=gpu File={device}\n" for device in devices))

    def _start(self):
        key = self.path("munge.key")
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o400), "wb") as file:
            file.write(os.urandom(128))
        place = ["--socket", "munge.socket", "--key-file", "munge.key", "--pid-file", "munge.pid", "--log-file", "munge.log",
                 "--seed-file", "munge.seed"]
        place = [word if word.startswith("--") else self.path(word) for word in place]
        self.run(["munged", "--force", *place])
        self.run(["slurmctld"])
        for name in self.nodes:
            self.run(["slurmd", "-N", name], on=name)
        self.wait_until_idle()

    def wait_until_idle(self):
        wait_until(lambda: self.run(["sinfo", "-h", "-o", "%T %D"]).strip() == f"idle {len(self.nodes)}", every=0.1)

    def run(self, command, on=None, check=True, **how):
        """What a command prints."""
        how.setdefault("env", self.environment)
        return self.hosts.run(on or self.controller, command, check=check, **how).stdout

    def submit(self, *words, cwd, env):
        """The number of the new job."""
        environment = {**env, "SLURM_CONF": self.environment["SLURM_CONF"]}
        return self.run(["sbatch", "--parsable", *words], cwd=cwd, env=environment).strip()

    def job(self, number):
        """What scontrol says about a job."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run(["scontrol", "show", "job", "-o", number])))
