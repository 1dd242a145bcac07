#!/usr/bin/env python3
"""Runs that send eight bits (dist.wire_dtype, dist.gather_dtype): bytes, restarts, and what is refused.

    test_less_traffic.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, Workspace, metrics  # noqa: E402

EIGHT_BITS = ["--dist.wire_dtype", "int8", "--dist.gather_dtype", "int8"]


class EightBits(Workspace):
    def payload(self, name):
        """Bytes of a step on the wire, inside nodes and between them, without control messages."""
        wire = metrics(self.run_folder(name))[1]["wire"]
        return [sum(count[where] for kind, count in wire.items() if kind != "control") for where in ("inside", "between")]

    def test_bytes_are_those_of_the_formula(self):
        for zero in range(4):
            settings = EIGHT_BITS if zero else EIGHT_BITS[:2]
            with self.subTest(zero=zero):
                names = f"f32-{zero}", f"int8-{zero}"
                self.train(names[0], "--dist.zero", zero, ranks=4)
                self.train(names[1], "--dist.zero", zero, *settings, ranks=4)
                one, other = map(self.payload, names)
                self.assertEqual(other, [0.2578125 * bytes for bytes in one])

    def test_between_nodes_only(self):
        for name, settings in ("f32-nodes", []), ("int8-nodes", EIGHT_BITS):
            self.train(name, "--dist.zero", 1, "--dist.node_size", 2, *settings, ranks=4)
        one, other = self.payload("f32-nodes"), self.payload("int8-nodes")
        self.assertEqual(other, [one[0], 0.2578125 * one[1]])

    def test_a_restart_equals_the_undisturbed_run(self):
        for zero in 1, 3:
            with self.subTest(zero=zero):
                name, again = f"whole-{zero}", f"again-{zero}"
                settings = [*EIGHT_BITS, "--dist.zero", zero, "--train.micro_batch", 2, "--checkpoint.every_steps", 10]
                self.train(name, *settings, ranks=3)
                shutil.copytree(self.run_folder(name), self.run_folder(again))
                shutil.rmtree(os.path.join(self.run_folder(again), "checkpoints/step-00000020"))
                self.train(again, *settings, ranks=3)
                self.assert_same_bits(name, again)

    def test_the_first_lines_say_it(self):
        shown = self.train("lines", *EIGHT_BITS, "--dist.zero", 1, "--train.steps", 1, "--log.progress", "plain", ranks=2).stdout
        self.assertRegex(shown, r"ranks +2 ranks; ZeRO stage 1 over all ranks; ring sums, int8 on the wire; values gathered in int8\n")

    def test_what_has_no_meaning_is_refused(self):
        exact = ["--dist.reduce", "exact"]
        for settings, message in [
                ([*exact, *EIGHT_BITS[:2]], "dist.wire_dtype = int8 has no meaning with dist.reduce = exact"),
                ([*exact, "--dist.zero", 1, *EIGHT_BITS[2:]], "dist.gather_dtype = int8 has no meaning with dist.reduce = exact"),
                (EIGHT_BITS, "dist.gather_dtype = int8 has no meaning with dist.zero = 0")]:
            with self.subTest(message):
                self.assert_one_line(self.train("refused", *settings, ranks=2, code=CONFIG), message)


if __name__ == "__main__":
    tandem_program.main()
