#!/usr/bin/env python3
"""The figures of launch/scaling.py: intervals, the tolerance of losses, the order of launches, verdicts, charts.

    test_scaling_figures.py [unittest arguments]
"""
import os
import random
import sys
import unittest
from statistics import median

from matplotlib.backends.backend_agg import FigureCanvasAgg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch"))
from scaling import charts, intervals, losses, plan, plots, tables, verdicts


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
    def case(name, loss, ranks=1, precision="f32", kind="gpt", islands=1, every=20, **sweep):
        settings = {"train.precision": precision, "dist.wire_dtype": "f32", "train.micro_batch": "0", "model.kind": kind,
                    "dist.islands": str(islands), "dist.sync_every": str(every), "dist.sync_delay": "0"}
        return {"id": name, "loss": loss, "ranks": ranks, "global_batch": 8, "sweep": sweep, "settings": settings}

    def differs(self, *cases):
        losses.compare(cases, 60)
        return [case["id"] for case in cases if case["loss_check"]["differs"]]

    def test_rounding_is_allowed_and_no_more(self):
        self.assertAlmostEqual(losses.tolerance(self.case("a", 4), self.case("b", 4, ranks=2), 60), 2 * 2**-24 + 600 * 2**-24, 12)
        self.assertEqual(self.differs(self.case("a", 4.0), self.case("b", 4.0001, ranks=2), self.case("c", 4.0002, ranks=2)), ["c"])
        gathered = self.case("d", 4.06, ranks=2)
        gathered["settings"]["dist.gather_dtype"] = "int8"
        self.assertEqual(self.differs(self.case("a", 4.0), gathered), [], "2 / 127 is allowed")
        small, large = self.case("b", 4.02, precision="bf16"), self.case("c", 4.04, precision="bf16")
        self.assertEqual(self.differs(self.case("a", 4.0), small, large), ["c"])

    def test_only_the_same_model_is_compared(self):
        self.assertEqual(self.differs(self.case("a", 4.0, **{"optim.lr": "1"}), self.case("b", 3.0, **{"optim.lr": "2"})), [])
        self.assertEqual(self.differs(self.case("a", 4.0, **{"dist.zero": "0"}), self.case("b", 3.0, **{"dist.zero": "2"})), ["b"])
        self.assertEqual(self.differs(self.case("a", 4.0, kind="resnet"), self.case("b", 3.0, ranks=2, kind="resnet")), [])

    def test_islands_train_something_else(self):
        for more in ({"islands": 2}, {"islands": 4}, {"islands": 2, "every": 10}):
            others = [self.case("a", 4.0), self.case("b", 3.0, islands=2, ranks=2), self.case("c", 2.0, ranks=4, **more)]
            self.assertEqual(self.differs(*others), ["c"] * (more == {"islands": 2}))
        self.assertEqual(self.differs(self.case("a", 4.0), self.case("b", 3.0, every=10)), ["b"], "there is one island")


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

    def finding(self, exposed=1, width=0.0, efficiency=None, nodes=1, mfu=0.4, data=1, copy=0, saving=0, slowest=(), slow_saves=(), ranks=4, node=None,
                **settings):
        """`node`: the exposed communication of the same job on one node."""
        usual = {"dist.zero": "0", "dist.overlap": "true", "dist.wire_dtype": "f32", "dist.reduce": "ring", "dist.shard": "world",
                 "checkpoint.async": "true", "train.offload": "none"}
        def of_launches(found):
            return [{"rank": rank, "host": f"host{rank}", "share": share, "ratio": ratio} for rank, share, ratio in found]
        parts = {"compute": 90 - data - copy, "communication": exposed, "data": data, "optimizer": 10, "copy": copy, "saving": saving}
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
        self.assertEqual(self.finding(exposed=30, **{"dist.wire_dtype": "bf16"}), (communication, advice.replace("bf16", "int8")))
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

    def test_copies(self):
        offload = {"train.offload": "optimizer"}
        found = ("waits for copies between host and GPU", "a larger train.global_batch or train.offload=none on more ranks")
        self.assertEqual(self.finding(exposed=30, copy=10, efficiency=0.8, **offload), found)
        self.assertEqual(self.finding(copy=10, **{"train.offload": "activations"}), (found[0], "train.offload=none on more ranks"))
        self.assertEqual(self.finding(copy=9, **offload)[0], "a baseline")
        slow = self.finding(data=11, copy=8, slowest=[(2, 1.0, 1.3)])[0]
        self.assertEqual(slow, "waits for rank 2, which computes longer", "data is less than half of 23.1 of 100 ms, 8 of which are copies")

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


