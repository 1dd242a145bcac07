#!/usr/bin/env python3
"""launch/run.sh over ssh: four pretend hosts, each with a real sshd, and two ranks on each.

    test_ssh.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import re
import signal
import subprocess
import sys
import time

import pretend_hosts
from recorded import NCCL_LOG
from supervised import ROOT, Launched, records_in_memory, wait_until
import tandem_program
from tandem_program import STOPPED, losses, tensors_in, write_program

RUN = os.path.join(ROOT, "launch", "run.sh")
LOST, CONFIG, DATA = 75, 2, 3
SOON_S = 15  # within which a job with a lost host must have ended
# The same sums, and so the same bits, on any number of ranks.
EXACT = ["--train.global_batch", 24, "--train.micro_batch", 1, "--dist.reduce", "exact"]
# Instead of bash's ulimit: memlock, which root may not be allowed to change, is unlimited.
UNLIMITED = '() { if [ "$1" = -l ]; then echo unlimited; else builtin ulimit "$@"; fi; }'
SMI = """#!/bin/sh
case $1 in
  *memory.total*) for i in 0 1 2 3 4 5 6 7; do echo "40960, 580.95.05"; done ;;
  *compute-apps*) {processes} ;;
  *remapped*) echo "00000000:10:1C.0, {pending}" ;;
