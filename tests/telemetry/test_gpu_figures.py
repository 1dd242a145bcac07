#!/usr/bin/env python3
"""The figures of GPUs in the metrics of a run, from libraries in place of NVML.

    test_gpu_figures.py PATH_TO_TANDEM PATH_TO_STAND_IN PATH_TO_OLD_STAND_IN [unittest arguments]
"""
import json
import os
import re
import subprocess
import sys
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "program"), os.path.join(TESTS, "launch", "alarms")]
import tandem_program
import test_alarms
from tandem_program import MPI_ENV, STOPPED, TINY, Workspace, metrics

DEADLINE = 60  # seconds that nothing here takes, but on a machine that hangs
STAND_IN = OLD_STAND_IN = ""


def watching(gpus, library=None):
    return {"TANDEM_NVML": library or STAND_IN, "CUDA_VISIBLE_DEVICES": gpus}


class Watched(Workspace):
    def run_until(self, name, is_there, ranks, environment, *settings):
        """Trains until is_there(lines, stderr), and stops. Returns both, of all of the run."""
        stop, errors = self.path(name + ".stop"), self.path(name + ".stderr")
        command = ["timeout", "-k", "5", "120", "mpirun", "-np", str(ranks)] if ranks > 1 else []
        with open(errors, "w") as file:
            job = subprocess.Popen([*command, tandem_program.TANDEM, "train", "--data.path", self.text, "--run.dir", self.path("runs"),
                                    "--run.name", name, *TINY, "--run.device", "cpu", "--run.stop_file", stop, "--log.gpu_every_s", "0.001",
                                    "--train.steps", str(10**8), *settings], env=dict(MPI_ENV, **environment), stdout=file, stderr=file)
        self.addCleanup(job.kill)

        def written():
            with open(errors) as file:
                has_begun = os.path.exists(os.path.join(self.run_folder(name), "metrics.jsonl"))
                return [line for line in metrics(self.run_folder(name)) if "loss" in line] if has_begun else [], file.read()

        end = time.monotonic() + DEADLINE
        while not is_there(*written()):
            self.assertIsNone(job.poll(), written())
            self.assertLess(time.monotonic(), end, written())
            time.sleep(0.02)
        open(stop, "w").close()
        self.assertEqual(job.wait(DEADLINE), STOPPED, written())
        return written()

    def monitored_run(self):
        """(text of each rank's file for Prometheus, while the run goes on; lines for CloudWatch) of ranks with GPUs 7, 1 and 2."""
        folder, emf, files = self.path("monitored/prometheus"), self.path("monitored/emf"), {}

        def is_there(lines, _):
            for name in os.listdir(folder) if os.path.exists(folder) else []:
                if name.endswith(".prom"):
                    with open(os.path.join(folder, name)) as file:
                        files[name] = file.read()
            return len(files) == 3 and all("gpu_power_watts" in text for text in files.values()) and \
                any(line["gpu"]["samples"]["least"] > 0 for line in lines)
        os.makedirs(self.path("monitored"))
        self.run_until("monitored", is_there, 3, watching("7,1,2"), "--log.prometheus", folder, "--log.emf", emf, "--run.usd_per_node_hour", "36")
        self.assertEqual(os.listdir(folder), [], "the files are removed at the end")
        with open(emf) as file:
            return files, file.read().splitlines()


