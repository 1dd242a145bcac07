#!/usr/bin/env python3
"""launch/eks: the manifest, and its pods on pretend hosts as the MPI Operator starts them: a launcher and two workers. And
launch/docker's entry point.

    test_eks.py PATH_TO_TANDEM [unittest arguments]

Each pod has processes, an address and a name of its own, the files of the image, and the user of the manifest.
"""
import contextlib
import copy
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

import mpijob
import pretend_hosts
from pretend_hosts import Hosts
from supervised import Launched, wait_until
import tandem_program
from tandem_program import STOPPED, losses

LAUNCH = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch"))
RENDER = os.path.join(LAUNCH, "eks", "render.py")
sys.path += [os.path.join(LAUNCH, "run"), os.path.join(LAUNCH, "eks")]
import render
from hosts import the_platform_here

LOST, CONFIG, USER = 75, 2, "1000"
GOOD = {"--instance": "p4d.24xlarge", "--nodes": "2", "--image": "registry/tandem:1"}
TRAIN, LONG = ["train", "--run.dir", "/fsx/runs"], 10**6  # steps


def words(train, options):
    given = {**GOOD, **{f"--{name}": value for name, value in options.items()}}
    return [*(word for name, value in given.items() if value is not None for word in (name, value)), "--", *train]


def manifest(*train, **options):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        render.main(words(train or TRAIN, options))
    return json.loads(said.getvalue())


def place(job, role):
    """The pod, and its container, of a role."""
    pod = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    return pod, pod["containers"][0]