def is_cut(figure):
    """Something reaches beyond the figure. In inches; lines of an axis are a hundredth thick."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn, whole = figure.get_tightbbox(canvas.get_renderer()), figure.bbox_inches
    return drawn.x0 < -0.02 or drawn.y0 < -0.02 or drawn.x1 > whole.x1 + 0.02 or drawn.y1 > whole.y1 + 0.02


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


class Charts(unittest.TestCase):
    POINT = {"median": 1.665, "low": 1.6, "high": 1.7}
    NAMES = ["r2-b64-train.global_batch=64-dist.zero=3-train.precision=bf16", "r4"]

    def line_chart(self, ranks, count=1, **words):
        series = [{"name": f"dist.zero = {index}", "points": [(n, self.POINT) for n in ranks], "ideal": [(n, n) for n in ranks]}
                  for index in range(count)]
        return charts.line_chart("Throughput", series, "tokens a second", **words)

    def bar_chart(self, **words):
        kinds = {"measured": [30, 10], "estimate": [5, 20]}
        return charts.bar_chart("Memory", "ms", "{:.0f} ms".format, self.NAMES, kinds, **words)

    def test_lines_go_through_medians_and_bars_reach_the_ends_of_intervals(self):
        [axes] = self.line_chart([1, 2, 8]).axes
        line, _, [bars] = axes.containers[0].lines
        self.assertEqual(line.get_xydata().tolist(), [[ranks, 1.665] for ranks in (1, 2, 8)])
        for bar, ranks in zip(bars.get_segments(), (1, 2, 8)):
            for end, value in zip(bar, (1.6, 1.7)):
                self.assertAlmostEqual(end[0], ranks)
                self.assertAlmostEqual(end[1], value)
        self.assertEqual(axes.lines[0].get_xydata().tolist(), [[1, 1], [2, 2], [8, 8]], "the ideal")
        self.assertEqual((axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()), ("Throughput", "ranks", "tokens a second"))
        self.assertEqual((axes.get_xscale(), axes.get_yscale()), ("log", "log"))
        self.assertEqual([label.get_text() for label in axes.get_xticklabels()], ["1", "2", "8"])
        self.assertEqual(legend(axes), ["ideal", "dist.zero = 0"])

    def test_a_percentage_begins_at_0(self):
        [axes] = self.line_chart([1, 2], percent=True).axes
        self.assertEqual((axes.get_yscale(), axes.get_ylim()[0]), ("linear", 0))
        self.assertEqual([text.get_text() for text in axes.texts], ["166.5%"] * 2)

    def test_bars(self):
        """Two bars beside each other for a case, or one of two pieces."""
        for stacked, begins, said in [(False, [0] * 4, ["30 ms", "10 ms", "5 ms", "20 ms"]),
                                      (True, [0, 0, 30, 10], ["30 ms", "10 ms", "5 ms", "20 ms", "35 ms", "30 ms"])]:
            [axes] = self.bar_chart(stacked=stacked).axes
            self.assertEqual([bar.get_width() for bar in axes.patches], [30, 10, 5, 20])
            self.assertEqual([bar.get_x() for bar in axes.patches], begins)
            self.assertEqual(len({round(bar.get_y(), 9) for bar in axes.patches}), 2 if stacked else 4, "none covers another")
            self.assertEqual([text.get_text() for text in axes.texts], said)
            self.assertEqual(["".join(label.get_text().split()) for label in axes.get_yticklabels()], self.NAMES)
            self.assertEqual((axes.get_xlabel(), legend(axes)), ("ms", ["measured", "estimate"]))

    def test_nothing_is_cut(self):
        for figure in [self.line_chart([1, 2], percent=True), self.line_chart([1, 2, 4, 1024], percent=True), self.line_chart([3]),
                       self.line_chart([1, 2], 8), self.bar_chart(), self.bar_chart(stacked=True)]:
            self.assertFalse(is_cut(figure))

    def test_colours_differ_in_grey(self):
        """By 5 % of white, for eight lines."""
        greys = [0.299 * red + 0.587 * green + 0.114 * blue for red, green, blue, _ in charts.shades(8)]
        self.assertGreater(min(after - before for before, after in zip(greys, greys[1:])), 0.05)

    def test_the_same_figures_give_the_same_bytes(self):
        plot = charts.svg(self.line_chart([1, 2], 2))
        self.assertTrue(plot.startswith("<svg "))
        self.assertEqual(plot, charts.svg(self.line_chart([1, 2], 2)))
        self.assertIn(">tokens a second</text>", plot, "text is text")


class Plots(unittest.TestCase):
    def test_lines(self):
        """One for each setting. The ideal begins at the smallest job, of 2 ranks, and is twice as fast on twice the ranks."""
        def interval(median):
            return {"median": median, "low": median, "high": median}
        cases = [{"ranks": ranks, "modes": ["weak"], "sweep": {"dist.zero": zero}, "unit": "tokens", "throughput": interval(speed)}
                 for zero, ranks, speed in [("0", 4, 180), ("0", 2, 100), ("2", 2, 80), ("2", 4, 120)]]
        rows = [{"mode": "weak", "against": "1 node", "ranks": case["ranks"], "sweep": case["sweep"], "efficiency": interval(0.9)} for case in cases]
        found = plots.lines({"request": {"modes": ["weak", "strong"]}, "efficiency": rows[:3]}, cases)
        self.assertEqual(list(found), ["throughput-weak", "efficiency-weak-1-node"])
        [throughput], [efficiency] = (figure.axes for figure in found.values())
        self.assertEqual(legend(throughput), ["ideal", "dist.zero = 0", "dist.zero = 2"])
        ideals = [line.get_xydata().tolist() for line in throughput.lines if line.get_linestyle() == "--" and len(line.get_xydata())]
        self.assertEqual(ideals, [[[2, 100], [4, 200]], [[2, 80], [4, 160]]])
        self.assertEqual([group.lines[0].get_ydata().tolist() for group in throughput.containers], [[100, 180], [80, 120]])
        self.assertEqual(legend(efficiency), ["ideal", "dist.zero = 0"], "one point is no line")

    def test_bars(self):
        """Each chart shows what it says, beside its estimate."""
        predicted = {"exposed_comm_ms": 1, "wire_bytes": 2, "peak_bytes": 3}
        case = {"id": "r2", "exposed_comm_ms": {"median": 4}, "wire_bytes": 5, "peak_bytes": 6, "predicted": predicted,
                "parts_ms": {"compute": 7, "data": 8}}
        drawn = {name: [bar.get_width() for bar in figure.axes[0].patches] for name, figure in plots.bars([case]).items()}
        self.assertEqual(drawn, {"communication": [4, 1], "traffic": [5, 2], "parts": [7, 8], "memory": [6, 3]})


class Heat(unittest.TestCase):
    CASE = {"id": "r2", "heat": {"launch": 4, "first_step": 11, "own_ms": [[100, 101], [100, 99], [99, 130], [300, 300]]}}

    def test_cells(self):
        """A row for each of two ranks, a column for each of four steps. Rank 1 is slow in the third, both in the last."""
        figure = charts.heat_map(self.CASE)
        axes, bar = figure.axes
        [image] = axes.images
        self.assertEqual([[round(ratio * 100.5) for ratio in row] for row in image.get_array()], [[100, 100, 99, 300], [101, 99, 130, 300]])
        self.assertEqual(list(image.get_extent()), [10.5, 14.5, 1.5, -0.5])
        self.assertEqual((axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()), ("r2, launch 4", "step", "rank"))
        self.assertEqual(bar.get_xlabel(), "own time / median of 100.5 ms")
        self.assertFalse(is_cut(figure))

    def test_levels(self):
        [image] = charts.heat_map(self.CASE).axes[0].images
        colours = [image.cmap(image.norm(ratio)) for ratio in (0.5, 1.04, 1.05, 1.2, 1.3, 1.5, 9)]
        self.assertEqual([colours.index(colour) for colour in colours], [0, 0, 2, 3, 4, 5, 6])

    def test_a_large_job_is_small(self):
        pick = random.Random(1)
        steps = [[pick.gauss(100, 20) for _ in range(64)] for _ in range(50)]
        plot = charts.svg(charts.heat_map({"id": "r64", "heat": {"launch": 1, "first_step": 11, "own_ms": steps}}))
        self.assertLess(len(plot), 60000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
