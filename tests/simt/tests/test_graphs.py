#!/usr/bin/env python3
"""Runs on the emulated GPU whose steps are CUDA graphs, against the same runs without.

    test_graphs.py PATH_TO_TANDEM [unittest arguments]       $TANDEM_GRAPH_STEPS: in a long run (14)
"""
import itertools
import os
import re
import shlex
import sys
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, NUMERICAL, TINY, Workspace, metrics  # noqa: E402

ON, OFF = ["--train.graphs", "on"], ["--train.graphs", "off"]
CUDA = ["--run.device", "cuda"]
GPT = [*TINY, "--model.dropout", "0.1", "--train.global_batch", "12", "--train.precision", "bf16", "--optim.warmup_steps", "0"]
RESNET = ["--model.kind", "resnet", "--model.depth", "8", "--optim.kind", "sgd", "--train.global_batch", "12",
          "--train.precision", "bf16"]
STEPS = int(os.environ.get("TANDEM_GRAPH_STEPS", 14))
# What graphs may change: times, and the memory for inputs and stamps.
OTHER = re.compile("time|_ms$|_s$|mfu|flops|slowest|memory|peak_bytes")


class Graphs(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.make_digits()
        cls.make_stories(80)

    def figures(self, name):
        lines = [{key: value for key, value in line.items() if not OTHER.search(key)} for line in metrics(self.run_folder(name))]
        for before, line in zip([{}, *lines], lines):
            line.get("wire", {}).pop("control", None)  # some of it is text about times
            if "val_loss" in before:  # then values are whole; a graph gathers them all the same
                for key in ["wire", "wire_bytes"]:
                    line.pop(key, None)
        return lines

    def both(self, name, *settings, ranks=1, data=None, **more):
        """Trains with and without graphs; all figures and all weights have the same bits. Returns the run with."""
        self.train(f"{name}-on", *CUDA, *settings, *ON, ranks=ranks, data=data, **more)
        choices = os.path.join(self.run_folder(f"{name}-on"), "choices.json")  # by a clock, which a busy machine disturbs
        same = ["--run.choices", choices] if os.path.exists(choices) else []
        self.train(f"{name}-off", *CUDA, *settings, *OFF, *same, ranks=ranks, data=data, **more)
        self.assertEqual(self.figures(f"{name}-on"), self.figures(f"{name}-off"))
        self.assert_same_bits(f"{name}-on", f"{name}-off")
        return f"{name}-on"

    def test_validation_and_checkpoints_between_launches_change_no_bit(self):
        often = ["--train.eval_every", "4", "--checkpoint.every_steps", "8", "--train.log_every", "1"]
        for ranks, zero, micro, tensor in [(1, 0, 0, 1), (1, 0, 4, 1), (2, 1, 2, 1), (2, 2, 0, 1), (3, 3, 2, 1), (4, 0, 1, 1), (4, 2, 2, 2)]:
            with self.subTest(ranks=ranks, zero=zero, micro_batch=micro, tensor=tensor):
                self.both(f"gpt-{ranks}-{zero}-{micro}-{tensor}", *GPT, *often, "--train.steps", STEPS, "--dist.zero", zero,
                          "--train.micro_batch", micro, "--dist.tensor", tensor, ranks=ranks)
        for ranks, zero in [(2, 1), (3, 2), (4, 3)]:
            with self.subTest(ranks=ranks, zero=zero):
                few = [*often, "--train.steps", STEPS // 2, "--train.micro_batch", 12 // ranks // 3, "--dist.zero", zero]
                self.both(f"llama-{ranks}", *GPT, "--model.kind", "llama", *few, ranks=ranks)
                self.both(f"resnet-{ranks}", *RESNET, *few, ranks=ranks, data=self.digits)

    def test_muon(self):
        self.both("muon", *GPT, "--optim.kind", "muon", "--dist.zero", 2, "--dist.wire_dtype", "int8", "--dist.gather_dtype", "int8",
                  "--train.steps", 6, ranks=2)

    def test_whole_documents(self):
        self.both("documents", *GPT, "--data.windows", "documents", "--train.steps", 6, data=self.stories)

    def test_a_resumed_run_equals_one_that_went_on(self):
        # In the last start the validation after step 7 makes the values whole, and then step 8 is captured.
        long = [*GPT, "--optim.schedule", "constant", "--dist.zero", "2", "--train.eval_every", 7]
        self.train("whole", *CUDA, *long, *ON, "--train.steps", 9, ranks=2)
        for steps, setting in [(3, ON), (6, OFF), (9, ON)]:
            self.train("parts", *CUDA, *long, *setting, "--train.steps", steps, ranks=2)
        self.assertEqual(self.tensors("whole"), self.tensors("parts"))

    def test_values_may_be_whole_before_the_first_step(self):
        # The validation after a step that is skipped gathers them.
        self.both("skipped", *GPT, "--dist.zero", 2, "--train.skip_batches", "1", "--train.eval_every", 1, "--train.steps", 4, ranks=2)

    def test_a_traced_step_is_no_graph(self):
        name = self.both("traced", *GPT, "--train.steps", 9, "--log.trace", "4-6", ranks=2)
        self.assertTrue(os.path.exists(os.path.join(self.run_folder(name), "trace.json.gz")))

    def test_a_profiler_sees_the_traced_steps(self):
        self.train("profiled", *CUDA, *GPT, *ON, "--train.steps", 9, "--log.trace", "4-6",
                   environment={"TANDEM_SIMT_GRAPHS": self.path("seen")})
        with open(self.path("seen")) as file:
            seen = [line.strip() if line.startswith("profiler") else "launch" for line in file]
        # Step 1 runs eagerly, 2 and 3 are launched, as are 7 to 9.
        self.assertEqual(seen, ["launch"] * 2 + ["profiler starts", "profiler stops"] + ["launch"] * 3)

    def test_parts_of_a_launch_add_up(self):
        self.train("parts-of-steps", *CUDA, *GPT, *ON, "--train.steps", 8, "--train.log_every", 1, ranks=2)
        lines = [line["slowest"] for line in metrics(self.run_folder("parts-of-steps")) if "loss" in line]
        self.assertEqual(len(lines), 8)
        for line in lines:
            parts = [line[f"{part}_ms"] for part in ("compute", "communication", "data", "optimizer", "saving")]
            self.assertTrue(all(part >= 0 for part in parts), line)
            self.assertAlmostEqual(sum(parts) / line["step_ms"], 1, delta=1e-9)
            self.assertGreater(line["optimizer_ms"], 0)

    def test_a_launched_step_asks_little_of_the_device(self):
        kinds = [("text", 1, GPT, None), ("text", 2, GPT, None), ("images", 2, RESNET, self.digits),
                 ("documents", 1, [*GPT, "--data.windows", "documents"], self.stories)]
        for (kind, ranks, settings, data), micro_steps in itertools.product(kinds, (1, 2, 3)):
            with self.subTest(kind=kind, ranks=ranks, micro_steps=micro_steps):
                name = f"calls-{kind}-{ranks}-{micro_steps}"
                self.train(name, *CUDA, *settings, *ON, "--train.micro_batch", 12 // ranks // micro_steps, "--train.steps", 6,
                           ranks=ranks, data=data, environment={"TANDEM_SIMT_GRAPHS": self.path(name)})
                with open(self.path(name)) as file:
                    launches = [tuple(map(int, line.split())) for line in file]
                self.assertEqual(len(launches), 5 * ranks)
                for calls, allocations, host_waits in launches[ranks:]:  # from step 3 on
                    self.assertLessEqual(calls, 8 + 4 * micro_steps)
                    self.assertEqual(allocations, 0)
                    self.assertEqual(host_waits, 1)  # for the step before the one that still runs

    def test_a_lost_step_names_the_same_place(self):
        said = []
        for setting in (ON, OFF):
            result = self.train(f"lost{setting[1]}", *CUDA, *GPT, *setting, "--train.precision", "f32", "--optim.kind", "sgd",
                                "--optim.lr", "300", "--optim.schedule", "constant", "--optim.clip_norm", "0",
                                "--train.steps", 60, ranks=2, code=NUMERICAL)
            said.append(re.search(r"step (\d+): the gradient is not finite: .*; last checkpoint", result.stderr))
        self.assertEqual(said[0][0], said[1][0])
        self.assertGreaterEqual(int(said[0][1]), 3)  # step 2 is the first launch

    def test_the_first_lines_say_it(self):
        numbers = itertools.count()

        def first_lines(*settings, ranks=1, **more):
            return self.train(f"lines-{next(numbers)}", *CUDA, *GPT, "--train.steps", 1, *settings, ranks=ranks, **more).stdout
        self.assertRegex(first_lines(), r"\nstep        one CUDA graph\n")
        for settings, why, ranks in [(["--dist.reduce", "exact"], "dist.reduce = exact", 1),
                                     (["--dist.backend", "mpi"], "dist.backend = mpi", 2),
                                     (["--train.global_batch", "33", "--train.micro_batch", "1"], "33 micro-steps", 1),
                                     (OFF, "train.graphs = off", 1)]:
            self.assertIn(f"\nstep        no CUDA graph, because of {why}\n", first_lines(*settings, ranks=ranks))
        self.assertIn("because of TANDEM_MEMORY_CACHE = 0", first_lines(environment={"TANDEM_MEMORY_CACHE": "0"}))

    def test_ranks_decide_alike(self):
        wrapper = self.path("wrapper")
        with open(wrapper, "w") as file:
            file.write(f'#!/bin/sh\nTANDEM_MEMORY_CACHE=$OMPI_COMM_WORLD_RANK exec {shlex.quote(tandem_program.TANDEM)} "$@"\n')
        os.chmod(wrapper, 0o755)
        with unittest.mock.patch("tandem_program.TANDEM", wrapper):
            result = self.train("unlike", *CUDA, *GPT, ranks=2, code=CONFIG)
        self.assert_one_line(result, "what decides whether steps are CUDA graphs")

    def test_what_cannot_be_a_graph_is_refused(self):
        for settings, why in [(["--dist.reduce", "exact"], "dist.reduce = exact"), (["--dist.backend", "mpi"], "dist.backend = mpi"),
                              (["--run.device", "cpu", "--dist.backend", "mpi"], "a CPU")]:
            result = self.train("refused", *CUDA, *GPT, *ON, *settings, ranks=2, code=CONFIG)
            self.assert_one_line(result, f"train.graphs = on is not possible with {why}; use auto or off")


if __name__ == "__main__":
    tandem_program.main()
