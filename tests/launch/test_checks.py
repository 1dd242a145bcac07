#!/usr/bin/env python3
"""launch/run.sh: what it reads, and what it finds wrong with hosts that are made up."""
import datetime
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch")
sys.path[:0] = [os.path.join(LAUNCH, "run"), os.path.join(LAUNCH, "..", "tests", "program")]
import checks
import main
import nodes
from command import environment
from errors import CONFIG, DATA, Failure
from hosts import OWN_HOSTS, Host, Platform
from instances import MARKETS
from job import end_before_start, on_stop
from recorded import GOOD
from tandem_program import write_program

INSTANCES = {"p4d.24xlarge": {"gpus": 8, "efa": 4, "nvswitch": True, "bus_gb_s": {"1": 200, "2": 60, "4": 28},
                              "usd_per_hour": {"on_demand": {"usd": 22.5, "date": "2020-01-31"}, "spot": None}}}
# A fact that is wrong, and what is said about it: of a host that is called b; None: the fact is missing.
FAULTS = [
    ({"program": None}, "t/tandem is not there or cannot be run"),
    ({"missing_library": ["libmpi.so.40"]}, "does not find libmpi.so.40"),
    ({"cannot_start": ["Illegal instruction"]}, "does not start: Illegal instruction"),
    ({"program": ["2"]}, "is 2, on a 1: copy one build"),
    ({"open_mpi": None}, "mpirun is not Open MPI"),
    ({"open_mpi": ["5.0.1"]}, "Open MPI is 5.0.1, on a 4.1.7"),
    ({"hostname": ["a"]}, "its hostname is a, like that of a"),
    ({"hostname": ["gpu_1"]}, "its hostname is gpu_1, but Open MPI takes letters, digits, dots and hyphens only"),
    ({"gpu": ["40960 580.95.05"] * 7}, "has 7 GPUs, a p4d.24xlarge has 8"),
    ({"machine": ["unknown"], "gpu": ["40960 580.95.05"] * 4}, "8 ranks, but 4 GPUs"),
    ({"gpu": ["40960 535.183.01"] * 8}, "its driver is 535.183.01, this build needs 580.65 for CUDA 13"),
    *(({"cuda": [cuda], "gpu": [f"40960 {driver}"] * 8}, f"its driver is {driver}, this build needs")
      for cuda, driver in [("12", "525.59"), ("11", "450.79")]),
    *(({"variable": [name]}, f"{name} is set") for name in [
        "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_ALGO", "NCCL_TREE_THRESHOLD", "NCCL_MIN_NRINGS",
        "NCCL_MIN_CHANNELS", "NCCL_BUFFSIZE", "FI_EFA_FORK_SAFE", "FI_EFA_USE_DEVICE_RDMA"]),
    ({"gpu_process": ["17, python3"]}, "a GPU is in use by process 17, python3"),
    ({"gpu_remapping": ["00000000:10:1C.0"]}, "GPU 00000000:10:1C.0 has an ECC remapping that is pending"),
    ({"fabric_manager": ["failed"]}, "nvidia-fabricmanager is failed"),
    ({"efa": ["3"]}, "has 3 EFA devices, a p4d.24xlarge has 4"),
    ({"machine": ["unknown"], "efa": ["0"]}, "has no EFA device"),
    ({"memlock": ["64"]}, "locked memory is limited to 64 KiB"),
    ({"nccl_plugin": None}, "libnccl-net.so (aws-ofi-nccl) is not in LD_LIBRARY_PATH"),
    ({"nccl_plugin_version": ["1.17.2"]}, "NCCL 2.28.9 with aws-ofi-nccl 1.17.2 hangs (aws-ofi-nccl issue 1055): install EFA 1.49.0"),
    ({"nccl_version": ["2.27.7"], "nccl_plugin_version": ["1.18.0"]}, "NCCL 2.27.7 with aws-ofi-nccl 1.18.0 hangs (large broadcasts"),
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

    def test_what_is_just_enough(self):
        for changes in [{"gpu": ["40960 580.65.06"] * 8}, {"open_files": ["8192"]}, {"libfabric": ["1.18.0"]}, {"shared_memory": ["1048576"]},
                        {"free_disk": ["1048576"]}]:
            self.assertEqual(checks.problems(pair(changes), job()), [], changes)

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
        self.assertGreater(len(known["types"]), 5)
        for name, facts in known["types"].items():
            with self.subTest(name):
                self.assertEqual(set(facts), {"gpus", "gpu", "gpu_memory_mib", "efa", "gpudirect_rdma", "nvswitch", "host_memory_gib", "bus_gb_s",
                                              "between_gb_s", "usd_per_hour"})
                self.assertEqual(set(facts["bus_gb_s"]), {"1", "2", "4"})
                for figure in [*facts["bus_gb_s"].values(), facts["between_gb_s"]]:
                    self.assertTrue(figure is None or figure > 0)
                self.assertEqual(list(facts["usd_per_hour"]), MARKETS)
                for price in filter(None, facts["usd_per_hour"].values()):
                    self.assertEqual(list(price), ["usd", "date", "source"])
                    self.assertGreater(price["usd"], 0)
                    self.assertLessEqual(datetime.date.fromisoformat(price["date"]), datetime.date.today())
                    self.assertGreater(len(price["source"]), 10)
        self.assertEqual(known["types"]["p4d.24xlarge"]["efa"], 4)


class HostLists(unittest.TestCase):
    def parse(self, text="", list=""):
        with tempfile.NamedTemporaryFile() as file:
            file.write(text if isinstance(text, bytes) else text.encode())
            file.flush()
            return [(host.name, host.slots) for host in Platform("ssh", list, "" if list else file.name).hosts()]

    def test_files(self):
        text = "# all nodes\r\na slots=8 max_slots=8\r\n\n  b slots = 4 # old\nc:2\nd\n10.0.0.5 max-slots=9 slots=1\n"
        self.assertEqual(self.parse(text), [("a", 8), ("b", 4), ("c", 2), ("d", 0), ("10.0.0.5", 1)])

    def test_a_host_that_stands_twice_has_the_slots_of_both(self):
        self.assertEqual(self.parse("a slots=4\nb slots=4\na slots=4\n"), [("a", 8), ("b", 4)])

    def test_files_of_other_systems(self):
        for encoding in ["utf-8", "utf-8-sig", "utf-16"]:
            self.assertEqual(self.parse("a slots=2 # für Bälle\r\nb:3".encode(encoding)), [("a", 2), ("b", 3)])
        self.assertEqual(self.parse("a slots=2 # für".encode("latin-1")), [("a", 2)])
        self.assertEqual(self.parse(f"cpu-1\nCPU\n{'a' * 253}:1\n"), [("cpu-1", 0), ("CPU", 0), ("a" * 253, 1)])

    def test_this_machine_alone(self):
        for hosts in ["localhost:2", " localhost slots=2", f"{socket.gethostname()}:2"]:
            for name in ["local", "auto"]:
                platform = Platform(name, hosts, "")
                self.assertEqual((platform.name, [(host.name, host.slots) for host in platform.hosts()]), ("local", [("localhost", 2)]))
        for hosts, hostfile, other in [("localhost:2,b:2", "", "b"), ("", __file__, __file__)]:
            with self.assertRaises(Failure) as caught:
                Platform("local", hosts, hostfile)
            self.assertEqual(caught.exception.code, CONFIG)
            self.assertIn(f"--platform local is this machine alone, and {other} may be another: ", str(caught.exception))

    def test_platforms_that_have_hosts_of_their_own(self):
        for name, hosts, hostfile, option in [("sagemaker", "", __file__, "--hostfile"), *((name, "a:2", "", "--hosts") for name in OWN_HOSTS)]:
            with self.subTest(name), self.assertRaises(Failure) as caught:
                Platform(name, hosts, hostfile)
            self.assertEqual(caught.exception.code, CONFIG)
            self.assertRegex(str(caught.exception), f"^{option} means nothing here: the hosts are those of the platform ")

    def test_hosts_of_a_slurm_job(self):
        """All of them, or those that are named."""
        with tempfile.TemporaryDirectory() as folder:
            write_program(f"{folder}/scontrol", "#!/bin/sh\nprintf 'a\\nb_2\\nc\\n'\n")
            slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b_2,c", "SLURM_NTASKS_PER_NODE": "2", "PATH": f"{folder}:{os.environ['PATH']}"}
            with mock.patch.dict(os.environ, slurm):
                for hosts, found in [("", [("a", 2), ("b_2", 2), ("c", 2)]), ("c:1,b_2", [("c", 1), ("b_2", 2)])]:
                    self.assertEqual([(host.name, host.slots) for host in Platform("auto", hosts, "").hosts()], found)
                with self.assertRaises(Failure) as caught:
                    Platform("auto", "a:1,d:1,localhost:1", "").hosts()
                self.assertEqual((caught.exception.code, str(caught.exception)),
                                 (CONFIG, "d, localhost: no host of this Slurm job, which has a, b_2, c"))
                self.assertEqual(Platform("ssh", "a:2", "").name, "ssh")

    def test_lists(self):
        self.assertEqual(self.parse(list="a:8,b"), [("a", 8), ("b", 0)])
        self.assertEqual(self.parse(list=" a:8 ,, b-2.c:1,"), [("a", 8), ("b-2.c", 1)])

    def test_mistakes(self):
        for text, said in [("", "no hosts"), ("# none\n", "no hosts"), ("a slots=x\n", "host 'a slots=x': must be"), ("a slots=0\n", "1 rank or more"),
                           ("a b c\n", "host 'a b c'"), ("a\na slots=4\n", "host a stands twice"), ("a slots=²\n", "host 'a slots=²'"),
                           ("gpu_1 slots=1\n", "host 'gpu_1 slots=1'"), ("fd00::2 slots=1\n", "takes no underscore and no IPv6 address"),
                           ("fe80::1\n", "host 'fe80::1'"), ("2001:db8::10\n", "host '2001:db8::10'"), ("[fd00::2]:8\n", "host '[fd00::2]:8'"),
                           ("cpu slots=1\n", "host 'cpu slots=1'"), ("max-slots:2\n", "host 'max-slots:2'"), ("a" * 254, f"host '{'a' * 60}': must"),
                           ("-oProxyCommand=reboot\n", "host '-oProxyCommand=reboot'"), ("-x:1\n", "host '-x:1'"), ("höst:1\n", "host 'höst:1'")]:
            with self.subTest(text), self.assertRaises(Failure) as caught:
                self.parse(text)
            self.assertIn(said, str(caught.exception))
            self.assertEqual(caught.exception.code, CONFIG)

    def test_a_list_that_is_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "fifo")
            os.mkfifo(path)
            for hostfile, said in [(path, "is no regular file"), (folder, "is no regular file"), (path + "x", "no such file")]:
                with self.assertRaises(Failure) as caught:
                    Platform("ssh", "", hostfile)
                self.assertEqual((caught.exception.code, str(caught.exception)), (CONFIG, f"--hostfile {hostfile}: {said}"))


