#!/usr/bin/env python3
"""launch/run.sh without other hosts: what it reads, what it finds wrong, and how a job on this machine starts, stops and ends.

    test_run.py PATH_TO_TANDEM [unittest arguments]
"""
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
LAUNCH = os.path.join(FOLDER, "..", "..", "launch")
sys.path[:0] = [os.path.join(LAUNCH, "run"), os.path.join(FOLDER, "..", "program")]
import checks
import main
import nccl_log
import tandem_program
from errors import CONFIG, DATA, Failure
from hosts import Host, Platform
from recorded import NCCL_LOG
from supervised import Launched, is_alive, wait_until
from tandem_program import STOPPED, losses

RUN = os.path.join(LAUNCH, "run.sh")
# A p4d.24xlarge with which nothing is wrong.
GOOD = {"hostname": ["a"], "machine": ["p4d.24xlarge"], "cores": ["96"], "program": ["1"], "cuda": ["13"], "open_mpi": ["4.1.7"],
        "gpu": ["40960 580.95.05"] * 8, "fabric_manager": ["active"], "efa": ["4"], "nccl_plugin": ["/opt/libnccl-net.so"],
        "libfabric": ["2.1.0"], "memlock": ["unlimited"], "open_files": ["65536"], "shared_memory": ["8388608"], "dataset": ["9 1"],
        "free_disk": ["99999999"]}
INSTANCES = {"p4d.24xlarge": {"gpus": 8, "efa": 4, "nvswitch": True, "bus_gb_s": {"1": 200, "2": 60, "4": 28}}}
# A fact that is wrong, and what is said about it: of a host that is called b; None: the fact is missing.
FAULTS = [
    ({"program": None}, "t/tandem is not there or cannot be run"),
    ({"missing_library": ["libmpi.so.40"]}, "does not find libmpi.so.40"),
    ({"cannot_start": ["Illegal instruction"]}, "does not start: Illegal instruction"),
    ({"program": ["2"]}, "is 2, on a 1: copy one build"),
    ({"open_mpi": None}, "mpirun is not Open MPI"),
    ({"open_mpi": ["5.0.1"]}, "Open MPI is 5.0.1, on a 4.1.7"),
    ({"hostname": ["a"]}, "its hostname is a, like that of a"),
    ({"gpu": ["40960 580.95.05"] * 7}, "has 7 GPUs, a p4d.24xlarge has 8"),
    ({"machine": ["unknown"], "gpu": ["40960 580.95.05"] * 4}, "8 ranks, but 4 GPUs"),
    ({"gpu": ["40960 535.183.01"] * 8}, "its driver is 535.183.01, this build needs 580.65 for CUDA 13"),
    ({"gpu_process": ["17, python3"]}, "a GPU is in use by process 17, python3"),
    ({"gpu_remapping": ["00000000:10:1C.0"]}, "GPU 00000000:10:1C.0 has an ECC remapping that is pending"),
    ({"fabric_manager": ["failed"]}, "nvidia-fabricmanager is failed"),
    ({"efa": ["3"]}, "has 3 EFA devices, a p4d.24xlarge has 4"),
    ({"machine": ["unknown"], "efa": ["0"]}, "has no EFA device"),
    ({"memlock": ["64"]}, "locked memory is limited to 64 KiB"),
    ({"nccl_plugin": None}, "libnccl-net.so (aws-ofi-nccl) is not in LD_LIBRARY_PATH"),
    ({"libfabric": ["1.17.1"]}, "libfabric is 1.17.1, at least 1.18"),
    ({"libfabric": None}, "libfabric is missing"),
    ({"shared_memory": ["65536"]}, "/dev/shm has 64 MiB"),
    ({"open_files": ["1024"]}, "1024 open files are allowed"),
    ({"free_disk": ["1000"]}, "has 0 MiB free"),
    ({"dataset": None}, "cannot read data.h5"),
    ({"dataset": ["9 2"]}, "data.h5 is not the file of a"),
    ({"not_shared": ["exit code 1"]}, "runs is not the folder of a"),
    ({"variable": ["NCCL_PROTO"]}, "NCCL_PROTO is set, and it overrules"),
    ({"variable": ["RDMAV_FORK_SAFE"]}, "RDMAV_FORK_SAFE is set"),
]
STORAGE = ("free_disk", "dataset", "not_shared")  # faults of these end with 3


