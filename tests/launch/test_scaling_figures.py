#!/usr/bin/env python3
"""The figures of launch/scaling.py: intervals, the tolerance of losses, the order of launches, verdicts.

    test_scaling_figures.py [unittest arguments]
"""
import os
import random
import re
import sys
import unittest
from statistics import median

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch"))
from scaling import charts, heat, intervals, losses, plan, tables, verdicts


class Intervals(unittest.TestCase):
    def test_which_order_statistics(self):
        """Against the table of any textbook on order statistics, for 95 %."""
        table = {6: 1, 8: 1, 9: 2, 11: 2, 12: 3, 14: 3, 15: 4, 17: 5, 20: 6, 23: 7, 25: 8}
        self.assertEqual({count: intervals.order(count) for count in table}, table)
        self.assertEqual([intervals.order(count) for count in range(1, 6)], [0] * 5)
        self.assertEqual(intervals.confidence(6, 1), 1 - 2 / 64)

    def test_few_launches_have_a_range(self):
        self.assertEqual(intervals.summary([3, 1, 2]), {"median": 2, "low": 1, "high": 3, "launches": 3, "confidence": None})
        self.assertIsNone(intervals.summary([]))

    def test_they_hold_the_true_median(self):
        """Launches whose times are skewed, as those of machines are, of steps that are symmetric about them: the true median
        of launches is 100."""
        for count in (6, 9, 12):
            pick, held = random.Random(count), 0
            for _ in range(1000):
                levels = [100 * pick.lognormvariate(0, 0.05) for _ in range(count)]
                interval = intervals.summary([median([level + pick.gauss(0, 1) for _ in range(50)]) for level in levels])
                held += interval["low"] <= 100 <= interval["high"]
            self.assertGreaterEqual(held, 940, f"{count} launches")


class Losses(unittest.TestCase):
    @staticmethod
    def case(name, loss, ranks=1, precision="f32", kind="gpt", **sweep):
        settings = {"train.precision": precision, "dist.wire_dtype": "f32", "train.micro_batch": "0", "model.kind": kind}
        return {"id": name, "loss": loss, "ranks": ranks, "global_batch": 8, "sweep": sweep, "settings": settings}

    def differs(self, *cases):
        losses.compare(cases, 60)
        return [case["id"] for case in cases if case["loss_check"]["differs"]]

    def test_rounding_is_allowed_and_no_more(self):
        self.assertAlmostEqual(losses.tolerance(self.case("a", 4), self.case("b", 4, ranks=2), 60), 2 * 2**-24 + 600 * 2**-24, 12)
        self.assertEqual(self.differs(self.case("a", 4.0), self.case("b", 4.0001, ranks=2), self.case("c", 4.0002, ranks=2)), ["c"])
        small, large = self.case("b", 4.02, precision="bf16"), self.case("c", 4.04, precision="bf16")
        self.assertEqual(self.differs(self.case("a", 4.0), small, large), ["c"])

    def test_only_the_same_model_is_compared(self):
        self.assertEqual(self.differs(self.case("a", 4.0, **{"optim.lr": "1"}), self.case("b", 3.0, **{"optim.lr": "2"})), [])
        self.assertEqual(self.differs(self.case("a", 4.0, **{"dist.zero": "0"}), self.case("b", 3.0, **{"dist.zero": "2"})), ["b"])
        self.assertEqual(self.differs(self.case("a", 4.0, kind="resnet"), self.case("b", 3.0, ranks=2, kind="resnet")), [])


class Order(unittest.TestCase):
    def test_blocks(self):
        cases = [{"id": name} for name in "abcdefgh"]
        order = plan.blocks(cases, 6, seed=1)
        for block in order:
            self.assertEqual(sorted(block), list("abcdefgh"))
        self.assertEqual([order[1], order[3], order[5]], [order[0][::-1], order[2][::-1], order[4][::-1]])
        self.assertEqual(len({tuple(block) for block in order}), 6)
        self.assertNotEqual(order, plan.blocks(cases, 6, seed=2))
        self.assertEqual(order, plan.blocks(cases, 8, seed=1)[:6], "more launches change the order of none")


