#!/usr/bin/env python3
"""Runs on the emulated GPU whose masters and optimizer state rest in the host's memory, against the same runs without.

    test_offload.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import subprocess
import sys
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, OUT_OF_MEMORY, TINY, Workspace, metrics, run  # noqa: E402

CUDA = ["--run.device", "cuda", "--train.graphs", "off"]
ON = ["--train.offload", "optimizer"]
GPT = [*TINY, "--train.global_batch", "12", "--optim.warmup_steps", "0", "--optim.schedule", "constant", "--train.steps", "6"]
FIGURES = "step", "loss", "grad_norm", "val_loss", "loss_scale", "skipped", "wire_bytes"


class Offload(Workspace):
    def figures(self, name):
        return [{key: line[key] for key in FIGURES if key in line} for line in metrics(self.run_folder(name))]

    def last(self, name):
        return next(line for line in reversed(metrics(self.run_folder(name))) if "loss" in line)

    def test_runs_have_the_same_bits(self):
        """Validations and checkpoints come between a step and the update that it leaves."""
        often = ["--train.eval_every", "2", "--checkpoint.every_steps", "3", "--train.log_every", "1"]
        for ranks, zero, precision, offload, more in [
                (1, 0, "bf16", "both", []), (2, 1, "fp16", "optimizer", ["--checkpoint.async", "false"]), (3, 3, "bf16", "both", []),
                (4, 2, "bf16", "both", ["--dist.tensor", "2"]), (2, 0, "f32", "activations", ["--dist.islands", "2", "--dist.sync_every", "1"])]:
            with self.subTest(ranks=ranks, zero=zero, precision=precision, offload=offload):
                settings = [*GPT, *CUDA, *often, "--dist.zero", zero, "--train.precision", precision,
                            "--train.recompute", "block", "--model.layers", "4", *more]
                kept, away = f"kept-{ranks}-{zero}", f"away-{ranks}-{zero}"
                self.train(kept, *settings, ranks=ranks)
                self.train(away, *settings, "--train.offload", offload, ranks=ranks)
                self.assertEqual(self.figures(kept), self.figures(away))
                self.assert_same_bits(kept, away)
                self.assertIn("exposed_copy_ms", self.last(away))

    def test_a_run_goes_on_with_it_and_without(self):
        settings = [*GPT, *CUDA, "--train.precision", "fp16", "--dist.zero", "2", "--train.eval_every", "3"]
        self.train("whole", *settings, ranks=2)
        for name, first, second in [("to-host", [], ON), ("from-host", ON, [])]:
            self.train(name, *settings, *first, "--train.steps", "3", ranks=2)
            self.train(name, *settings, *second, ranks=2)
            self.assert_same_bits("whole", name)

    def test_memory_moves_to_the_host(self):
        """A parameter has a master and two moments of 4 bytes; without masters the moments."""
        for precision, size, arrays in [("bf16", 2, 3), ("f32", 4, 2)]:
            settings = [*GPT, *CUDA, "--dist.zero", "1", "--train.precision", precision]
            self.train("all-" + precision, *settings, ranks=2)
            said = self.train("part-" + precision, *settings, *ON, ranks=2).stdout
            self.assertIn("; in the host's memory ", said)
            before, after = self.last("all-" + precision), self.last("part-" + precision)
            state = sum(before["memory"].get(name, 0) for name in ("masters", "optimizer")) - after["memory"]["optimizer"]
            self.assertNotIn("masters", after["memory"])
            self.assertNotIn("host_bytes", before)
            estimated = json.loads(self.check(run("estimate", *settings, *ON, "--json", "--data.path", self.text, "--ranks", "2",
                                                  "--gpu", "a100-40")).stdout)
            row = next(row for row in estimated["rows"] if row["given"])
            self.assertEqual(2 * row["host_bytes"], after["host_bytes"])
            self.assertEqual(row["host_bytes"], state)
            self.assertEqual(row["peak_bytes"], after["peak_bytes"])
            self.assertEqual(row["copied_bytes"], arrays * 4 * after["memory"]["parameters"] // size // 2)

    def test_what_it_does_not_go_with(self):
        for settings, said in [(["--train.offload", "both"], "train.offload = both moves .* set train.recompute = block"),
                               (["--train.graphs", "on"], "train.graphs = on is not possible with train.offload = optimizer"),
                               (["--dist.islands", "2"], "dist.islands = 2 is not possible with train.offload = optimizer, because")]:
            self.assert_one_line(self.train("no", *GPT, *ON, *settings, ranks=2, code=CONFIG), said)
        said = self.train("no", *GPT, *CUDA, *ON, "--train.precision", "bf16", code=OUT_OF_MEMORY,
                          environment={"TANDEM_SIMT_PINNED": "100000"})
        self.assert_one_line(said, "out of page-locked host memory: .* held: .* use fewer ranks on this host, or train.offload = none")
        said = self.train("cpu", *GPT, "--run.device", "cpu", *ON, "--train.steps", "1").stdout
        self.assertIn("train.offload changes nothing on a CPU", said)

    def test_a_control_group_leaves_too_little_memory(self):
        """A group of either version that leaves 256 MiB to two ranks. A GPT of 14.2 M parameters has 12 bytes of each on the host."""
        group, script = self.path("cgroup"), self.path("in_group")
        os.makedirs(os.path.join(group, "memory"))
        for name, number in [("memory.max", 256 << 20), ("memory.current", 0),
                             ("memory/memory.limit_in_bytes", 256 << 20), ("memory/memory.usage_in_bytes", 0)]:
            with open(os.path.join(group, name), "w") as file:
                file.write(str(number))
        with open(script, "w") as file:
            file.write(f'#!/bin/sh\nexec unshare --mount sh -c \'mount --bind "{group}" /sys/fs/cgroup && exec "$@"\' '
                       f'sh "{tandem_program.TANDEM}" "$@"\n')
        os.chmod(script, 0o755)
        if subprocess.run([script, "--help"], capture_output=True).returncode != 0:
            self.skipTest("mounts are not allowed here")
        large = ["--model.width", "512", "--model.layers", "4", "--model.vocab", "3000", "--train.precision", "bf16"]
        with mock.patch.object(tandem_program, "TANDEM", script):
            refused, begun = [self.train("large", *GPT, *CUDA, *ON, *large, "--checkpoint.async", "false", "--dist.zero", zero, ranks=2,
                                         code=code, environment={"TANDEM_SIMT_PINNED": "1"})
                              for zero, code in [(0, CONFIG), (1, OUT_OF_MEMORY)]]
        self.assert_one_line(refused, "train.offload = optimizer needs 162.4 MiB of the host's memory for this rank, and there are "
                                      "128.0 MiB; dist.zero = 1 fits")
        self.assertIn("out of page-locked host memory", begun.stderr)


if __name__ == "__main__":
    tandem_program.main()