def pair(changes):
    """A host a with which nothing is wrong, and b, which differs from it."""
    facts = {**GOOD, "hostname": ["b"], **changes}
    return [Host("a", 8, dict(GOOD)), Host("b", 8, {key: value for key, value in facts.items() if value is not None})]


def job(**changes):
    return checks.Job(**{"instances": INSTANCES, "program": "t/tandem", "dataset": "data.h5", "run_dir": "runs", "uses_gpus": True,
                         "efa": True, "allowed": [], **changes})


class Checks(unittest.TestCase):
    def test_a_good_pair(self):
        self.assertEqual(checks.problems(pair({}), job()), [])

    def test_each_fault_is_named(self):
        for changes, text in FAULTS:
            with self.subTest(text):
                found = checks.problems(pair(changes), job())
                self.assertEqual([problem.host for problem in found], ["b"], found)
                self.assertIn(text, found[0].text)
                self.assertEqual(found[0].code, DATA if set(changes) & set(STORAGE) else CONFIG)

    def test_several_at_once(self):
        changes = {"memlock": ["64"], "shared_memory": ["65536"], "libfabric": ["1.17.1"]}
        self.assertEqual(len(checks.problems(pair(changes), job())), 3)

    def test_without_efa_its_limits_do_not_matter(self):
        changes = {"machine": ["unknown"], "memlock": ["64"], "libfabric": None, "nccl_plugin": None, "efa": ["0"]}
        self.assertEqual(checks.problems(pair(changes), job(efa=False)), [])

    def test_on_the_cpu_gpus_do_not_matter(self):
        changes = {"machine": ["unknown"], "gpu": ["40960 450.1"] * 4, "gpu_process": ["17, python3"]}
        self.assertEqual(checks.problems(pair(changes), job(efa=False, uses_gpus=False)), [])

    def test_what_is_allowed(self):
        self.assertEqual(checks.problems(pair({"variable": ["NCCL_PROTO"]}), job(allowed=["NCCL_PROTO"])), [])


class Instances(unittest.TestCase):
    def test_each_type_says_all(self):
        with open(os.path.join(LAUNCH, "instances.json")) as file:
            known = json.load(file)
        self.assertLessEqual(datetime.date.fromisoformat(known["updated"]), datetime.date.today())
        self.assertGreater(len(known["types"]), 5)
        for name, facts in known["types"].items():
            with self.subTest(name):
                self.assertEqual(set(facts), {"gpus", "gpu", "gpu_memory_mib", "efa", "nvswitch", "host_memory_gib", "bus_gb_s", "usd_per_hour"})
                self.assertEqual(set(facts["bus_gb_s"]), {"1", "2", "4"})
                self.assertEqual(set(facts["usd_per_hour"]), {"on_demand", "spot", "capacity_block", "sagemaker"})
                for figure in [*facts["bus_gb_s"].values(), *facts["usd_per_hour"].values()]:
                    self.assertTrue(figure is None or figure > 0)
        self.assertEqual(known["types"]["p4d.24xlarge"]["efa"], 4)


class NcclLogs(unittest.TestCase):
    WRONG = [
        (("Using network AWS Libfabric", "Using network Socket"), "NCCL uses the network 'Socket', not EFA"),
        (("found 4 nics", "found 1 nics"), "NCCL found 1 EFA devices of 4"),
        (("provider is efa", "provider is tcp"), "libfabric uses the provider 'tcp', not efa"),
        (("/0/GDRDMA", "/0"), "no GPUDirect RDMA ('via NET/AWS Libfabric/0')"),
        (("NCCL INFO Using network AWS Libfabric", "NCCL WARN Error: network AWS Libfabric not found."), "NCCL has no network 'AWS Libfabric'"),
    ]

    def read(self, *texts, ranks=None):
        with tempfile.TemporaryDirectory() as folder:
            for i, text in enumerate(texts):
                with open(os.path.join(folder, f"host{i}.7.log"), "w") as file:
                    file.write(text)
            return nccl_log.NcclLog(folder, ranks or len(texts), 4).problems()

    def test_a_good_one(self):
        self.assertEqual(self.read(NCCL_LOG, NCCL_LOG.replace("AWS Libfabric", "Libfabric")), [])
        self.assertEqual(nccl_log.summary(NCCL_LOG), "NCCL 2.27.7+cuda12.9, aws-ofi-nccl 1.16.3: network AWS Libfabric, 4 EFA devices")

    def test_every_beginning_of_a_good_one(self):
        for end in range(len(NCCL_LOG)):
            self.assertEqual(self.read(NCCL_LOG[:end]), [], NCCL_LOG[:end])

    def test_what_is_wrong(self):
        for change, text in self.WRONG:
            with self.subTest(text):
                found = self.read(NCCL_LOG, NCCL_LOG.replace(*change))
                self.assertEqual(len(found), 1)
                self.assertTrue(found[0].startswith(f"host1: {text}: see"), found[0])