class Verdicts(unittest.TestCase):
    REQUEST = {"launches": 6}

    @staticmethod
    def interval(median, width=0.0):
        return {"median": median, "low": median * (1 - width / 2), "high": median * (1 + width / 2), "launches": 6}

    def finding(self, exposed=1, width=0.0, efficiency=None, nodes=1, mfu=0.4, data=1, saving=0, slowest=(), slow_saves=(), ranks=4, node=None,
                **settings):
        """`node`: the exposed communication of the same job on one node."""
        usual = {"dist.zero": "0", "dist.overlap": "true", "dist.wire_dtype": "f32", "dist.reduce": "ring", "dist.shard": "world",
                 "checkpoint.async": "true"}
        def of_launches(found):
            return [{"rank": rank, "host": f"host{rank}", "share": share, "ratio": ratio} for rank, share, ratio in found]
        parts = {"compute": 90 - data, "communication": exposed, "data": data, "optimizer": 10, "saving": saving}
        case = {"id": "b", "nodes": nodes, "ranks": ranks, "parts_ms": parts, "slowest": of_launches(slowest),
                "slow_saves": of_launches(slow_saves),
                "step_ms": self.interval(100, width), "exposed_comm_ms": self.interval(exposed), "mfu": self.interval(mfu), "between_bytes": 3000000,
                "settings": {**usual, **settings}, "peak_bytes": 90, "loss_check": {"differs": False}, "failed": [],
                "predicted": {"memory_bytes": 100, "step_ms": 50, "exposed_comm_ms": 2}}
        row = {"case": "b", "base": "a", "against": "1 rank", "mode": "weak"}
        rows = [{**row, "efficiency": self.interval(efficiency)}] if efficiency else []
        if node is not None:
            rows.append({**row, "against": "1 node", "efficiency": self.interval(0.7), "base_exposed_ms": node})
        found = verdicts.verdict(case, rows, self.REQUEST)
        return found["finding"], found["next"]

    def test_each(self):
        self.assertEqual(self.finding(), ("a baseline", "more ranks"))
        self.assertEqual(self.finding(efficiency=0.95), ("scales well", "more ranks"))
        self.assertEqual(self.finding(efficiency=0.8)[0], "loses time, not by communication")
        again = "the same again on a machine that does nothing else"
        self.assertEqual(self.finding(efficiency=1.06), ("more than can be", again))
        self.assertEqual(self.finding(efficiency=1.05)[0], "scales well")
        self.assertEqual(self.finding(mfu=1.01, efficiency=0.95), ("an MFU above 100 %", again))
        self.assertEqual(self.finding(mfu=1)[0], "a baseline")
        noisy = ("too noisy to say", "--launches 12, on a machine that does nothing else")
        self.assertEqual(self.finding(width=0.3, efficiency=0.8), noisy)
        communication = "waits for communication"
        advice = "dist.wire_dtype=bf16 or a larger train.global_batch or another dist.bucket_mb"
        self.assertEqual(self.finding(exposed=30), (communication, advice))
        advice = self.finding(exposed=30, nodes=2, **{"dist.zero": "3", "dist.overlap": "false"})
        self.assertEqual(advice, (communication, "dist.overlap=true or dist.zero=2, if it fits or dist.shard=node"))

    def test_a_slow_rank(self):
        found = ("waits for rank 2, which computes longer", "look at host2 for another process or a hot GPU")
        slow, other, even = (2, 0.8, 1.3), (1, 1.0, 1.1), (3, 0.3, 1.02)
        self.assertEqual(self.finding(exposed=30, slowest=[slow, slow, even, even]), found)  # not: for communication
        self.assertEqual(self.finding(data=11, slowest=[slow, slow, other]), found, "1.3 x the median is 23.1 of 100 ms longer")
        stalls = ("waits for rank 2, which waits for data", "look at the storage of host2")
        self.assertEqual(self.finding(data=12, slowest=[slow, slow, other]), stalls)
        self.assertEqual(self.finding(slowest=[slow, even, even])[0], "a baseline")
        self.assertEqual(self.finding(slowest=[(2, 0.79, 1.3), (2, 1.0, 1.09)])[0], "a baseline")
        self.assertEqual(self.finding(slowest=[(0, 1.0, 1.3)], ranks=1)[0], "a baseline")

    def test_data(self):
        self.assertEqual(self.finding(exposed=30, data=10), ("waits for data", "a larger data.prefetch, or faster storage"))
        self.assertEqual(self.finding(data=9)[0], "a baseline")

    def test_saves(self):
        self.assertEqual(self.finding(saving=12), ("waits for saves", "rarer checkpoints or faster storage for run.dir"))
        self.assertEqual(self.finding(saving=11)[0], "a baseline", "11 of 111 ms")
        advice = self.finding(saving=12, slowest=[(2, 1.0, 1.3)], **{"checkpoint.async": "false"})[1]
        self.assertEqual(advice, "checkpoint.async=true or rarer checkpoints or faster storage for run.dir")
        found = ("waits for saves of rank 3", "look at the storage of host3 or rarer checkpoints")
        slow, even = (3, 0.8, 1.5), (3, 0.8, 1.4)
        self.assertEqual(self.finding(saving=12, slow_saves=[slow, even]), found)
        self.assertEqual(self.finding(saving=12, slow_saves=[slow, even, even])[0], "waits for saves")
        self.assertEqual(self.finding(saving=11, slow_saves=[slow])[0], "a baseline")

    def test_the_link_between_nodes(self):
        """Each of 2 ranks of a node sends 3 MB to the other node, in between 30 and 100 ms."""
        finding, advice = self.finding(exposed=30, nodes=2, node=15)
        self.assertEqual(finding, "waits for the link between nodes: 0.06 to 0.2 GB/s")
        self.assertEqual(advice, "`tandem bench links`, which shows whether the link reaches its rate or dist.wire_dtype=bf16 or "
                                 "a larger train.global_batch")
        self.assertEqual(self.finding(exposed=30, nodes=2, node=16)[0], "waits for communication", "so does one node")
        self.assertEqual(self.finding(exposed=30, nodes=2, efficiency=0.7)[0], "waits for communication", "one node was not measured")
        self.assertEqual(self.finding(exposed=9, nodes=2, node=1)[0], "loses time, not by communication")