class GpuFigures(Watched):
    def test_figures_belong_to_their_rank(self):
        """Ranks 0 to 3 have GPUs 7, 5 (an ECC error), 3 (no energy counter) and 1 (hot)."""
        lines, printed = self.run_until(
            "four", lambda lines, printed: len([line for line in lines if line["gpu"]["samples"]["least"] > 1]) > 1, 4, watching("7,5,3,1"))
        gpu = [line["gpu"] for line in lines if line["gpu"]["samples"]["least"] > 1][-1]
        for figure, values in [("use", [0.75, 0.55, 0.35, 0.15]), ("memory_bytes", [i << 30 for i in (8, 6, 4, 2)]),
                               ("power_w", [107.5, 105.5, 103.5, 101.5]), ("temperature_c", [47, 45, 43, 41]),
                               ("clock_mhz", [1700, 1500, 1300, 1100]), ("throttled", [0, 0, 0, 1]), ("ecc_errors", [0, 2, 0, 0]),
                               ("remapped_pending", [0, 1, 0, 0]), ("remapped_failed", [0] * 4), ("xids", [0] * 4)]:
            self.assertEqual([gpu[figure]["least"], gpu[figure]["greatest"]], [min(values), max(values)], figure)
            self.assertAlmostEqual(gpu[figure]["mean"], sum(values) / 4, delta=1e-9 * max(values), msg=figure)  # of 4 means of equal numbers
        self.assertEqual(gpu["throttled_ranks"], [3])
        self.assertIsNone(lines[-1]["joules_per_token"])
        said = re.findall(r"^tandem: (rank \d) on \S+, GPU (\S+): (.*)", printed, re.MULTILINE)
        self.assertEqual(sorted(said), [("rank 1", "00000000:50:00.0", "an ECC error of its memory was not corrected"),
                                        ("rank 3", "00000000:10:00.0", "its clock is held down by software power cap, hardware slowdown, "
                                         "software thermal slowdown, hardware thermal slowdown, hardware power brake")])
        self.assertEqual(re.findall("not known.*", printed), ["not known   of GPUs: energy_j (rank 2); NVML or the GPU does not have it"])
        self.assertIn(b"train/gpu/power_w/mean", tandem_program.events(self.run_folder("four")))

    def test_joules_of_a_token(self):
        """A look at GPU 7 costs 8 J, one at GPU 0 costs 1 J."""
        lines, _ = self.run_until(
            "joules", lambda lines, _: len([line for line in lines if line["gpu"]["samples"]["least"] > 0]) > 9, 2, watching("7,0"))
        begun = [line["gpu"]["samples"]["least"] > 0 for line in lines].index(True)
        for before, line in zip(lines[begun:], lines[begun + 1:]):
            samples, energy = line["gpu"]["samples"], line["gpu"]["energy_j"]
            few, many = samples["least"], samples["greatest"]
            if few > 0 and before["gpu"]["samples"]["least"] > 0:  # then no energy of the line before is left
                self.assertIn((energy["least"], energy["greatest"]), [(few, 8 * many), tuple(sorted((many, 8 * few)))])
                self.assertEqual(line["joules_per_token"], (energy["least"] + energy["greatest"]) / (line["tokens"] - before["tokens"]))

    def test_a_library_that_hangs_is_named_and_delays_nothing(self):
        """GPU 6 hangs for ever, GPU 2 has an Xid. Alone or not, the run ends."""
        named = re.compile(r"^tandem: rank 0 on \S+, GPU 00000000:60:00.0: NVML has not answered for .*$", re.MULTILINE)
        xid = re.compile(r"^tandem: rank 1 on \S+, GPU 00000000:20:00.0: the driver reports Xid 79;.*$", re.MULTILINE)
        for ranks in 1, 2:
            def is_there(lines, printed):
                counts = [line["gpu"]["xids"]["greatest"] for line in lines if line["gpu"]["xids"]]
                return named.search(printed) and lines and (ranks == 1 or counts[-1:] == [2])

            lines, printed = self.run_until(f"hangs-{ranks}", is_there, ranks, watching("6,2"))
            self.assertEqual((len(named.findall(printed)), len(xid.findall(printed))), (1, ranks - 1), printed)
            self.assertEqual({line["gpu"]["samples"]["least"] for line in lines}, {0})
            self.assertEqual({line["joules_per_token"] for line in lines}, {None})
            powers = [line["gpu"]["power_w"] for line in lines if line["gpu"]["power_w"]]
            self.assertEqual({power["mean"] for power in powers}, {102.5} if ranks > 1 else set())

    def test_without_a_library_the_run_goes_on(self):
        lines, printed = self.run_until("none", lambda lines, _: lines and "gpu" not in lines[-1], 2, watching("7,5", "/nowhere/libnvidia-ml.so.1"))
        self.assertNotIn("joules_per_token", lines[-1])
        self.assertEqual(len(re.findall("^tandem: rank 0 on .*: no figures: /nowhere/libnvidia-ml.so.1: .*", printed, re.MULTILINE)), 1, printed)
        self.assertEqual(printed.count("no figures"), 1, printed)

    def test_an_old_library(self):
        lines, printed = self.run_until("old", lambda lines, _: lines and lines[-1]["gpu"]["samples"]["least"] > 0, 1, watching("1", OLD_STAND_IN))
        gpu = [line["gpu"] for line in lines if line["gpu"]["samples"]["least"] > 0][-1]
        self.assertEqual([name for name, figure in gpu.items() if figure is None], ["energy_j", "remapped_pending", "remapped_failed", "xids"])
        self.assertEqual(gpu["throttled_ranks"], [0])
        self.assertEqual(printed.count("not known   of GPUs: energy_j (rank 0), remapped_pending (rank 0), remapped_failed (rank 0), xids (rank 0);"), 1)

    def test_monitors(self):
        files, lines = self.monitored_run()
        host = re.escape(os.uname().nodename)
        for rank, gpu, watts in [(0, 7, "107.5"), (1, 1, "101.5"), (2, 2, "102.5")]:
            text = files[f"tandem_monitored_{rank}.prom"]
            self.assertRegex(text, fr'(?m)^tandem_gpu_power_watts{{run="monitored",rank="{rank}",host="{host}",gpu="{gpu}"}} {watts}$')
            self.assertEqual("tandem_loss{" in text, rank == 0)
        whole = [json.loads(line) for line in lines]
        names = {"Run": set(), "Run Host": set()}
        for line in whole:
            [directive] = line["_aws"]["CloudWatchMetrics"]
            [dimensions] = directive["Dimensions"]
            defined = [metric["Name"] for metric in directive["Metrics"]]
            self.assertEqual(set(line), {"_aws", *dimensions, *defined})
            names[" ".join(dimensions)] |= set(defined)
        self.assertEqual((names["Run"], names["Run Host"]), (test_alarms.RUN, test_alarms.HOST), "those of launch/alarms")
        last = [line for line in whole if "GpuUse" in line][-1]
        self.assertEqual([last[name] for name in ("GpuLeastUse", "GpuPower", "GpuTemperature", "GpuThrottled")], [15.0, 311.5, 47.0, 1])
        self.assertEqual([line["Xid"] for line in whole if "Xid" in line], [1, 1], "of GPU 2")

    def test_weights_keep_their_bits(self):
        self.train("with", "--log.gpu_every_s", "0.001", ranks=2, environment=watching("7,1"))
        self.train("off", "--log.gpu_every_s", "0", ranks=2, environment=watching("7,1"))
        self.train("without", ranks=2)
        self.assertEqual([["gpu" in line for line in metrics(self.run_folder(name)) if "lr" in line] for name in ("with", "off", "without")],
                         [[True] * 20, [False] * 20, [False] * 20])
        self.assert_same_bits("with", "off")
        self.assert_same_bits("with", "without")


if __name__ == "__main__":
    STAND_IN, OLD_STAND_IN = sys.argv.pop(2), sys.argv.pop(2)
    tandem_program.main()