class HostLists(unittest.TestCase):
    def parse(self, text="", list=""):
        with tempfile.NamedTemporaryFile("w", newline="") as file:
            file.write(text)
            file.flush()
            return [(host.name, host.slots) for host in Platform("ssh", list, "" if list else file.name).hosts()]

    def test_files(self):
        text = "# all nodes\r\na slots=8 max_slots=8\r\n\n  b slots = 4 # old\nc:2\nd\n10.0.0.5 max-slots=9 slots=1\n"
        self.assertEqual(self.parse(text), [("a", 8), ("b", 4), ("c", 2), ("d", 0), ("10.0.0.5", 1)])

    def test_a_host_that_stands_twice_has_the_slots_of_both(self):
        self.assertEqual(self.parse("a slots=4\nb slots=4\na slots=4\n"), [("a", 8), ("b", 4)])

    def test_lists(self):
        self.assertEqual(self.parse(list="a:8,b"), [("a", 8), ("b", 0)])

    def test_mistakes(self):
        for text, said in [("", "no hosts"), ("# none\n", "no hosts"), ("a slots=x\n", "host 'a x': must be"), ("a slots=0\n", "1 rank or more"),
                           ("a b c\n", "host 'a b c'"), ("a\na slots=4\n", "host a stands twice")]:
            with self.subTest(text), self.assertRaises(Failure) as caught:
                self.parse(text)
            self.assertIn(said, str(caught.exception))
            self.assertEqual(caught.exception.code, CONFIG)


class Choices(unittest.TestCase):
    def test_fewer_hosts_take_ranks_that_divide_the_batch(self):
        three = [Host(name, 8) for name in "abc"]
        self.assertEqual(main.rank_count(three, three, 512), 24)  # as asked; the program refuses it
        self.assertEqual(main.rank_count(three, three + [Host("d", 8)], 512), 16)
        self.assertEqual(main.rank_count(three[:1], three, 12), 6)

    def test_the_network(self):
        one, two = pair({})
        self.assertEqual(main.network([one, two], "auto", True), "efa")
        self.assertEqual(main.network([one, two], "sockets", True), "sockets")
        self.assertEqual(main.network([one], "auto", True), "")
        self.assertEqual(main.network([one, two], "auto", False), "")
        without = [Host("a", 8, {"efa": ["0"]}), Host("b", 8, {})]
        self.assertEqual(main.network(without, "auto", True), "sockets")
        self.assertEqual(main.network(without, "efa", True), "efa")  # the checks then say what is missing

    def test_the_least_bandwidth(self):
        a, b = pair({})
        self.assertEqual([main.least_bandwidth([a] * count, INSTANCES) for count in (1, 2, 3, 4, 16)], [200, 60, 28, 28, 28])
        self.assertIsNone(main.least_bandwidth([a, Host("c", 8, {"machine": ["unknown"]})], INSTANCES))