esac
"""


class Ssh(Launched):
    environment = {}

    @classmethod
    def setUpClass(cls):
        pretend_hosts.require("sshd", "ssh", "mpirun")
        super().setUpClass()
        cls.make_hosts(4)
        cls.hosts.start_sshd()
        cls.everything = "\r\n".join(["# all of them", *(f"host{i} slots=2 max_slots=2 # two ranks" for i in range(4)), ""])

    def start(self, name, *settings, options=(), hostfile=None, tandem=None):
        path = self.path("hostfile")
        with open(path, "w", newline="") as file:
            file.write(hostfile or self.everything)
        command = [RUN, "--tandem", tandem or tandem_program.TANDEM, "--hostfile", path, *options, "--", "train", "--data.path", self.text,
                   "--run.dir", self.path("runs"), "--run.name", name, *tandem_program.TINY, *EXACT,
                   *settings]
        process = self.hosts.start("host0", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **self.environment})
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def ranks(self, name):
        """The processes of tandem in a host, without their wrappers."""
        return [process for process, command in self.hosts.processes(name).items() if command.startswith(tandem_program.TANDEM + " train")]

    def wait_for_steps(self, name):
        wait_until(lambda: os.path.exists(os.path.join(self.run_folder(name), "metrics.jsonl")) and len(losses(self.run_folder(name))) > 2)

    def expect_nothing_left(self, seconds=SOON_S):
        wait_until(lambda: all("tandem" not in command and "orted" not in command for host in self.hosts.names
                               for command in self.hosts.processes(host).values()), seconds)


class Runs(Ssh):
    def test_eight_ranks_on_four_hosts_give_the_weights_of_one_host(self):
        said = self.finish(self.start("four", "--train.steps", 4), 0)
        self.assertEqual(said[0], "run: 8 ranks on host0, host1, host2, host3 (ssh)")
        self.train("one", *EXACT, "--train.steps", "4")
        four, one = tensors_in(self.run_folder("four")), tensors_in(self.run_folder("one"))
        self.assertGreater(len(one), 10)
        self.assertEqual(four, one)
        self.expect_nothing_left()

    def test_a_stop_saves(self):
        process = self.start("stopped", "--train.steps", 10**6)
        self.wait_for_steps("stopped")
        process.send_signal(signal.SIGTERM)
        self.finish(process, STOPPED)
        self.expect_nothing_left()
        last = max(losses(self.run_folder("stopped")))
        self.finish(self.start("stopped", "--train.steps", last + 1), 0)
        self.assertEqual(max(losses(self.run_folder("stopped"))), last + 1)

    def test_a_spot_notice_on_one_host(self):
        """Metadata at its own address, on a host that says it is EC2's."""
        vendor = "/sys/devices/virtual/dmi/id/sys_vendor"
        self.hosts.replace("host1", vendor, "Amazon EC2\n", mode="444")
        self.addCleanup(self.hosts.run, "host1", ["umount", vendor])
        self.hosts.run("host1", ["ip", "address", "add", "169.254.169.254/32", "dev", "lo"])
        notice = os.path.join(self.hosts.folder, "notice")
        script = (f"import os, sys; sys.path.insert(0, {os.path.join(ROOT, 'tests', 'program')!r}); import fake_imds as f\n"
                  "class Answers(list):\n"
                  f"    def __getitem__(self, _): return f.NOTICE if os.path.exists({notice!r}) else f.NONE\n"
                  "imds = f.FakeImds(f.NONE, address=('169.254.169.254', 80)); imds.answers = Answers([0]); imds.server.serve_forever()")
        service = self.hosts.start("host1", [sys.executable, "-c", script])
        self.addCleanup(lambda: (service.kill(), service.wait()))
        watched = ["--run.watch_spot", "auto"]
        process = self.start("spot", "--train.steps", 10**6, *watched)
        self.wait_for_steps("spot")
        began = time.monotonic()
        with open(notice, "w"):
            pass
        output, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, STOPPED, errors)
        self.assertLess(time.monotonic() - began, SOON_S)
        self.assertRegex(errors, "tandem: host1: spot notice: EC2 will terminate this machine at ")
        os.remove(notice)
        last = max(losses(self.run_folder("spot")))
        self.finish(self.start("spot", "--train.steps", last + 1, *watched), 0)
        self.assertEqual(max(losses(self.run_folder("spot"))), last + 1)

    def lose(self, name, kill, code):
        """What run.sh says about the cause after a part of a job was killed."""
        process = self.start(name, "--train.steps", 10**6)
        self.wait_for_steps(name)
        began = time.monotonic()
        kill()
        said = self.finish(process, code)
        self.assertLess(time.monotonic() - began, SOON_S)
        ended = next(i for i, line in enumerate(said) if line.startswith("run: ended with "))
        self.assertRegex(said[ended], f"^run: ended with {code} .*; the same command goes on from the newest checkpoint$")
        return said[ended + 1:]

    def test_a_killed_rank(self):
        killed = []
        def kill():
            killed.append(self.ranks("host2")[0])
            os.kill(killed[0], signal.SIGKILL)
        [cause] = self.lose("rank", kill, 137)
        self.assertRegex(cause, rf"^run: rank [45] on host2 \(process {killed[0]}\) is gone, in ")
        self.expect_nothing_left()
        for host in self.hosts.names:
            self.assertEqual(self.hosts.run(host, ["sh", "-c", f"ls {records_in_memory(self.run_folder('rank'))}"], check=False).stdout, "")

    def test_a_killed_daemon(self):
        def kill():
            os.kill(next(process for process, command in self.hosts.processes("host1").items() if "orted" in command.split()[0]),
                    signal.SIGKILL)
        [cause] = self.lose("daemon", kill, LOST)
        self.assertRegex(cause, r"^run: rank [23] on host1 \(process \d+\) is gone, in ")
        self.expect_nothing_left()

    def test_a_cut_link_and_a_stop(self):
        """mpirun alone would notice the dead link after the grace."""
        self.addCleanup(self.hosts.mend, "host3")
        process = self.start("both", "--train.steps", 10**6)
        self.wait_for_steps("both")
        began = time.monotonic()
        self.hosts.cut("host3")
        process.send_signal(signal.SIGTERM)
        said = self.finish(process, LOST)
        self.assertLess(time.monotonic() - began, 60)
        self.assertIn("run: host3: lost; what the ranks were asked to save is not saved, the newest checkpoint stays", said)
        self.hosts.mend("host3")
        self.expect_nothing_left()

    def test_relative_paths_begin_where_the_job_was_started(self):
        command = [RUN, "--tandem", tandem_program.TANDEM, "--hosts", "host0:1,host1:1", "--", "train", "--data.path",
                   os.path.relpath(self.text, self.folder), "--run.name", "relative", *tandem_program.TINY, *EXACT, "--train.steps", 2]
        process = self.hosts.start("host0", command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.finish(process, 0)
        self.assertEqual(max(losses(self.run_folder("relative"))), 2)

    def test_a_folder_whose_name_has_other_characters(self):
        """Ranks on other hosts leave their marks in it, too."""
        runs = self.path("runs/lr=1e-3; c")
        said = self.finish(self.start("named", "--train.steps", 2, "--run.dir", runs), 0)
        self.assertEqual(len(said), 2, said)
        self.assertEqual(os.listdir(runs), ["named"])

    def test_a_cut_link(self):
        self.addCleanup(self.hosts.mend, "host3")
        [cause] = self.lose("link", lambda: self.hosts.cut("host3"), LOST)
        self.assertRegex(cause, r"^run: rank [67] on host3 \(process \d+\) is gone, in ")
        self.expect_nothing_left()


class Faults(Ssh):
    """Nothing is trained, and each line names the host, the value and what to do."""

    def refused(self, code, *patterns, name="refused", settings=(), **how):
        said = self.finish(self.start(name, "--train.steps", 2, *settings, **how), code)
        for pattern in patterns:
            self.assertTrue(any(re.search("^run: " + pattern, line) for line in said), (pattern, said))
        self.assertEqual(len(said), len(patterns), said)
        self.assertFalse(os.path.exists(os.path.join(self.run_folder(name), "metrics.jsonl")))

    def test_a_silent_host(self):
        self.addCleanup(self.hosts.mend, "host2")
        self.hosts.cut("host2")
        self.refused(LOST, r"host2: silent for 2 s \(.*\): start it, or take it off the list", options=["--wait", "2"])
        said = self.finish(self.start("fewer", "--train.steps", 2, options=["--wait", "2", "--min-hosts", "3"]), 0)
        self.assertIn("; goes on without it", said[0])
        self.assertEqual(said[1], "run: 6 ranks on host0, host1, host3 (ssh)")

    def test_a_refused_login(self):
        self.hosts.replace("host1", os.path.join(self.hosts.folder, "ssh", "user.pub"), "")
        self.addCleanup(self.hosts.run, "host1", ["umount", os.path.join(self.hosts.folder, "ssh", "user.pub")])
        began = time.monotonic()
        self.refused(CONFIG, r"host1: ssh is refused \(.*Permission denied.*\): let this user log in with a key")
        self.assertLess(time.monotonic() - began, 10)

    def test_an_unshared_run_folder(self):
        said = self.finish(self.start("apart", "--train.steps", 2, "--run.dir", "/tmp/runs"), DATA)
        self.assertEqual(said, [f"run: host{i}: /tmp/runs is not the folder of host0: put run.dir on storage that all hosts share"
                                for i in (1, 2, 3)])

    def test_a_slow_link(self):
        self.addCleanup(self.hosts.shape, "host1", "10gbit")
        self.hosts.shape("host1", "100mbit")
        process = self.start("slow", "--train.steps", 2, "--dist.min_gb_s", "0.1", hostfile="host0 slots=1\nhost1 slots=1\n")
        output, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, CONFIG, errors)
        # 2 ranks send each byte once: at most 12.5 MB/s, and the 256 kB that the shaper lets through at once.
        self.assertRegex(errors, r"tandem: the bus bandwidth of an all_reduce of \d+ KiB on 2 ranks is 0\.0[01]\d* GB/s, less than "
                                 r"dist.min_gb_s = 0.1; likely causes: ")
        self.assertFalse(os.path.exists(os.path.join(self.run_folder("slow"), "metrics.jsonl")))

    def test_hosts_with_one_name(self):
        self.addCleanup(self.hosts.run, "host3", ["hostname", "host3"])
        self.hosts.run("host3", ["hostname", "host1"])
        self.refused(CONFIG, "host3: its hostname is host1, like that of host1: give each host a name of its own")

    def test_another_program(self):
        with open(tandem_program.TANDEM, "rb") as file:
            other = file.read() + b" "
        copy = os.path.join(self.hosts.folder, "other")
        with open(copy, "wb") as file:
            file.write(other)
        os.chmod(copy, 0o755)
        self.hosts.run("host1", ["mount", "--bind", copy, tandem_program.TANDEM])
        self.addCleanup(self.hosts.run, "host1", ["umount", tandem_program.TANDEM])
        self.refused(CONFIG, r"host1: .*tandem or launch/rank.sh is \w{16}, on host0 \w{16}: copy one build to all hosts")

    def test_a_dataset_that_is_damaged_on_one_host(self):
        """In its middle: of it, the checks before the start read the first and the last megabyte."""
        text, data, damaged = (self.path(name) for name in ["long.txt", "long.h5", "damaged.h5"])
        with open(text, "w") as file:
            file.write("a long text\n" * 400000)
        self.check(tandem_program.run("prepare", "text", "--input", text, "--output", data, "--tokenizer", "bytes"))
        with open(data, "rb") as file:
            content = bytearray(file.read())
        content[len(content) // 2] ^= 1
        with open(damaged, "wb") as file:
            file.write(content)
        self.hosts.run("host1", ["mount", "--bind", damaged, data])
        self.addCleanup(self.hosts.run, "host1", ["umount", data])
        process = self.start("damaged", "--train.steps", 2, "--data.path", data)
        said = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, DATA, said)
        self.assertRegex(said, r"(?m)^tandem: rank 2: \S+long.h5: the content does not have the hash")

    def test_three_faults_at_once(self):
        self.addCleanup(self.hosts.run, "host1", ["mount", "-o", "remount,size=1g", "/dev/shm"])
        self.hosts.run("host1", ["mount", "-o", "remount,size=64m", "/dev/shm"])
        self.hosts.replace("host2", "/usr/bin/nvidia-smi", SMI.format(processes="echo 17, python3", pending="No"))
        self.addCleanup(self.hosts.run, "host2", ["umount", "/usr/bin/nvidia-smi"])
        self.hosts.replace("host3", "/usr/bin/nvidia-smi", SMI.format(processes=":", pending="Yes"))
        self.addCleanup(self.hosts.run, "host3", ["umount", "/usr/bin/nvidia-smi"])
        hostfile = "host1 slots=2\nhost2 slots=2\nhost3 slots=2\n"
        self.refused(CONFIG, r"GPUs are in use on host2: waits 2 s at most \(--wait\)", r"host1: /dev/shm has 64 MiB, at least 1024 are needed", "host1: 2 ranks, but 0 GPUs",
                     r"host2: a GPU is in use by process 17, python3: end it, or wait for it",
                     r"host3: GPU 00000000:10:1C.0 has an ECC remapping that is pending", hostfile=hostfile, options=["--wait", "2"])

    def test_an_old_driver(self):
        said = subprocess.run([tandem_program.TANDEM, "--version"], capture_output=True, text=True, check=True).stdout
        cuda = re.search(r"GPU +CUDA (\d+)", said)
        if not cuda:
            self.skipTest("this build has no CUDA")
        self.hosts.replace("host1", "/usr/bin/nvidia-smi", SMI.format(processes=":", pending="No").replace("580.95.05", "440.33.01"))
        self.addCleanup(self.hosts.run, "host1", ["umount", "/usr/bin/nvidia-smi"])
        self.refused(CONFIG, rf"host1: its driver is 440.33.01, this build needs [\d.]+ for CUDA {cuda[1]}: update the driver", hostfile="host1 slots=2\n")

    def test_a_machine_with_too_few_gpus(self):
        path = "/sys/devices/virtual/dmi/id/product_name"
        self.hosts.replace("host1", path, "p4d.24xlarge\n", mode="444")
        self.addCleanup(self.hosts.run, "host1", ["umount", path])
        self.refused(CONFIG, "host1: has 0 GPUs, a p4d.24xlarge has 8: replace the host")


