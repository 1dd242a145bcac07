#!/usr/bin/env python3
"""launch/run/nccl_log.py: what NCCL's own log tells of its network."""
import os
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../../launch/run"), os.path.join(HERE, "..")]
import nccl_log
from instances import machine_types
from recorded import NCCL_LOG


class NcclLogs(unittest.TestCase):
    WRONG = [
        (("Using network AWS Libfabric", "Using network Socket"), "NCCL uses the network 'Socket', not EFA"),
        (("found 4 nics", "found 1 nics"), "NCCL found 1 EFA devices of 4"),
        (("provider is efa", "provider is tcp"), "libfabric uses the provider 'tcp', not efa"),
        (("/0/GDRDMA", "/0"), "no GPUDirect RDMA ('via NET/AWS Libfabric/0')"),
        (("NCCL INFO Using network AWS Libfabric", "NCCL WARN Error: network AWS Libfabric not found."), "NCCL has no network 'AWS Libfabric'"),
    ]

    def read(self, *texts, ranks=None, machine="p4d.24xlarge"):
        with tempfile.TemporaryDirectory() as folder:
            for i, text in enumerate(texts):
                with open(os.path.join(folder, f"host{i}.7.log"), "w") as file:
                    file.write(text)
            return nccl_log.NcclLog(folder, ranks or len(texts), machine_types().get(machine, {})).problems()

    def test_a_good_one(self):
        self.assertEqual(self.read(NCCL_LOG, NCCL_LOG.replace("AWS Libfabric", "Libfabric")), [])
        self.assertEqual(nccl_log.summary(NCCL_LOG), "NCCL 2.27.7+cuda12.9, aws-ofi-nccl 1.16.3: network AWS Libfabric, 4 EFA devices")

    def test_a_log_that_cannot_be_read_and_the_end_of_looking(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "host0.6.log"))
            path = os.path.join(folder, "host0.7.log")
            log = nccl_log.NcclLog(folder, 1, {"efa": 4})
            for later, text, wrong in [(0, NCCL_LOG, 0), (nccl_log.WATCH_S, "Using network Socket\n", 1),
                                       (nccl_log.WATCH_S + 1, "Using network Socket\n", 0)]:
                with open(path, "w") as file, mock.patch.object(nccl_log.time, "monotonic", lambda: 1000 + later):
                    file.write(text)
                    file.flush()
                    self.assertEqual(len(log.problems()), wrong)

    def test_every_beginning_of_a_good_one(self):
        for end in range(len(NCCL_LOG)):
            self.assertEqual(self.read(NCCL_LOG[:end]), [], NCCL_LOG[:end])

    def test_what_is_wrong(self):
        for change, text in self.WRONG:
            with self.subTest(text):
                found = self.read(NCCL_LOG, NCCL_LOG.replace(*change))
                self.assertEqual(len(found), 1)
                self.assertTrue(found[0].startswith(f"host1: {text}: see"), found[0])

    def test_machine_types_without_gpudirect_rdma(self):
        """Only P types from p4d on have it, and not the small p5.4xlarge; of other machines nothing is known."""
        log = NCCL_LOG.replace("/0/GDRDMA", "/0")
        for machine, count in [("p4d.24xlarge", 1), ("p5en.48xlarge", 1), ("p5.4xlarge", 0), ("g5.48xlarge", 0), ("g6e.48xlarge", 0), ("unknown", 0)]:
            self.assertEqual(len(self.read(log.replace("found 4", "found 32"), machine=machine)), count, machine)


if __name__ == "__main__":
    unittest.main()