class OneMachine(Launched):
    """Jobs of this machine alone."""

    def arguments(self, name, *settings):
        return ["train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", name, *tandem_program.TINY,
                "--dist.reduce", "exact", *map(str, settings)]

    def start(self, name, *settings, options=("--hosts", "localhost:2"), tandem=None, **how):
        command = [RUN, "--tandem", tandem or tandem_program.TANDEM, *options, "--", *self.arguments(name, *settings)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def script(self, name, text):
        """A program in place of tandem; `train --help` still shows the real one's settings."""
        path = self.path(name)
        with open(path, "w") as file:
            file.write(f'#!/bin/bash\ncase "$*" in *--help) exec {tandem_program.TANDEM} "$@" ;; esac\n{text}\n')
        os.chmod(path, 0o755)
        return path

    def lines(self, name):
        if not os.path.exists(self.path(name)):
            return []
        with open(self.path(name)) as file:
            return file.read().split()

    def test_a_run_is_that_of_mpirun(self):
        said = self.finish(self.start("launched", "--train.steps", 6), 0)
        self.assertRegex(said[0], r"^run: 2 ranks on \S+ \(local\)$")
        self.assertRegex(said[-1], r"^run: ended with 0 \(finished\) after \d+ s$")
        self.train("plain", "--dist.reduce", "exact", "--train.steps", "6", ranks=2)
        self.assertEqual(losses(self.run_folder("launched")), losses(self.run_folder("plain")))

    def test_print_shows_a_command_that_works(self):
        process = self.start("printed", "--train.steps", 2, options=["--hosts", "localhost:2", "--print"])
        output, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, errors), (0, ""))
        self.assertFalse(os.path.exists(self.run_folder("printed")))
        lines = output.splitlines()
        self.assertRegex(lines[0], r"^# \S+ slots=2$")
        words = shlex.split(lines[1])
        words[words.index("--hostfile") + 1] = self.path("hosts")
        with open(self.path("hosts"), "w") as file:
            file.write(lines[0][2:] + "\n")
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        self.assertEqual(max(losses(self.run_folder("printed"))), 2)

    def test_each_signal_saves_and_ends(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            with self.subTest(number.name):
                name = number.name
                process = self.start(name, "--train.steps", 10**6)
                wait_until(lambda: os.path.exists(os.path.join(self.run_folder(name), "metrics.jsonl")))
                process.send_signal(number)
                said = self.finish(process, STOPPED)
                self.assertRegex(said[-1], r"^run: ended with 85 \(stopped on request, checkpoint saved\) .*the same command goes on")
                self.assertEqual(self.processes_of(name), [])
        last = max(losses(self.run_folder("SIGTERM")), default=0)
        self.finish(self.start("SIGTERM", "--train.steps", last + 2), 0)
        self.assertEqual(max(losses(self.run_folder("SIGTERM"))), last + 2)

    def test_a_stop_at_any_moment(self):
        for wait_ms in (0, 300, 900):
            name = f"early{wait_ms}"
            process = self.start(name, "--train.steps", 10**6)
            process.stderr.readline()  # it is about to start the ranks
            time.sleep(wait_ms / 1000)
            process.send_signal(signal.SIGTERM)
            self.finish(process, STOPPED)
            self.assertEqual(self.processes_of(name), [])

    def test_a_stop_while_hosts_are_silent(self):
        process = self.start("silent", options=["--hosts", "no-such-host:1,other:1", "--wait", "60"])
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process, STOPPED), ["run: SIGTERM: ended with 85 before the ranks were started"])

    def test_what_does_not_end_is_killed(self):
        tandem = self.script("deaf", f"trap '' TERM USR1\necho $$ >> {self.path('deaf-pids')}\nwhile :; do sleep 0.1; done")
        process = self.start("deaf", options=["--hosts", "localhost:2", "--grace", "1"], tandem=tandem)
        wait_until(lambda: len(self.lines("deaf-pids")) == 2)
        process.send_signal(signal.SIGTERM)
        said = self.finish(process, 137)
        self.assertIn("run: not ended 1 s after the request: killed", said)
        for pid in self.lines("deaf-pids"):
            self.assertFalse(is_alive(pid))

    def test_codes_of_ranks(self):
        for ended, code in [("exit 64", 64), ("exit 2", 2), ("kill -KILL $$", 137), ("kill -SEGV $$", 139), ("exit 205", 75)]:
            with self.subTest(ended):
                said = self.finish(self.start("codes", tandem=self.script("ends", ended)), code)
                self.assertTrue(said[-1].startswith(f"run: ended with {code} ("), said)

    def test_srun_that_starts_nothing_has_not_finished(self):
        """Slurm's srun was seen to end with 0 after "task 0 launch failed"."""
        os.makedirs(self.path("slurm"), exist_ok=True)
        here = os.uname().nodename
        for name, text in [("scontrol", f"echo {here}"),
                           ("srun", 'case $* in --mpi=list) echo pmix ;; *" $TRAINS "*) until [ "${1##*/}" = rank.sh ]; do shift; done; '
                                    'exec "$@" ;; esac')]:
            with open(self.path(f"slurm/{name}"), "w") as file:
                file.write(f"#!/bin/bash\n{text}\n")
            os.chmod(self.path(f"slurm/{name}"), 0o755)
        slurm = {"PATH": self.path("slurm") + ":" + os.environ["PATH"], "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": here,
                 "SLURMD_NODENAME": here, "SLURM_NTASKS_PER_NODE": "1"}
        for trains, code in [("nothing", 75), ("train", 0)]:
            said = self.finish(self.start("srun", tandem=self.script("quick", "exit 0"), options=[],
                                          env={**os.environ, **slurm, "TRAINS": trains}), code)
            self.assertEqual("run: srun ended with 0, but has started no rank here: see its lines above" in said, code == 75)

    def test_killing_it_kills_the_job(self):
        process = self.start("orphan", "--train.steps", 10**6)
        self.addCleanup(lambda: [os.kill(rank, signal.SIGKILL) for rank in self.processes_of("orphan")])
        wait_until(lambda: os.path.exists(os.path.join(self.run_folder("orphan"), "metrics.jsonl")))
        process.kill()
        process.wait()
        wait_until(lambda: self.processes_of("orphan") == [], seconds=15)

    def test_refusals(self):
        for options, settings, code, text in [
                (["--hosts", "localhost:2"], ["--data.path", "/no/such/file"], DATA, "cannot read /no/such/file"),
                (["--platform", "moon"], [], CONFIG, "--platform moon: there are auto, kubernetes, local, sagemaker, slurm, ssh"),
                (["--platform", "ssh"], [], CONFIG, "--platform ssh needs --hostfile FILE or --hosts"),
                (["--hostfile", "/no/such/file"], [], CONFIG, "--hostfile /no/such/file: no such file"),
                (["--hosts", "a:1", "--hostfile", "x"], [], CONFIG, "give one of them"),
                (["--wait", "soon"], [], CONFIG, "'soon' is not a whole number"),
                (["--colour", "red"], [], CONFIG, "unrecognized arguments: --colour red"),
                (["--hosts", "no-such-host:1,other:2", "--wait", "0"], [], 75, "no-such-host: silent for 0 s")]:
            with self.subTest(text):
                said = self.finish(self.start("refused", *settings, options=options), code)
                self.assertIn(text, " ".join(said))
                self.assertFalse(os.path.exists(self.run_folder("refused")))

    def test_a_harmful_variable(self):
        harmful = dict(os.environ, NCCL_PROTO="simple")
        said = self.finish(self.start("harmful", env=harmful), CONFIG)
        self.assertIn("NCCL_PROTO is set, and it overrules NCCL's own choice: unset it, or start with --allow NCCL_PROTO", said[0])
        self.finish(self.start("harmful", "--train.steps", 1, options=["--allow", "NCCL_PROTO"], env=harmful), 0)