class Manifest(unittest.TestCase):
    def test_it_is_an_mpijob_of_whole_machines(self):
        for name, machine in render.machine_types().items():
            efa = machine["efa"]
            for prefix in ["", "ml."]:
                job = manifest(instance=prefix + name, nodes="3", net="efa" if efa else "sockets")
                self.assertEqual(mpijob.problems(job), [])
                pod, worker = place(job, "Worker")
                limits = worker["resources"]["limits"]
                self.assertEqual([limits["nvidia.com/gpu"], limits.get("vpc.amazonaws.com/efa", 0)], [machine["gpus"], efa])
                self.assertEqual(job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"], 3)
                memory = int(limits["memory"].removesuffix("Gi")) + 10 * bool(efa)  # and huge pages
                self.assertTrue(0.7 * machine["host_memory_gib"] < memory < 0.9 * machine["host_memory_gib"])
                vcpus = 4 * int(re.search(r"\.(\d*)xlarge", name)[1] or 1)  # of which EKS keeps 0.08, and 0.0025 of each above 4
                self.assertLess(worker["resources"]["requests"]["cpu"], vcpus - 0.08 - 0.0025 * (vcpus - 4))
                terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
                self.assertTrue(all({"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name, "ml." + name]}
                                    in term["matchExpressions"] for term in terms))

    def test_pods(self):
        job = manifest("train", "--run.dir", "/data/runs", grace="50", wait="7", volume="data:/data")
        self.assertEqual(mpijob.problems(job), [])
        for role in ["Launcher", "Worker"]:
            pod, container = place(job, role)
            self.assertGreater(pod["terminationGracePeriodSeconds"], 60)
            self.assertIn({"name": "volume-0", "mountPath": "/data"}, container["volumeMounts"])
            states = [term["matchExpressions"][0] for term in pod["affinity"]["nodeAffinity"]
                      ["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]]
            self.assertEqual([(state["key"], state["operator"], state.get("values")) for state in states],
                             [("sagemaker.amazonaws.com/node-health-status", "In", ["Schedulable"]),
                              ("sagemaker.amazonaws.com/node-health-status", "DoesNotExist", None)])
        pod, worker = place(job, "Worker")
        self.assertEqual(pod["volumes"][0], {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}})
        self.assertEqual(worker["volumeMounts"][0], {"name": "shared-memory", "mountPath": "/dev/shm"})
        self.assertEqual(worker["env"], [{"name": "TANDEM_GRACE", "value": "50"}])
        self.assertEqual(place(job, "Launcher")[1]["command"][1:],
                         "--platform kubernetes --net efa --wait 7 --grace 50 -- train --run.dir /data/runs".split())
        sockets = place(manifest(net="sockets"), "Worker")[1]["resources"]["limits"]
        self.assertEqual(sorted(sockets), ["memory", "nvidia.com/gpu"])

    def test_the_check_refuses_mistakes(self):
        def break_it(path, change):
            job = copy.deepcopy(manifest())
            *way, last = path
            part = job["spec"]
            for step in way:
                part = part[step]
            change(part, last)
            return job

        def put(value):
            return lambda part, name: part.__setitem__(name, value)

        def drop(part, name):
            del part[name]

        def rename(part, name):
            part[name + "s"] = part.pop(name)

        launcher, worker = (["mpiReplicaSpecs", role, "template", "spec"] for role in ("Launcher", "Worker"))
        container = [*worker, "containers", 0]
        for path, change, said in [
                (["slotsPerWorker"], put("8"), r"\.spec\.slotsPerWorker: '8' is not a count"),
                (["slotsPerWorker"], put(7), "not a GPU for each slot"),
                (["launcherCreationPolicy"], put("WhenReady"), "launcherCreationPolicy: 'WhenReady' is not one of"),
                (["launcherCreationPolicy"], put("AtStartup"), "does not wait for the workers"),
                ([*launcher, "containers", 0, "workingDir"], rename, "workingDirs: there is no such field"),
                (["mpiReplicaSpecs", "Worker"], drop, "Worker: is missing"),
                (["mpiReplicaSpecs", "Launcher", "restartPolicy"], put("ExitCode"), "'ExitCode' is not one of"),
                ([*launcher, "restartPolicy"], put("OnFailure"), "restartPolicy: there is no such field"),
                ([*container, "resources", "requests", "hugepages-2Mi"], put("1Gi"), "hugepages-2Mi: limit and request differ"),
                ([*container, "resources", "requests", "vpc.amazonaws.com/efa"], drop, "efa: limit and request differ"),
                ([*container, "resources", "limits", "memory"], put("921 GB"), "'921 GB' does not match"),
                ([*container, "volumeMounts", 0, "name"], put("shm"), "shm is no volume"),
                ([*container, "startupProbe", "tcpSocket", "port"], put(22), "another port"),
                ([*worker, "volumes", 0, "emptyDir", "medium"], put("memory"), "'memory' is not one of"),
                ([*worker, "terminationGracePeriodSeconds"], put(-1), "is not a count"),
                ([*worker, "securityContext", "runAsUser"], put(0), "runAsNonRoot and runAsUser differ")]:
            found = mpijob.problems(break_it(path, change))
            self.assertEqual(len(found), 1, found)
            self.assertRegex(found[0], said)

    def test_bad_arguments(self):
        def refused(option, value, like="must be like"):
            return f"argument --{option}: {re.escape(repr(value[:60]))} {like}", TRAIN, {option: value}

        number = "is no whole number from"
        for said, train, options in [
                ("--instance p4d: launch/instances.json has p4d.24xlarge, p4de.24xlarge", TRAIN, {"instance": "p4d"}),
                ("the following arguments are required: --image", TRAIN, {"image": None}),
                *(refused("image", value) for value in ["", 'a";b', "Repo/IMG", "a b", "a\n", "r/" + "a" * 255, "a:", "a@sha256:1", "a//b", "a..b", "a:100000/b"]),
                *(refused("nodes", value, number) for value in ["two", "0", "1" + "0" * 21, "5001", "\u00b2"]),
                *(refused(option, "9" * 20, number) for option in ["retries", "wait", "grace"]),
                *(refused("name", value) for value in ["My_Job", "a" * 64, "1a"]),
                *(refused("volume", value) for value in ["fsx", "a" * 254 + ":/fsx", "f_x:/fsx", "fsx:/", "fsx:/a//b", "fsx:/a:b"]),
                *(refused("label", value) for value in ["team", "=a", "a" * 64 + "=b", "team=" + "b" * 64, "team=a b", "A.b/c=d", "a" * 254 + "/b=c"]),
                *((f"--volume {name}: must be a folder that a pod does not have", TRAIN, {"volume": "fsx:" + name})
                  for name in ["/dev/shm", "/opt/tandem", "/opt", "/home/tandem/.ssh", "/fsx/../etc", "/usr", "/a/./b"]),
                ("--name j{55}: j{55}-worker-1 would be the name of a pod", TRAIN, {"name": "j" * 55}),
                ("argument --net: invalid choice: 'ib'", TRAIN, {"net": "ib"}),
                ("nothing to start: end with `-- train", ["eval"], {}),
                ("train needs --run.dir below /fsx: other folders end with their pods", ["train"], {}),
                ("train needs --run.dir below /fsx", ["train", "--run.dir=/fsx/../runs"], {}),
                ("train needs --run.dir below /data", TRAIN, {"volume": "fsx:/data"}),
                ("unrecognized arguments: --node", TRAIN, {"node": "2"})]:
            output, errors = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as ended, \
                    mock.patch.object(sys, "argv", ["render.py", *words(train, options)]):
                render.run_script("render", render.main)
            self.assertEqual((ended.exception.code, output.getvalue()), (CONFIG, ""), said)
            self.assertRegex(errors.getvalue(), f"^render: {said}")
            self.assertEqual(errors.getvalue().count("\n"), 1)

    def test_the_largest_of_everything_is_taken(self):
        label = "k" * 246 + ".x-k8s/" + "q" * 63
        job = manifest(nodes="5000", name="j" * 51, label=f"{label}={'v' * 63}", volume="a" * 253 + ":/fsx", image="a.b-c.com:5000/a/b_c:" + "1" * 128)
        self.assertEqual(mpijob.problems(job), [])
        templates = [replica["template"] for replica in job["spec"]["mpiReplicaSpecs"].values()]
        self.assertEqual([each["metadata"]["labels"] for each in [job, *templates]], [{label: "v" * 63}] * 3)
        for options in [{"image": "tandem"}, {"image": "localhost:5000/a"}, {"image": "a.b/c/d@sha256:" + "0" * 64}, {"volume": "fsx:/tmp/a"}]:
            self.assertEqual(mpijob.problems(manifest("train", "--run.dir=/tmp/a/b" if "volume" in options else "--run.dir=/fsx", **options)), [])

    def test_arguments_reach_the_program_unchanged(self):
        """Kubernetes replaces $(NAME) by a variable, and $$ by $."""
        given = ["$(HOME)", "$$(HOME)", "$", "$$", "cost$"]
        command = place(manifest(*TRAIN, "--run.name", *given), "Launcher")[1]["command"]
        self.assertEqual([re.sub(r"\$(\$|\(\w+\))", lambda m: "$" if m[1] == "$" else "replaced", word) for word in command[-5:]], given)

    def test_the_command(self):
        done = subprocess.run([RENDER, *words(TRAIN, {})], capture_output=True, text=True)
        self.assertEqual((done.returncode, json.loads(done.stdout), done.stderr), (0, manifest(), ""))


class PlatformOfAJob(unittest.TestCase):
    def test_it_is_picked_in_the_operators_environment(self):
        for role, hosts, hostfile, name in [
                ("launcher", "", "", "kubernetes"), ("worker", "", "", "local"), ("", "", "", "local"),
                ("launcher", "", "mine", "ssh"), ("launcher", "a:1,b:1", "", "ssh"), ("launcher", "localhost:2", "", "local")]:
            with mock.patch.dict(os.environ, {"K_MPI_JOB_ROLE": role}):
                self.assertEqual(the_platform_here(hosts, hostfile), name)

    def test_there_is_no_hostfile(self):
        done = subprocess.run([os.path.join(LAUNCH, "platforms", "kubernetes.sh"), "hosts"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (CONFIG, ""))
        self.assertEqual(done.stderr, "/etc/mpi/hostfile is not there: this is not the launcher of an MPIJob\n")


# A pod's files: those of the image, and what the operator mounts. $1 launch/, $2 the folder of the program, $3 the keys, $4
# another /etc/passwd. Root owns the keys.
POD_FILES = """set -e
mount -t tmpfs tmpfs /opt
mkdir -p /opt/tandem/launch /opt/tandem/build
mount --bind "$1" /opt/tandem/launch
mount --bind "$2" /opt/tandem/build
mount -t tmpfs -o mode=755 tmpfs /home
mkdir -p /home/tandem/.ssh
cp "$3"/* /home/tandem/.ssh
chmod 644 /home/tandem/.ssh/*
mount --bind "$4" /etc/passwd"""
PATH = "/opt/of/image:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Pods(Launched):
    @classmethod
    def setUpClass(cls):
        pretend_hosts.require("sshd", "ssh", "ssh-keygen", "mpirun", "setpriv")
        super().setUpClass()
        programs = os.path.dirname(os.path.abspath(tandem_program.TANDEM))
        cls.hosts = Hosts(3, shared=[programs, cls.folder])
        cls.addClassCleanup(cls.hosts.close)
        keys, passwd = os.path.join(cls.hosts.folder, "keys"), os.path.join(cls.hosts.folder, "passwd")
        os.mkdir(keys)
        private = os.path.join(keys, "id_rsa")  # the operator's name for it
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", private], check=True)
        shutil.copy(private + ".pub", os.path.join(keys, "authorized_keys"))
        with open("/etc/passwd") as file:
            others = [line for line in file if line.split(":")[2] != USER]
        with open(passwd, "w") as file:
            file.writelines([*others, f"tandem:x:{USER}:{USER}::/home/tandem:/bin/bash\n"])
        for host in cls.hosts.names:
            cls.hosts.run(host, ["sh", "-c", POD_FILES, "pod", LAUNCH, programs, keys, passwd])
        for folder in [cls.folder, cls.hosts.folder]:
            os.chmod(folder, 0o755)
        os.mkdir(cls.path("runs"))
        os.chown(cls.path("runs"), int(USER), int(USER))
        cls.name("tandem", 0, "host1")
        cls.name("tandem", 1, "host2")

    @classmethod
    def name(cls, job, index, host):
        """Makes a worker's name known, as the job's Service does."""
        with open(os.path.join(cls.hosts.folder, "hosts"), "a") as file:
            file.write(f"{cls.hosts.addresses[host]} {job}-worker-{index}.{job}.default.svc\n")

    def pod(self, host, hostname, command, **environment):
        """Starts a pod: the process is the parent of its first one."""
        self.hosts.run(host, ["hostname", hostname])
        given = [f"{name}={value}" for name, value in {"PATH": PATH, "HOME": "/home/tandem", **environment}.items()]
        user = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"]
        process = self.hosts.start(host, ["unshare", "--pid", "--fork", "--mount-proc", *user, "env", "-C", "/opt/tandem", "-i", *given,
                                          *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (self.signal(process, signal.SIGKILL), process.communicate()))
        return process

    def worker(self, index, job="tandem", **environment):
        container = place(manifest(grace="40"), "Worker")[1]
        given = {each["name"]: each["value"] for each in container["env"]}
        host = f"host{index + 1}"
        process = self.pod(host, f"{job}-worker-{index}", container["command"], K_MPI_JOB_ROLE="worker", **{**given, **environment})
        wait_until(lambda: "[listener]" in str(self.hosts.processes(host).values()))
        return process

    def launcher(self, name, *settings, job="tandem", wait="60"):
        hostfile = os.path.join(self.hosts.folder, f"{job}-hostfile")
        with open(hostfile, "w") as file:
            file.writelines(f"{job}-worker-{i}.{job}.default.svc slots=2\n" for i in range(2))
        train = ["train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", name, *tandem_program.TINY, *settings]
        rendered = manifest(*map(str, train), wait=wait, grace="40", volume=f"fsx:{self.path('runs')}")
        # The environment that mpi-operator 0.5 gives a launcher.
        return self.pod("host0", f"{job}-launcher", place(rendered, "Launcher")[1]["command"], TANDEM_MPI_HOSTFILE=hostfile,
                        K_MPI_JOB_ROLE="launcher", OMPI_MCA_orte_keep_fqdn_hostnames="true", OMPI_MCA_orte_default_hostfile=hostfile,
                        OMPI_MCA_plm_rsh_args="-o ConnectionAttempts=10", OMPI_MCA_orte_set_default_slots="2",
                        NVIDIA_VISIBLE_DEVICES="", NVIDIA_DRIVER_CAPABILITIES="")

    @staticmethod
    def signal(pod, number):
        """To the pod's first process, as Kubernetes does it. With SIGKILL all of its processes end."""
        with contextlib.suppress(OSError), open(f"/proc/{pod.pid}/task/{pod.pid}/children") as file:
            for process in file.read().split():
                os.kill(int(process), number)

    def evict(self, pod):
        self.signal(pod, signal.SIGTERM)

    def ended(self, pod, seconds=30):
        return pod.communicate(timeout=seconds)[1], pod.returncode

    def reach(self, index, *command):
        """Runs a command in a worker's pod, as the launcher does."""
        script = "/opt/tandem/launch/platforms/kubernetes.sh"
        return self.pod("host0", "tandem-launcher", [script, "reach", f"tandem-worker-{index}.tandem.default.svc", *command],
                        TANDEM_MPI_HOSTFILE="/etc/passwd")


class Jobs(Pods):
    def test_names_and_workers_that_come_late(self):
        self.name("late", 0, "host1")
        self.worker(0, "late")
        launcher = self.launcher("late", "--train.steps", 3, job="late")
        for come in [lambda: self.name("late", 1, "host2"), lambda: self.worker(1, "late")]:
            time.sleep(2.5)
            self.assertIsNone(launcher.poll())
            come()
        said = self.finish(launcher, 0)
        self.assertRegex(said[0], r"^run: no answer yet from late-worker-\S+.*: waits \d+ s at most \(--wait\)$")
        self.assertEqual(said[1], "run: 4 ranks on late-worker-0.late.default.svc, late-worker-1.late.default.svc (kubernetes)")
        self.assertEqual(len(losses(self.run_folder("late"))), 3)
        self.assertEqual(os.stat(os.path.join(self.run_folder("late"), "metrics.jsonl")).st_uid, int(USER))

    def test_a_name_that_never_comes(self):
        began = time.monotonic()
        said = self.finish(self.launcher("never", "--train.steps", 3, job="never", wait="2"), LOST)
        self.assertLess(time.monotonic() - began, 20)
        self.assertRegex(said[1], r"run: never-worker-0\S*: silent for 2 s \(ssh: Could not resolve hostname never-worker-0")

    def test_an_evicted_worker_saves_the_job(self):
        workers = [self.worker(0), self.worker(1)]
        launcher = self.launcher("evicted", "--train.steps", LONG)
        path = os.path.join(self.run_folder("evicted"), "metrics.jsonl")
        wait_until(lambda: os.path.exists(path) and len(losses(self.run_folder("evicted"))) > 2)
        self.evict(workers[1])
        self.finish(launcher, STOPPED)
        errors, code = self.ended(workers[1])
        self.assertEqual((code, re.findall("^worker: .*", errors, re.MULTILINE)),
                         (0, ["worker: asked to end: asks the ranks to save, and waits for their end"]))
        self.assertIsNone(workers[0].poll())
        # Another pod takes its place and its name, with another host key; the launcher starts again.
        self.worker(1)
        last = max(losses(self.run_folder("evicted")))
        self.finish(self.launcher("evicted", "--train.steps", last + 1), 0)
        self.assertEqual(max(losses(self.run_folder("evicted"))), last + 1)

    def test_a_worker_without_a_job_ends_at_once(self):
        worker = self.worker(0)
        output = self.reach(0, "printenv", "PATH").communicate(timeout=20)
        self.assertEqual(output, (PATH + "\n", ""))
        began = time.monotonic()
        self.evict(worker)
        self.assertEqual(self.ended(worker), ("", 0))
        self.assertLess(time.monotonic() - began, 3)

    def test_ranks_that_do_not_end(self):
        worker = self.worker(0, TANDEM_GRACE="3")
        self.reach(0, "sh", "-c", "cp /bin/sleep /tmp/orted; exec env OMPI_COMM_WORLD_RANK=0 /tmp/orted 60")
        wait_until(lambda: "/tmp/orted 60" in self.hosts.processes("host1").values())
        began = time.monotonic()
        self.evict(worker)
        errors, code = self.ended(worker)
        self.assertTrue(2 < time.monotonic() - began < 8)
        self.assertEqual((code, errors.splitlines()[-1]), (1, "worker: the ranks have not ended 3 s after the request"))

    def test_a_worker_whose_sshd_dies(self):
        worker = self.worker(0)
        commands = self.hosts.processes("host1").items()
        os.kill(next(process for process, command in commands if "[listener]" in command), signal.SIGKILL)
        errors, code = self.ended(worker)
        self.assertEqual((code, errors.splitlines()[-1]), (137, "worker: sshd ended with 137"))


class Entry(Pods):
    ENTRY = "/opt/tandem/launch/docker/entry.sh"

    def owned(self, name, owner):
        os.mkdir(self.path(name))
        os.chown(self.path(name), owner, owner)
        return self.path(name)

    def test_what_is_written_belongs_to_the_owner_of_the_folder(self):
        for owner in [int(USER), 4321, 0]:  # 4321 has no name
            folder = self.owned(f"owned-{owner}", owner)
            self.hosts.run("host0", [self.ENTRY, "train", "--data.path", self.text, "--run.dir", "runs", "--run.name", "one",
                                     *tandem_program.TINY, "--train.steps", "2"], cwd=folder)
            self.assertEqual(os.stat(os.path.join(folder, "runs", "one", "metrics.jsonl")).st_uid, owner)
            said = self.hosts.run("host0", [self.ENTRY, "inspect", "runs/one", "--tensors"], cwd=folder).stdout
            self.assertIn("param/", said)

    def test_a_worker(self):
        worker = self.pod("host1", "tandem-worker-0", [self.ENTRY, "worker"])
        wait_until(lambda: "[listener]" in str(self.hosts.processes("host1").values()))
        self.evict(worker)
        self.assertEqual(self.ended(worker), ("", 0))

    def test_sagemaker(self):
        self.hosts.run("host0", ["sh", "-c", "mkdir -p /opt/ml/input/config; touch /opt/ml/input/config/resourceconfig.json"])
        self.addCleanup(self.hosts.run, "host0", ["rm", "-r", "/opt/ml"])
        self.hosts.replace("host0", "/opt/tandem/launch/sagemaker/train", '#!/bin/sh\necho "$(id -u) $#"\nexit 7\n')
        done = self.hosts.run("host0", [self.ENTRY, "train"], cwd=self.owned("sagemaker", int(USER)), check=False)
        self.assertEqual((done.stdout, done.returncode), ("0 0\n", 7))


if __name__ == "__main__":
    tandem_program.main()