class Efa(Ssh):
    """Hosts that look as if they had GPUs and EFA, and a program that writes NCCL's log as such hosts do."""
    PROGRAM = """#!/bin/bash
case "$*" in *--help* | *--check*) exec '{tandem}' "$@" ;; esac
rank=${{OMPI_COMM_WORLD_RANK:?}}
log=${{NCCL_DEBUG_FILE:-/dev/null}} log=${{log//%h/$(hostname)}} log=${{log//%p/$$}}
echo "$rank $NCCL_NET,$FI_PROVIDER" >>{folder}/environment
cat {folder}/nccl-$rank >>"$log"
sleep {seconds}
"""
    environment = {"BASH_FUNC_ulimit%%": UNLIMITED}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for host in ["host0", "host1"]:
            cls.hosts.replace(host, os.path.expanduser("~/.bashrc"), f"ulimit {UNLIMITED}; export -f ulimit\n")  # for ssh's commands
            cls.hosts.replace(host, "/usr/bin/nvidia-smi", SMI.format(processes=":", pending="No"))
            cls.hosts.replace(host, "/opt/amazon/efa/bin/fi_info", "#!/bin/sh\necho libfabric: 2.1.0amzn1.0\n")
            cls.hosts.run(host, ["sh", "-c", "mkdir -p /opt/amazon/ofi-nccl/lib; cd /opt/amazon/ofi-nccl/lib;"
                                 "printf '\\0aws-ofi-nccl 1.20.0\\0' > libnccl-net.so; printf 'NCCL version 2.29.3+cuda13.0' > libnccl.so.2"])
            cls.hosts.replace(host, "/sys/class/infiniband/efa0/port", "")
            cls.hosts.run(host, ["sh", "-c", "mkdir -p /run/efa /sys/class/infiniband/efa0/device; ln -s /run/efa /sys/class/infiniband/efa0/device/driver"])

    def job(self, name, *logs, seconds=3, **how):
        """Starts a rank on each of two hosts; each says one of `logs` as NCCL."""
        for rank, text in enumerate(logs):
            with open(self.path(f"nccl-{rank}"), "w") as file:
                file.write(text)
        if os.path.exists(self.path("environment")):
            os.remove(self.path("environment"))
        program = write_program(self.path("program"),
                                self.PROGRAM.format(tandem=tandem_program.TANDEM, folder=self.folder, seconds=seconds))
        return self.start(name, hostfile="host0 slots=1\nhost1 slots=1\n", tandem=program, **how)

    def seen(self):
        with open(self.path("environment")) as file:
            return sorted(file.read().splitlines())

    def test_a_good_network(self):
        said = self.finish(self.job("good", NCCL_LOG, NCCL_LOG), 0)
        self.assertEqual(said[0], "run: libfabric 2.1.0amzn1.0, NCCL 2.29.3, network plugin 1.20.0 in /opt/amazon/ofi-nccl/lib/libnccl-net.so")
        self.assertIn("run: NCCL 2.27.7+cuda12.9, aws-ofi-nccl 1.16.3: network AWS Libfabric, 4 EFA devices", said)
        self.assertEqual(self.seen(), ["0 AWS Libfabric,efa", "1 AWS Libfabric,efa"])

    def test_a_name_with_an_equals_sign(self):
        said = self.finish(self.job("lr=1e-3", NCCL_LOG, NCCL_LOG), 0)
        self.assertIn("run: NCCL 2.27.7+cuda12.9, aws-ofi-nccl 1.16.3: network AWS Libfabric, 4 EFA devices", said)

    def test_a_silent_fall_back_to_tcp_ends_the_job(self):
        began = time.monotonic()
        said = self.finish(self.job("tcp", NCCL_LOG, NCCL_LOG.replace("AWS Libfabric", "Socket"), seconds=60), CONFIG)
        self.assertLess(time.monotonic() - began, 30)
        self.assertTrue(any(line.startswith("run: host1: NCCL uses the network 'Socket', not EFA: see") for line in said), said)
        wait_until(lambda: not any("program" in command for host in self.hosts.names for command in self.hosts.processes(host).values()))

    def test_sockets_on_request(self):
        self.finish(self.job("sockets", NCCL_LOG, NCCL_LOG, seconds=0, options=["--net", "sockets"]), 0)
        self.assertEqual(self.seen(), ["0 Socket,", "1 Socket,"])

    def test_a_host_without_efa(self):
        driver = "/sys/class/infiniband/efa0/device/driver"
        self.hosts.run("host1", ["ln", "-sfn", "/run/mlx5_core", driver])
        self.addCleanup(self.hosts.run, "host1", ["ln", "-sfn", "/run/efa", driver])
        said = self.finish(self.job("without", "", ""), CONFIG)
        self.assertEqual(said, ["run: host1: has no EFA device: start it with EFA interfaces, or take --net sockets"])


if __name__ == "__main__":
    tandem_program.main()