class Binding(unittest.TestCase):
    """launch/rank.sh, on a machine like a p4d.24xlarge."""

    def test_each_rank_is_bound_to_the_node_of_its_gpu(self):
        with tempfile.TemporaryDirectory() as sys_folder:
            def write(path, text):
                os.makedirs(os.path.dirname(os.path.join(sys_folder, path)), exist_ok=True)
                with open(os.path.join(sys_folder, path), "w") as file:
                    file.write(text + "\n")
            for number in range(8):
                for name, text in [("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", str(number // 4))]:
                    write(f"bus/pci/devices/0000:{16 * number:02x}:1c.0/{name}", text)
            write("bus/pci/devices/0000:00:03.0/vendor", "0x1d0f")  # no GPU
            write("devices/system/node/node0/cpulist", "0")
            write("devices/system/node/node1/cpulist", str(os.cpu_count() - 1))

            def bound(**environment):
                script = "print(*os.sched_getaffinity(0), os.environ.get('CUDA_DEVICE_ORDER'))"
                done = subprocess.run([os.path.join(LAUNCH, "rank.sh"), sys.executable, "-c", "import os; " + script], check=True, text=True,
                                      env={**os.environ, "TANDEM_SYS": sys_folder, **environment}, stdout=subprocess.PIPE)
                return done.stdout.split()
            last = str(os.cpu_count() - 1)
            self.assertEqual(bound(OMPI_COMM_WORLD_LOCAL_RANK="3"), ["0", "PCI_BUS_ID"])
            self.assertEqual(bound(OMPI_COMM_WORLD_LOCAL_RANK="4"), [last, "PCI_BUS_ID"])
            self.assertEqual(bound(SLURM_LOCALID="7"), [last, "PCI_BUS_ID"])
            self.assertEqual(bound(OMPI_COMM_WORLD_LOCAL_RANK="0", CUDA_VISIBLE_DEVICES="6,7"), [last, "PCI_BUS_ID"])
            everything = [*map(str, sorted(os.sched_getaffinity(0))), "None"]
            self.assertEqual(bound(), everything)


if __name__ == "__main__":
    tandem_program.main()
