#!/usr/bin/env python3
"""The pretend hosts on which launch/ is tested: that they are apart, that they reach each other, and that nothing is left."""
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import pretend_hosts
from pretend_hosts import Hosts
from supervised import wait_until

PING = ["ping", "-c", "1", "-W", "1"]
# Sends or receives 1 MB by TCP, and prints the seconds.
SEND = "import socket; socket.create_connection(('{}', 7000)).sendall(bytes(10**6))"
RECEIVE = """import socket, time
with socket.create_server(("", 7000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    begun, count = time.monotonic(), 0
    while part := connection.recv(65536):
        count += len(part)
    print(count, time.monotonic() - begun)"""


class PretendHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        pretend_hosts.require("ping", "sshd", "ssh")
        cls.hosts = Hosts(2, shm="64m")
        cls.addClassCleanup(cls.hosts.close)
        cls.hosts.start_sshd()

    def test_each_has_its_name_and_reaches_the_other(self):
        for name, other in [("host0", "host1"), ("host1", "host0")]:
            self.assertEqual(self.hosts.run(name, ["hostname"]).stdout, name + "\n")
            self.hosts.run(name, [*PING, other])
        self.assertNotIn(os.uname().nodename, self.hosts.names)

    def test_a_cut_link(self):
        self.hosts.cut("host1")
        self.assertNotEqual(self.hosts.run("host0", [*PING, "host1"], check=False).returncode, 0)
        self.hosts.mend("host1")
        self.hosts.run("host0", ["ping", "-c", "1", "-W", "5", "host1"])

    def test_a_shaped_link(self):
        self.hosts.shape("host1", "8mbit")
        for receiver, sender in [("host0", "host1"), ("host1", "host0")]:
            server = self.hosts.start(receiver, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
            server.stdout.readline()
            self.hosts.run(sender, [sys.executable, "-c", SEND.format(receiver)])
            count, seconds = server.communicate(timeout=60)[0].split()
            self.assertEqual(count, "1000000")
            # 1 MB at 1 MB/s, but for the 256 kB that the shaper lets through at once and what the sender's kernel held back.
            self.assertGreater(float(seconds), 0.6)
        self.hosts.shape("host1", "10gbit")

    def test_folders(self):
        for folder in pretend_hosts.PRIVATE:
            self.hosts.run("host0", ["touch", f"{folder}/of-host0"])
            self.assertFalse(os.path.exists(f"{folder}/of-host0"))
            self.assertNotEqual(self.hosts.run("host1", ["test", "-e", f"{folder}/of-host0"], check=False).returncode, 0)
        self.hosts.run("host0", ["touch", f"{self.hosts.folder}/of-all"])
        self.hosts.run("host1", ["test", "-e", f"{self.hosts.folder}/of-all"])
        size = self.hosts.run("host0", ["stat", "-f", "-c", "%b %S", "/dev/shm"]).stdout.split()
        self.assertEqual(int(size[0]) * int(size[1]), 64 * 2**20)
        self.assertEqual(self.hosts.run("host0", ["pwd"], cwd=self.hosts.folder).stdout, self.hosts.folder + "\n")

    def test_a_shared_folder(self):
        with tempfile.TemporaryDirectory() as folder, Hosts(1, shared=[folder]) as hosts:
            hosts.run("host0", ["touch", f"{folder}/seen"])
            self.assertTrue(os.path.exists(f"{folder}/seen"))

    def test_replaced_files(self):
        paths = ["/etc/hostname", "/usr/bin/no-such-program", "/sys/devices/virtual/no/such/folder/file"]
        for path in paths:
            self.hosts.replace("host0", path, "#!/bin/sh\necho replaced\n")
            self.assertEqual(self.hosts.run("host0", ["sh", "-c", path]).stdout, "replaced\n")
        for path in paths[1:]:
            self.assertFalse(os.path.exists(path))
            self.assertNotEqual(self.hosts.run("host1", ["test", "-e", path], check=False).returncode, 0)
        self.hosts.run("host0", ["ls", "/sys/devices/virtual/net", "/usr/bin/env"])  # what was beside them

    def test_ssh(self):
        self.assertEqual(self.hosts.run("host0", ["ssh", "host1", "hostname"], env={**os.environ, "MINE": "1"}).stdout, "host1\n")
        seen = self.hosts.run("host0", ["ssh", "host1", "env; exit 7"], env={**os.environ, "MINE": "1"}, check=False)
        self.assertEqual(seen.returncode, 7)
        self.assertIn("SSH_CONNECTION=10.77.0.1", seen.stdout)
        self.assertNotIn("MINE", seen.stdout)

    def test_signals_reach_a_command(self):
        command = self.hosts.start("host0", ["sh", "-c", "trap 'exit 9' USR1; echo ready; while :; do sleep 0.1; done"],
                                   stdout=subprocess.PIPE, text=True)
        command.stdout.readline()
        command.send_signal(signal.SIGUSR1)
        command.communicate(timeout=10)
        self.assertEqual(command.returncode, 9)


class End(unittest.TestCase):
    """Nothing is left, also of processes that no signal but SIGKILL ends and that are in sessions of their own."""
    DEAF = ["setsid", "sh", "-c", "trap '' TERM INT HUP; sleep 1000 & sleep 1000"]

    def setUp(self):
        pretend_hosts.require()

    def test_close(self):
        with Hosts(2) as hosts:
            command = hosts.start("host1", self.DEAF)
            wait_until(lambda: sum("sleep 1000" == command for command in hosts.processes("host1").values()) == 2)
            self.assertEqual(hosts.processes("host0"), {})
            inside = list(map(pretend_hosts.namespace, [hosts.bridge.pid, *(holder.pid for holder in hosts.holders.values())]))
            self.assertEqual(len({None, pretend_hosts.namespace(os.getpid()), *inside}), 5)  # three of their own
        self.assertEqual(command.wait(timeout=0), -signal.SIGKILL)
        self.assertEqual(pretend_hosts.members(set(inside)), [])
        self.assertFalse(os.path.exists(hosts.folder))
        hosts.close()  # a second time

    def test_hosts_that_cannot_be_made(self):
        with self.assertRaises(RuntimeError):
            Hosts(2, shared=["/tmp/no/such/folder"])

    def test_a_killed_test(self):
        script = f"""import sys, time; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
from pretend_hosts import Hosts
hosts = Hosts(1)
hosts.start("host0", {self.DEAF})
print(hosts.holders["host0"].pid, hosts.folder, flush=True)
time.sleep(1000)"""
        test = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        self.addCleanup(test.kill)
        holder, folder = test.stdout.readline().split()
        inside = {pretend_hosts.namespace(holder)}
        wait_until(lambda: len(pretend_hosts.members(inside)) > 1)
        test.kill()
        wait_until(lambda: not os.path.exists(folder))
        self.assertEqual(pretend_hosts.members(inside), [])
        test.communicate(timeout=10)


class Probe(unittest.TestCase):
    def setUp(self):
        for name in ["geteuid", "environ"]:
            self.addCleanup(setattr, os, name, getattr(os, name))

    def test_a_skip_names_its_reason_or_fails(self):
        os.environ = {**os.environ, "TANDEM_REQUIRE_CLUSTER": "0"}
        os.geteuid = lambda: 1
        with self.assertRaisesRegex(unittest.SkipTest, "pretend hosts need root"):
            pretend_hosts.require()
        os.environ = {**os.environ, "TANDEM_REQUIRE_CLUSTER": "1"}
        with self.assertRaisesRegex(AssertionError, "TANDEM_REQUIRE_CLUSTER=1, but pretend hosts need root"):
            pretend_hosts.require()
        os.geteuid = lambda: 0
        self.assertRegex(pretend_hosts.why_not("no-such-program"), r"not installed: .*no-such-program \(launch/setup")


if __name__ == "__main__":
    unittest.main(verbosity=2)
