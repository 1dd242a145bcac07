#!/usr/bin/env python3
"""launch/run/nodes.py, and the scripts that it runs on hosts: here on this machine."""
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
LAUNCH = os.path.join(HERE, "../../../launch")
sys.path[:0] = [os.path.join(LAUNCH, "run"), os.path.join(HERE, ".."), os.path.join(HERE, "../../program")]
import nodes
import pretend_hosts
from errors import CONFIG, TEMPORARY, Failure
from hosts import Host, Platform
from supervised import is_alive, wait_until
from tandem_program import write_program


class Gpus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def facts(self, smi, wait):
        """Of this machine with this nvidia-smi, which finds a folder of its own in $here; and what is said meanwhile."""
        write_program(os.path.join(self.folder, "nvidia-smi"), f"#!/bin/bash\nhere={self.folder}\n{smi}\n")
        with mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}"), mock.patch.object(nodes, "say") as say:
            platform, asked = Platform("local", "", ""), ["/none"] * 4
            [host] = nodes.ask_all(platform, platform.hosts(), asked, 0, 0)
            nodes.wait_for_gpus(platform, [host], asked, wait)
        return host.facts, [call[0][0] for call in say.call_args_list]

    def test_a_gpu_that_a_dying_process_still_holds(self):
        """It is asked again, within the time for it."""
        uses = 'if [[ $1 == *compute-apps* ]]{}; then echo "17, tandem"; fi'
        facts, said = self.facts(uses.format(' && mkdir "$here/first"'), 60)
        self.assertNotIn("gpu_process", facts)
        self.assertIn("cores", facts)
        self.assertEqual(said, ["GPUs are in use on localhost: waits 60 s at most (--wait)"])
        for wait in (0, 1):
            self.assertEqual(self.facts(uses.format(""), wait)[0]["gpu_process"], ["17, tandem"])

    def test_questions_that_take_long_are_asked_at_once(self):
        """Each of three waits for the others."""
        facts = self.facts('mkdir "$here/$1"; until [ "$(ls -d "$here"/--query-* | wc -l)" = 3 ]; do sleep 0.1; done\n'
                           'case $1 in *compute-apps*) echo "17, tandem" ;; *rows*) echo "1C.0, Yes" ;; *) echo "40960, 580.95.05" ;; esac', 0)[0]
        self.assertEqual([facts.get(key) for key in ("gpu", "gpu_process", "gpu_remapping")], [["40960 580.95.05"], ["17, tandem"], ["1C.0"]])


class Shared(unittest.TestCase):
    def find(self, answer):
        hosts, scripts = [Host("a"), Host("b")], []

        def call(platform, host, script, *_):
            scripts.append(script)
            return answer(host.name, script)
        with mock.patch.object(nodes, "call", call):
            try:
                nodes.find_unshared(None, hosts, "/runs")
                return [host.name for host in hosts if "not_shared" in host.facts]
            finally:
                self.is_removed = scripts[-1].startswith("rm ")

    def test_a_host_that_is_lost_is_no_fault_of_the_folder(self):
        for lost in "ab":
            for error in ["no answer within 10 s", "ssh: connect to host b port 22: No route to host"]:
                with self.assertRaises(Failure) as caught:
                    self.find(lambda name, _, lost=lost, error=error: ("", error) if name == lost else ("Welcome\nyes\n", ""))
                self.assertEqual((caught.exception.code, str(caught.exception)),
                                 (TEMPORARY, f"{lost}: lost before the start ({error}): start it, or take it off the list"))
                self.assertEqual(self.is_removed, lost == "b")

    def test_folders_that_are_not_shared_or_not_writable(self):
        self.assertEqual(self.find(lambda *_: ("yes\n", "")), [])
        self.assertEqual(self.find(lambda name, script: ("no\n" if name == "b" and script.startswith("for") else "Welcome\nyes\n", "")), ["b"])
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(Failure) as caught:
            place = os.path.join(folder, "runs")
            nodes.find_unshared(Platform("local", "", ""), [here := Host("localhost")], place)
            self.assertEqual((here.facts, os.listdir(place)), ({}, []))
            nodes.find_unshared(Platform("local", "", ""), [here], "/proc/none")
        self.assertEqual(caught.exception.code, CONFIG)
        self.assertRegex(str(caught.exception), r"^localhost: cannot write to /proc/none \(mkdir: .*\): choose another run.dir$")


class Ends(unittest.TestCase):
    def test_a_lost_host_is_not_waited_for_and_a_slow_one_is(self):
        seconds_of = {"lost": [], "slow": []}

        def call(platform, host, script, *arguments, seconds=nodes.ANSWER_S):
            seconds_of[host.name].append(seconds)
            return "", "no answer" * (host.name == "lost")
        with mock.patch.object(nodes, "call", call):
            nodes.end_job(Platform("ssh", "lost,slow", ""), [Host("lost"), Host("slow", answer_s=5)], "job", "records")
        self.assertEqual(seconds_of, {"lost": [nodes.END_S], "slow": [nodes.END_S + 5, nodes.ANSWER_S]})

    def test_the_end_of_a_job_waits_for_dying_processes(self):
        """One that has no environment any more, and stays until a process in its namespace is reaped, which its parent does not do yet."""
        pretend_hosts.require()
        job = {**os.environ, "TANDEM_JOB": f"test-{os.getpid()}"}
        script = "import subprocess, sys; process = subprocess.Popen(['sleep', '1000']); print(process.pid, flush=True); sys.stdin.read()"
        outer = subprocess.Popen(["unshare", "--pid", "--fork", "sleep", "1000"], env=job)
        [dying] = wait_until(lambda: Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split())
        with subprocess.Popen(["nsenter", "-t", dying, "--pid", "--no-fork", sys.executable, "-c", script], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as parent:
            parent.stdout.readline()
            end = subprocess.Popen([os.path.join(LAUNCH, "end_job.sh"), job["TANDEM_JOB"]])
            outer.wait()
            wait_until(lambda: not Path(f"/proc/{dying}/cmdline").read_text())
            time.sleep(1)
            self.assertEqual((end.poll(), is_alive(dying)), (None, True))
        self.assertEqual((end.wait(5), is_alive(dying)), (0, False))


if __name__ == "__main__":
    unittest.main()