class Tables(unittest.TestCase):
    def test_shares_above_all_there_is_have_a_note(self):
        interval = {"median": 1.01, "low": 0.9, "high": 1.1, "launches": 6, "confidence": 0.96}
        self.assertEqual(tables.doubt([{**interval, "median": 1}], "a < b"), "")
        self.assertEqual(tables.doubt([{**interval, "median": 1}, interval], "a < b"), '<p class="bad">Above 100 %: a &lt; b.</p>')
        row = {"mode": "weak", "sweep": {}, "ranks": 2, "against": "1 rank", "base": "a", "case": "b", "first_hop": False}
        for median, count in [(1, 0), (1.01, 1)]:
            results = {"efficiency": [{**row, "efficiency": {**interval, "median": median}}], "price": None, "fastest": None, "cheapest": None,
                       "cases": [{"id": "b", "modes": ["weak"], "ranks": 2, "nodes": 1, "global_batch": 8, "failed": [], "per": "",
                                  "step_ms": interval, "throughput": interval, "mfu": {**interval, "median": median}}], "per": ""}
            for table in [tables.efficiency_table(results), tables.case_table(results)]:
                self.assertEqual(table.count("Above 100 %"), count)


class Charts(unittest.TestCase):
    def test_labels_end_within_the_plot(self):
        """12 pixels high: a digit is at most 7 wide."""
        point = {"median": 1.665, "low": 1.6, "high": 1.7}
        for ranks in [[1, 2], [1, 2, 4, 1024], [3]]:
            plot = charts.line_chart("Efficiency", [{"name": "a", "points": [(n, point) for n in ranks], "ideal": [(n, 1) for n in ranks]}],
                                     "of 1 rank", percent=True)
            labels = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" text-anchor="(\w+)"[^>]*>166.5%<', plot)
            self.assertEqual(len(labels), len(ranks))
            for x, anchor in labels:
                self.assertLess(float(x) + (anchor == "start") * 7 * len("166.5%"), charts.WIDTH)


class Heat(unittest.TestCase):
    def test_levels(self):
        self.assertEqual([heat.level_of(ratio) for ratio in (0.5, 1.04, 1.05, 1.2, 1.3, 1.5, 9)], [0, 0, 1, 2, 3, 4, 5])

    def test_cells(self):
        """Two ranks, four steps; a step is 130 wide and a rank 18 high. Rank 1 is slow in the third, both in the last."""
        case = {"id": "r2", "heat": {"launch": 4, "first_step": 11, "own_ms": [[100, 101], [100, 99], [99, 130], [300, 300]]}}
        plot = heat.heat_map(case)
        self.assertIn("times the median of 100.5 ms", plot)
        self.assertEqual(re.findall('<path class="(.*?)" d="(.*?)"', plot),
                         [("h3", "M320.0 102h130v18h-130z"), ("h5", "M450.0 84h130v18h-130zM450.0 102h130v18h-130z")])
        self.assertIn("r2, launch 4", plot)
        self.assertIn(">14</text>", plot, "the last step")

    def test_a_large_job_is_small(self):
        pick = random.Random(1)
        steps = [[pick.gauss(100, 20) for _ in range(64)] for _ in range(50)]
        plot = heat.heat_map({"id": "r64", "heat": {"launch": 1, "first_step": 11, "own_ms": steps}})
        self.assertLess(len(plot), 60000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