class Refusals(unittest.TestCase):
    def test_what_is_refused_is_not_asked_again(self):
        for error, line in [("a: Permission denied (publickey).", "ssh is refused ({}): let this user log in with a key, without a password"),
                            ("srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification",
                             "srun is refused ({}): ask sbatch for GPUs with --gpus-per-node")]:
            with mock.patch.object(nodes, "call", lambda *_: ("", error)), self.assertRaises(Failure) as caught:
                nodes.ask_all(None, [Host("a")], [], 1, 0)
            self.assertEqual((caught.exception.code, str(caught.exception)), (CONFIG, "a: " + line.format(error)))

    def test_hosts_that_are_waited_for_are_named_once(self):
        tries = {name: 0 for name in ("fine", "late", *(f"{i:063d}" for i in range(9)))}

        def call(platform, host, *_):
            tries[host.name] += 1
            return ("end\n", "") if host.name == "fine" or tries[host.name] > 2 else ("", "No route to host")
        for names, shown in [(["fine"], []), (["fine", "late"], ["late"]), (list(tries)[2:], [", ".join(list(tries)[2:])[:200] + "..."])]:
            with mock.patch.object(nodes, "call", call), mock.patch.object(nodes, "say") as say:
                self.assertEqual(len(nodes.ask_all(None, list(map(Host, names)), [], 60, 0)), len(names))
            self.assertEqual([line[0][0] for line in say.call_args_list], [f"no answer yet from {name}: waits 60 s at most (--wait)" for name in shown])

    def test_a_host_whose_login_is_slow_is_not_lost(self):
        host, clock, given = Host("slow"), iter([0, 7, 7, 8]), []

        def call(*_, seconds=nodes.ANSWER_S):
            given.append(seconds)
            return "end\n", ""
        with mock.patch.object(nodes, "call", call), mock.patch.object(nodes.time, "monotonic", lambda: next(clock)):
            nodes.ask(None, host, [], 60)
            self.assertEqual(nodes.lost(Platform("ssh", "slow,other", ""), [host, Host("other")]), [])
        self.assertEqual(sorted(given), sorted([nodes.ANSWER_S, nodes.LOST_S / 2 + 7, nodes.LOST_S / 2]))

    def test_what_does_not_answer_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            late = os.path.join(folder, "late")
            said = nodes.call(Platform("local", "", ""), Host("localhost"), '(sleep 20; echo >"$1"); true', late, seconds=1)
            self.assertEqual((said, os.path.exists(late)), (("", "no answer within 1 s"), False))


