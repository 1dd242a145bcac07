#!/usr/bin/env python3
"""A spot notice of EC2 saves and stops a run, whatever the metadata service did before.

    test_spot.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import signal
import subprocess
import time

import tandem_program
from fake_imds import BROKEN, HANG, NONE, NOTICE, UNAUTHORIZED, FakeImds
from tandem_program import CONFIG, MPI_ENV, STOPPED, Workspace, metrics

# A constant learning rate, so that the last step may be any.
SETTINGS = ["--model.kind", "mlp", "--model.layers", "1", "--model.width", "8", "--log.tensorboard", "false", "--run.device", "cpu",
            "--train.log_every", "50", "--train.micro_batch", "6", "--optim.schedule", "constant", "--dist.reduce", "exact"]


class Spot(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.make_digits()

    def start(self, name, imds):
        command = ["timeout", "-k", "5", "120", "mpirun", "-np", "2", tandem_program.TANDEM, "train", "--data.path", self.digits,
                   "--run.dir", self.path("runs"), "--run.name", name, *tandem_program.QUICK, *SETTINGS,
                   "--run.watch_spot", "auto", "--train.steps", str(10**8)]
        job = subprocess.Popen(command, env=dict(MPI_ENV, TANDEM_IMDS=imds.address), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
        self.addCleanup(job.terminate)
        return job

    def wait_until(self, true, job):
        deadline = time.monotonic() + 60
        while not true():
            self.assertIsNone(job.poll(), "the run ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def step(self, name):
        """The last one that was logged."""
        folder = self.run_folder(name)
        return max((line["step"] for line in metrics(folder)), default=0) if os.path.exists(os.path.join(folder, "metrics.jsonl")) else 0

    def saved_step(self, name):
        """The step of the newest checkpoint."""
        return max(int(entry[5:]) for entry in os.listdir(os.path.join(self.run_folder(name), "checkpoints")) if entry[5:].isdigit())

    def test_a_notice_saves_the_run_and_the_same_command_goes_on(self):
        with FakeImds(UNAUTHORIZED, NONE, BROKEN, HANG, NONE) as imds:
            job = self.start("spot", imds)
            self.wait_until(lambda: len(imds.answers) == 1 and self.step("spot") > 0, job)
            imds.answers, noticed = [NOTICE], time.monotonic()
            output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, STOPPED, output + errors)
        self.assertLess(time.monotonic() - noticed, 15)
        ours = [line.split(": ", 2)[2] for line in errors.splitlines() if line.startswith("tandem: ")]
        where = f"the metadata service {imds.address} "
        self.assertEqual(len(ours), 3, errors)
        self.assertIn(where + "has a notice without action and time", ours[0])
        self.assertIn(where + "does not answer", ours[1])
        self.assertEqual(ours[2], "spot notice: EC2 will terminate this machine at 2026-01-02T03:04:05Z; saving, then stopping")
        self.assertEqual(imds.requests[:4], [("PUT", 200), ("GET", 401), ("PUT", 200), ("GET", 404)])
        stopped = self.saved_step("spot")

        with FakeImds(NONE) as imds:  # another machine
            job = self.start("spot", imds)
            self.wait_until(lambda: self.step("spot") > stopped + 50, job)
            for process in self.processes_of("spot"):
                os.kill(process, signal.SIGUSR1)
            output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, STOPPED, output + errors)
        last = self.saved_step("spot")
        self.train("undisturbed", *SETTINGS, "--train.steps", last, ranks=2, data=self.digits)
        self.assertEqual(self.saved_step("undisturbed"), last)
        self.assertGreater(len(self.tensors("spot")), 0)
        self.assertEqual(self.tensors("spot"), self.tensors("undisturbed"))

    def test_a_service_that_has_no_address_is_refused(self):
        for server in ["169.254.169.254", "somewhere:80", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:80x", "127.0.0.1:65536", ""]:
            result = self.train("nowhere", *SETTINGS, "--run.watch_spot", "auto", code=CONFIG, data=self.digits,
                                environment={"TANDEM_IMDS": server})
            self.assert_one_line(result, f'TANDEM_IMDS = "{server}" must be ADDRESS:PORT, such as 127.0.0.1:8080')


if __name__ == "__main__":
    tandem_program.main()
