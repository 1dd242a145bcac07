#!/usr/bin/env python3
"""A job in which one rank calls another collective than the others ends soon, and says which rank does what.

    test_agreement.py TANDEM_DISAGREEING [unittest arguments]       $TANDEM_HANGS_DEVICE: cpu, or cuda over NCCL

Over MPI a vote waits behind the collectives before it, so the collective itself or its deadline ends the job. Over NCCL the
vote comes first; the emulation of NCCL ends a job at the first disagreement.
"""
import unittest

from test_hangs import DEVICE, Job
from tandem_program import Workspace, main

INTERNAL = 70
WHERE = r"\d+ of this run \(.*(B|bytes)\) of step \d+"
NO_VOTE = r"rank \d on .*: (rank \d (sent|took) nothing for 5 s|message from rank \d: MPI_ERR_TRUNCATE|rank \d sent \d+ bytes where).*"
VOTE = r"before step \d+ the ranks called different collectives; this is a bug"


class Agreement(Workspace):
    def assert_told(self, way, said, at="30"):
        code, lines, seconds = Job(self, way, "--train.steps", "50", DISAGREE=way, DISAGREE_AT=at).end()
        self.assertEqual(code, INTERNAL, lines)
        self.assertLess(seconds, 15)
        self.assertRegex(lines, rf"(?m)^tandem: {said}")

    @unittest.skipIf(DEVICE == "cuda", "the emulation of NCCL sees it first")
    def test_other_collectives(self):
        for way, kind in [("kind", "all_gather"), ("bytes", "all_reduce"), ("none", "all_reduce")]:
            # Where the bytes differ, rank 2 may find it before rank 0 has come.
            others = rf"rank 2 on \S+ calls all_reduce {WHERE}, where rank 1 calls|" if way == "bytes" else ""
            with self.subTest(way):
                self.assert_told(way, rf"{NO_VOTE}; ({others}rank 1 on \S+ calls {kind} {WHERE}, where rank 0 calls) all_reduce {WHERE}$")

    def test_a_vote_finds_what_ended_all_the_same(self):
        self.assert_told("quiet", rf"{VOTE}; rank 1 on \S+ calls all_gather {WHERE}, where rank 0 calls all_reduce {WHERE}$", "6")

    @unittest.skipIf(DEVICE == "cpu", "over MPI the vote waits behind it")
    def test_a_vote_finds_what_would_hang(self):
        self.assert_told("more", rf"{VOTE}; rank 0 on \S+ did not join all_reduce {WHERE}, in which rank 1 waits for ", "6")


if __name__ == "__main__":
    main()