class Answers(unittest.TestCase):
    def test_a_login_may_print(self):
        for said, count in [("2\n", 2), ("Welcome\nLast login: 7 May\n2\n", 2), ("Welcome\n", 0), ("", 0)]:
            with mock.patch.object(nodes, "call", lambda *_, **__: (said, "")):
                self.assertEqual(nodes.count_started(None, Host("a"), "marks", 2, 1), count)
        self.assertEqual(nodes.call(Platform("local", "", ""), Host("localhost"), r"printf 'caf\351\nend\n'"), ("caf\ufffd\nend\n", ""))

    def test_a_host_that_still_starts_is_asked_again(self):
        with tempfile.TemporaryDirectory() as folder:
            write_program(os.path.join(folder, "systemctl"), "#!/bin/bash\necho activating\n")
            done = subprocess.run([os.path.join(LAUNCH, "node.sh"), *["/none"] * 4], text=True, capture_output=True,
                                  env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        self.assertEqual((done.returncode, done.stderr), (1, "nvidia-fabricmanager is still starting\n"))

    def test_threads_of_a_rank_are_no_cores(self):
        facts = subprocess.run([os.path.join(LAUNCH, "node.sh"), *["/none"] * 4], env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
                               stdout=subprocess.PIPE).stdout
        self.assertIn(f"\ncores {len(os.sched_getaffinity(0))}\n", facts)

    def test_cores_that_are_no_number(self):
        """Ranks yield where there are more of them than cores."""
        for cores, given in [(["7"], "1"), (["8"], None), (["busy now", "4"], None), (["²"], None), (None, None)]:
            with mock.patch.dict(os.environ), self.subTest(cores):
                os.environ.pop("OMPI_MCA_mpi_yield_when_idle", None)
                self.assertEqual(environment(pair({"cores": cores})[1:], "", "", {}).get("OMPI_MCA_mpi_yield_when_idle"), given)


class Signals(unittest.TestCase):
    def test_nohup_lets_a_job_outlive_its_terminal(self):
        numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
        on_stop(end_before_start)
        self.assertEqual([signal.signal(number, handler) for number, handler in zip(numbers, before)],
                         [signal.SIG_IGN] + [end_before_start] * 3)


class Choices(unittest.TestCase):
    def test_fewer_hosts_take_ranks_that_divide_the_batch(self):
        three = [Host(name, 8) for name in "abc"]
        self.assertEqual(main.rank_count(three, three, 512, 0, 1), 24)  # as asked; the program refuses it
        self.assertEqual(main.rank_count(three, three + [Host("d", 8)], 512, 0, 1), 16)
        self.assertEqual(main.rank_count(three[:1], three, 12, 0, 1), 6)
        self.assertEqual(main.rank_count(three, three + [Host("d", 8)], 12, 0, 4), 24)  # six groups of four ranks
        self.assertEqual(main.rank_count(three[:1], three, 12, 0, 3), 6)
        self.assertEqual(main.rank_count(three[:1], three, 12, 4, 1), 3)  # shares of one micro-batch
        self.assertEqual(main.rank_count(three[:1], three, 12, 5, 1), 8)  # the program refuses it
        with self.assertRaises(main.Failure) as failed:
            main.rank_count(three[:1], three, 12, 0, 16)
        self.assertEqual(failed.exception.code, main.TEMPORARY)

    def test_the_network(self):
        one, two = pair({})
        self.assertEqual(main.network([one, two], "auto", True), "efa")
        self.assertEqual(main.network([one, two], "sockets", True), "sockets")
        self.assertEqual(main.network([one], "auto", True), "")
        self.assertEqual(main.network([one, two], "auto", False), "")
        without = [Host("a", 8, {"efa": ["0"]}), Host("b", 8, {})]
        self.assertEqual(main.network(without, "auto", True), "sockets")
        self.assertEqual(main.network(without, "efa", True), "efa")  # the checks then say what is missing

    def test_what_follows_from_the_machine_type(self):
        a, b = pair({})
        known, settings = main.type_of([a, b], INSTANCES), {"dist.min_gb_s": "0", "run.usd_per_node_hour": "0", "dist.backend": "auto"}
        def words(hosts, market, net="", **named):
            return main.from_type(known, hosts, market, net, {**settings, **named}, lambda defaults: {**settings, **defaults, **named})
        least = [words([a] * count, "spot") for count in (1, 2, 3, 4, 16)]
        self.assertEqual(least, [["--dist.min_gb_s", str(gb_s)] for gb_s in (200, 60, 28, 28, 28)])
        with mock.patch.object(main, "say") as say:
            self.assertEqual(words([a], "on_demand", **{"dist.min_gb_s": "3"}), ["--run.usd_per_node_hour", "22.5"])
        self.assertRegex(say.call_args[0][0], r"^the price of 2020-01-31 is \d+ days old: ")
        self.assertEqual(words([a], "on_demand", **{"dist.min_gb_s": "0", "run.usd_per_node_hour": "20"}), [])
        self.assertIsNone(main.type_of([a, Host("c", 8, {"machine": ["unknown"]})], INSTANCES))


class Environment(unittest.TestCase):
    def test_what_the_user_has_set_stays(self):
        with mock.patch.dict(os.environ, NCCL_SOCKET_IFNAME="eth7", OMPI_MCA_btl="self,tcp"):
            given = environment(pair({}), "efa", "", {"TANDEM_JOB": "7"})
        self.assertEqual([given[name] for name in ("NCCL_SOCKET_IFNAME", "OMPI_MCA_btl", "FI_PROVIDER", "TANDEM_JOB")],
                         ["eth7", "self,tcp", "efa", "7"])
        self.assertIn("NCCL_SOCKET_IFNAME", given["OMPI_MCA_mca_base_env_list"].split(";"))

    def test_what_ranks_on_other_hosts_get(self):
        names = {"LD_LIBRARY_PATH", "TMPDIR", "TZ", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "FI_PROVIDER", "RDMAV_FORK_SAFE", "OMP_NUM_THREADS",
                 "HDF5_USE_FILE_LOCKING", "TANDEM_SYS"}
        with mock.patch.dict(os.environ, {name: "1" for name in names}):
            given = environment(pair({}), "efa", "", {})["OMPI_MCA_mca_base_env_list"].split(";")
        self.assertLessEqual({"PATH", *names}, set(given))
        self.assertNotIn("HOME", given)
        with mock.patch.dict(os.environ, TZ="a=b;c", TMPDIR="a;b"):
            given = environment(pair({}), "efa", "", {})
        self.assertLessEqual({"TZ=a=b;c", "TMPDIR"}, set(given["OMPI_MCA_mca_base_env_list"].split(given["OMPI_MCA_mca_base_env_list_delimiter"])))


class Ranks(unittest.TestCase):
    """launch/rank.sh, on a machine like a p4d.24xlarge."""

    def test_as_many_files_may_be_opened_as_the_machine_allows(self):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for hard, expected in [(3000, 3000), (most, 65536 if most == resource.RLIM_INFINITY else min(most, 65536))]:
            done = subprocess.run([os.path.join(LAUNCH, "rank.sh"), "sh", "-c", "ulimit -Sn"], check=True, stdout=subprocess.PIPE,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard)))
            self.assertEqual(int(done.stdout), expected)

    def test_each_rank_is_bound_to_the_node_of_its_gpu(self):
        with tempfile.TemporaryDirectory() as sys_folder:
            def write(path, text):
                os.makedirs(os.path.dirname(os.path.join(sys_folder, path)), exist_ok=True)
                with open(os.path.join(sys_folder, path), "w") as file:
                    file.write(text + "\n")
            for number in range(8):
                kind = "0x030000" if number == 0 else "0x030200"  # the first can have a display
                for name, text in [("vendor", "0x10de"), ("class", kind), ("numa_node", str(number // 4))]:
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
            everything = list(map(str, sorted(os.sched_getaffinity(0))))
            self.assertEqual(bound(), [*everything, "None"])
            # What names no CPUs that it may have leaves a rank unbound.
            self.assertEqual(bound(OMPI_COMM_WORLD_LOCAL_RANK="0", CUDA_VISIBLE_DEVICES="08"), [*everything, "PCI_BUS_ID"])
            for cpus in [str(os.cpu_count() + 7), ""]:
                write("devices/system/node/node0/cpulist", cpus)
                self.assertEqual(bound(OMPI_COMM_WORLD_LOCAL_RANK="3"), [*everything, "PCI_BUS_ID"])
            os.remove(os.path.join(sys_folder, "devices/system/node/node0/cpulist"))
            os.remove(os.path.join(sys_folder, "bus/pci/devices/0000:10:1c.0/numa_node"))
            for rank in "03":
                self.assertEqual(bound(OMPI_COMM_WORLD_LOCAL_RANK=rank), [*everything, "PCI_BUS_ID"])
            self.assertEqual(bound(OMPI_COMM_WORLD_LOCAL_RANK="4"), [last, "PCI_BUS_ID"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
