#!/usr/bin/env python3
"""Islands (dist.islands): what they exchange, that they are alike wherever they meet, restarts, and what is refused.

    test_islands.py PATH_TO_TANDEM [unittest arguments]
"""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, NUMERICAL, STOPPED, Workspace, losses, metrics, run  # noqa: E402

SGD = ["--optim.kind", "sgd", "--optim.momentum", 0, "--optim.weight_decay", 0, "--optim.clip_norm", 0]
EVERY_4 = ["--dist.sync_every", 4, "--checkpoint.every_steps", 8, "--checkpoint.keep", 9]
STILL = ["--optim.lr", 0, "--optim.min_lr", 0, "--optim.outer_lr", 0]
SHARDED = ["--dist.zero", 1]


class Islands(Workspace):
    def lines(self, name):
        return [line for line in metrics(self.run_folder(name)) if "loss" in line]

    def step_bytes(self, name):
        return {line["step"]: line["wire_bytes"] for line in self.lines(name)}

    def test_with_plain_sgd_every_step_is_synchronous_training(self):
        plain = [*SGD, "--optim.lr", 0.05, "--optim.min_lr", 0.05, "--train.eval_every", 5]
        average = ["--dist.sync_every", 1, "--optim.outer_lr", 1, "--optim.outer_momentum", 0]
        self.train("synchronous", *plain, ranks=4)
        for islands, settings in (4, []), (2, SHARDED):
            with self.subTest(islands=islands):
                name = f"average{islands}"
                self.train(name, *plain, *average, "--dist.islands", islands, *settings, ranks=4)
                for one, other in zip(metrics(self.run_folder("synchronous")), metrics(self.run_folder(name)), strict=True):
                    for key in "loss", "val_loss":
                        self.assertAlmostEqual(one.get(key, 0), other.get(key, 0), delta=1e-6 * abs(one.get(key, 1)))

    def test_a_kill_in_the_last_validation_costs_a_validation(self):
        islands = ["--dist.islands", 2, "--dist.sync_every", 4, "--train.steps", 8]
        self.train("validated", *islands, ranks=2)
        self.train("interrupted", *islands, "--checkpoint.every_steps", 8, "--checkpoint.at_end", "false", ranks=2)
        self.train("interrupted", *islands, ranks=2)
        one, other = [[line["val_loss"] for line in metrics(self.run_folder(name)) if "val_loss" in line] for name in ["validated", "interrupted"]]
        self.assertEqual(one, other)
        self.assertEqual(len(one), 1)

    def test_a_restart_equals_the_undisturbed_run(self):
        for name, settings, data, ranks in [
                ("delay", ["--dist.islands", 2, "--dist.sync_delay", 3, *SHARDED], None, 4),
                ("int8", ["--dist.islands", 2, "--dist.wire_dtype", "int8", "--dist.gather_dtype", "int8", "--dist.zero", 3], None, 4),
                ("fp16", ["--dist.islands", 3, "--train.precision", "fp16", "--dist.wire_dtype", "bf16"], None, 3),
                ("exact", ["--dist.islands", 2, "--dist.reduce", "exact", "--train.micro_batch", 1, "--dist.zero", 2], None, 4),
                ("resnet", ["--dist.islands", 2, "--model.kind", "resnet", "--model.depth", 8], self.images, 2),
                ("skips", ["--dist.islands", 2, "--dist.wire_dtype", "int8", "--train.skip_batches", "16,18"], None, 2)]:
            with self.subTest(name):
                again = f"again-{name}"
                settings = [*settings, *EVERY_4, "--train.eval_every", 8]
                self.train(name, *settings, ranks=ranks, data=data)
                shutil.copytree(self.run_folder(name), self.run_folder(again))
                shutil.rmtree(os.path.join(self.run_folder(again), "checkpoints/step-00000020"))
                self.train(again, *settings, ranks=ranks, data=data)
                self.assert_same_bits(name, again)
                self.assertEqual(self.step_bytes(name), self.step_bytes(again))

    def last_step(self, name):
        try:
            return max(losses(self.run_folder(name)), default=0)
        except FileNotFoundError:  # not yet there
            return 0

    def test_a_killed_run_resumes_to_the_same_bits(self):
        # The exchange that begins after step 600 takes effect after step 799.
        settings = ["--dist.islands", 2, "--dist.sync_every", 200, "--dist.sync_delay", 199, *SHARDED, "--checkpoint.every_steps", 400,
                    "--checkpoint.async", "false", "--train.steps", 900]
        self.train("undisturbed", *settings, ranks=4)
        for attempt in range(10):  # a busy machine may let this one sleep until the run is over
            name = f"killed-{attempt}"
            command = ["mpirun", "-np", "4", tandem_program.TANDEM, "train", "--data.path", self.text, "--run.dir", self.path("runs"),
                       "--run.name", name, *tandem_program.TINY, *map(str, settings)]
            job = subprocess.Popen(command, env=tandem_program.MPI_ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while self.last_step(name) <= 600 and job.poll() is None:
                time.sleep(0.01)
            for rank in self.processes_of(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)
            job.wait()
            if 600 < self.last_step(name) < 799:
                break
        self.assertTrue(600 < self.last_step(name) < 799)
        self.assertIn("at step 400 of 900", self.train(name, *settings, ranks=4).stdout)
        self.assert_same_bits("undisturbed", name)

    def test_exact_sums_leave_the_number_of_ranks_of_an_island_open(self):
        exact = ["--dist.islands", 2, "--dist.reduce", "exact", "--train.micro_batch", 1, *EVERY_4]
        self.train("two-ranks", *exact, ranks=2)
        for zero in 1, 2, 3:
            with self.subTest(zero=zero):
                self.train(f"four-ranks{zero}", *exact, "--dist.zero", zero, "--dist.node_size", 2, ranks=4)
                self.assert_same_bits("two-ranks", f"four-ranks{zero}")

    def test_goes_on_with_other_islands(self):
        settings = [*EVERY_4, "--train.eval_every", 8]
        self.train("four", "--dist.islands", 4, *settings, ranks=4)
        self.assertIn("optim/outer_m/blocks.0.attn.q.weight", self.tensors("four"))
        before = metrics(self.run_folder("four"))[-1]["val_loss"]
        for source, islands, ranks, more in ("four", 2, 4, SHARDED), ("four", 1, 2, []), ("on-1", 4, 4, []):
            with self.subTest(islands=islands):
                name = f"on-{islands}" if source == "four" else "back"
                shutil.copytree(self.run_folder(source), self.run_folder(name))
                # The rate is low at the end, so that little changes. Only the state of another run would give another loss.
                self.train(name, "--dist.islands", islands, *settings, *more, "--train.steps", 24, ranks=ranks)
                self.assertLess(abs(metrics(self.run_folder(name))[-1]["val_loss"] / before - 1), 0.05)

    def test_other_islands_begin_with_what_was_saved(self):
        self.train("saved", "--dist.islands", 4, *EVERY_4, ranks=4)
        # Rates are zero, and clipped gradients are lost beside moments. These decay alike on any number of islands.
        still = [*EVERY_4, *STILL, "--optim.clip_norm", 1e-38, "--train.steps", 24]
        kept = {name: content for name, content in self.tensors("saved").items() if name.startswith("param/")}
        loaded = {}
        for islands, ranks, more in (4, 4, []), (2, 4, SHARDED), (1, 2, []):
            shutil.copytree(self.run_folder("saved"), self.run_folder(f"still-{islands}"))
            self.train(f"still-{islands}", "--dist.islands", islands, *still, *more, ranks=ranks)
            loaded[islands] = self.tensors(f"still-{islands}")
        self.assertEqual(loaded[4], {**loaded[4], **kept})
        decayed = [content for name, (_, content) in loaded[4].items() if name not in kept]
        self.assertEqual(len(set(decayed)), len(decayed))  # arrays of zeros would be alike
        self.assertEqual(loaded[2], loaded[4])
        self.assertEqual(loaded[1], {name: content for name, content in loaded[4].items() if not name.startswith("optim/outer_m/")})

    def test_bytes_are_those_of_the_formula_and_of_the_estimate(self):
        for wire, share in ("f32", 1), ("bf16", 0.5), ("int8", 0.2578125):
            for islands, delay in (4, 0), (4, 2), (2, 1):
                with self.subTest(wire=wire, islands=islands, delay=delay):
                    name = f"bytes-{wire}-{islands}-{delay}"
                    settings = ["--dist.islands", islands, "--dist.sync_every", 5, "--dist.sync_delay", delay, *SHARDED,
                                "--dist.wire_dtype", wire]
                    self.train(name, *settings, "--checkpoint.every_steps", 10, "--train.steps", 19, ranks=4)
                    shown = json.loads(self.check(run("estimate", "--json", "--ranks", 4, "--data.path", self.text, *settings,
                                                      *tandem_program.TINY)).stdout)
                    row = next(row for row in shown["rows"] if row["given"])
                    # The arrays are padded: to whole blocks for each island.
                    in_f32 = row["sync_wire_bytes"] / share
                    elements = in_f32 / (2 * (islands - 1) / islands * 4)
                    self.assertEqual(elements % (128 * islands), 0)
                    optimizer = row["memory"]["optimizer"] / 16  # four arrays of f32, and a few numbers
                    self.assertTrue(optimizer - 200 < elements < optimizer + 128 * islands, (elements, optimizer))
                    # A checkpoint needs a full exchange, which does not wait: also of AdamW's m and v.
                    full = row["sync_wire_bytes"] + 2 * in_f32
                    more = {5 + delay: row["sync_wire_bytes"], 10: full, 15 + delay: row["sync_wire_bytes"], 19: full}
                    lines = self.lines(name)
                    for line in lines:
                        step = line["step"]
                        self.assertEqual(line["wire_bytes"], row["wire_bytes"] + more.get(step, 0), step)
                    last = lines[-1]  # before the validation
                    self.assertEqual(row["peak_bytes"], last["peak_bytes"])
                    self.assertEqual({key: row["memory"][key] for key in last["memory"]}, last["memory"])

    def test_figures_are_of_all_islands_where_they_meet(self):
        self.train("figures", "--dist.islands", 2, "--dist.sync_every", 5, ranks=2)
        lines = self.lines("figures")
        self.assertEqual([line["step"] for line in lines if "drift" in line], [5, 10, 15, 20])
        self.assertTrue(all(0 < line["drift"] < 1 for line in lines if "drift" in line))
        self.assertEqual([len(line["own_ms"]) for line in lines], [2 if line["step"] % 5 == 0 else 1 for line in lines])

    def test_the_loss_is_that_of_the_first_island_until_they_meet(self):
        # Without learning, one rank with an island's share of the batch takes the islands' samples one after the other.
        # An island has 64 targets, so that their mean loss is not rounded.
        self.train("in-turn", *STILL, "--train.global_batch", 4, "--train.steps", 40)
        self.train("at-once", *STILL, "--train.global_batch", 8, "--dist.islands", 2, "--dist.sync_every", 5, ranks=2)
        in_turn = losses(self.run_folder("in-turn"))
        for step, loss in losses(self.run_folder("at-once")).items():
            first, second = in_turn[2 * step - 1], in_turn[2 * step]
            self.assertNotEqual(first, second)
            self.assertEqual(loss, first if step % 5 else (first + second) / 2, step)

    def test_a_request_to_stop_waits_for_the_islands_to_meet(self):
        stop = self.path("stop")
        open(stop, "w").close()
        self.train("stops", "--dist.islands", 2, "--dist.sync_every", 4, "--dist.sync_delay", 1, "--run.stop_file", stop, ranks=2,
                   code=STOPPED)
        self.assertEqual(os.listdir(os.path.join(self.run_folder("stops"), "checkpoints")), ["step-00000001"])

    def test_a_lost_step_ends_the_run_where_the_islands_meet(self):
        # It is found before that, or where they exchange: when the step after it, or it itself, has just been enqueued.
        for every, delay in (4, 0), (4, 1), (3, 0), (2, 0):
            with self.subTest(every=every, delay=delay):
                lost = self.train(f"lost{every}{delay}", "--dist.islands", 2, "--dist.sync_every", every, "--dist.sync_delay", delay, *SGD,
                                  "--optim.lr", 1e30, "--optim.schedule", "constant", "--optim.warmup_steps", 0, ranks=2,
                                  code=NUMERICAL)
                self.assert_one_line(lost, r"step 2, island 0: the gradient is not finite: .* again when the step was run once more")

    def test_each_node_is_an_island(self):
        settings = ["--dist.node_size", 2, *SHARDED, *EVERY_4, "--train.eval_every", 8]
        self.train("nodes", *settings, "--dist.islands", "node", ranks=4)
        self.train("two", *settings, "--dist.islands", 2, ranks=4)
        self.assert_same_bits("nodes", "two")
        self.train("nodes", *settings, "--dist.islands", "node", "--train.steps", 24, "--dist.node_size", 1, ranks=4)
        with open(os.path.join(self.run_folder("nodes"), "config.cfg")) as file:
            self.assertIn("islands = 4\n", file.read())
        checked = self.check(run("train", "--check", "--dist.islands", "node", "--data.path", self.text))
        self.assertEqual(json.loads(checked.stdout)["dist.islands"], "node")
        for islands in 2, 6:  # of one rank or more
            self.check(run("train", "--check", "--dist.islands", islands, "--data.path", self.text, "--train.global_batch", 12))

    def test_islands_that_meet_after_the_grace_of_launchers_are_warned_of(self):
        for every, count in (10**6, 1), (4, 0):
            shown = self.train(f"apart{every}", "--dist.islands", 2, "--dist.sync_every", every, "--train.steps", 4, "--train.eval_every", 0, ranks=2)
            self.assertEqual(len(re.findall(r"(?m)^warning +islands meet every \d+ s, .* launchers wait 110 s", shown.stdout)), count, shown.stdout)

    def test_links_are_measured_among_all_ranks(self):
        self.check(run("bench", "links", "--dist.islands", 2, "--largest-mib", 1, "--run.device", "cpu", ranks=2))

    def test_what_cannot_be_is_refused(self):
        for settings, ranks, message in [
                (["--dist.islands", 3], 4, r"dist.islands = 3 does not divide the 4 ranks; the nearest that works: 2 or 4"),
                (["--dist.islands", 2], 4, r"dist.islands = 2 with 2 ranks each needs dist.zero = 1 to 3"),
                (["--dist.islands", 2, "--dist.tensor", 2, *SHARDED], 4, "dist.islands = 2 is not possible with dist.tensor = 2"),
                (["--dist.islands", 2, "--dist.shard", "node", *SHARDED], 4, "not possible with dist.shard = node"),
                (["--dist.islands", 2, "--dist.sync_every", 0], 2, "dist.sync_every = 0"),
                (["--dist.islands", 0], 2, "dist.islands = 0 must be node, or a whole number in"),
                (["--dist.islands", "node", "--dist.node_size", 3], 4, "dist.node_size = 3 does not divide the 4 ranks"),
                (["--dist.islands", 2, "--dist.sync_every", 5, "--dist.sync_delay", 5], 2,
                 r"dist.sync_delay = 5 must be below dist.sync_every = 5; use at most 4"),
                (["--dist.islands", 2, "--checkpoint.every_steps", 30], 2,
                 r"checkpoint.every_steps = 30 must be a multiple of dist.sync_every = 20, .* nearest: 20 and 40"),
                (["--dist.islands", 2, "--train.eval_every", 5], 2, r"train.eval_every = 5 must be .* the nearest: 20"),
                (["--dist.islands", 2, "--train.global_batch", 13], 2, r"train.global_batch = 13 is not divisible by 2 ranks")]:
            with self.subTest(message):
                self.assert_one_line(self.train("refused", *settings, ranks=ranks, code=CONFIG), message)


if __name__ == "__main__":
    tandem_program.main()
