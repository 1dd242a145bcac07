#!/usr/bin/env python3
"""The expected time of interrupted runs, the best interval between checkpoints and the rate at which spot pays, against a
simulation and against what is known.

    test_goodput.py [unittest arguments]
"""
import math
import random
import statistics
import sys
import unittest

from scaling_studies import LAUNCH

sys.path.insert(0, LAUNCH)
from scaling import goodput
from errors import CONFIG, Failure

DRAWS = 10000
# Name: work, interval, mean time between interruptions, stall, save, restart; all in seconds.
SETTINGS = {
    "training waits for saves": (20000, 500, 5000, 30, 30, 60),
    "saves beside training": (20000, 500, 5000, 5, 120, 60),
    "a rest after the last whole interval": (20130, 500, 3000, 5, 200, 60),
    "the interval nears the time between interruptions": (40000, 1000, 1100, 10, 100, 100),
    "the interval exceeds it": (100000, 2000, 1000, 10, 100, 200),
    "saves take longer than the interval": (6000, 100, 1000, 5, 350, 60),
    "restarts take as long as the time between interruptions": (20000, 200, 600, 5, 50, 600),
    "no checkpoint but the last": (5000, 9000, 50000, 10, 100, 300),
}


def simulated(rng, work, interval, between, stall, save, restart):
    """The seconds of one run whose interruptions are at random moments."""
    now, durable = 0.0, 0.0
    interrupted = rng.expovariate(1 / between)
    while True:
        done, begun, ended = durable, now - stall, now
        while ended <= interrupted and durable < work:
            segment = min(interval, work - done)
            begun = max(begun + stall + segment, ended)  # a save waits for the end of the one before
            done, ended = done + segment, begun + save
            if ended <= interrupted:
                durable = done
        if durable == work:
            return ended
        now, interrupted = interrupted, interrupted + rng.expovariate(1 / between)
        while now + restart > interrupted:
            now, interrupted = interrupted, interrupted + rng.expovariate(1 / between)
        now += restart


class ExpectedTime(unittest.TestCase):
    def test_simulated_runs(self):
        """Within 1 % of the mean of the draws, whose standard error is below 0.25 %: a right formula is off by more than 1 %
        with a probability below 1e-4, and for these seeds it is or is not."""
        for name, (work, interval, between, stall, save, restart) in SETTINGS.items():
            with self.subTest(name):
                rng = random.Random(name)
                draws = [simulated(rng, work, interval, between, stall, save, restart) for _ in range(DRAWS)]
                mean, error = statistics.fmean(draws), statistics.stdev(draws) / math.sqrt(DRAWS)
                expected = goodput.expected_seconds(work, interval, 1 / between, stall, save, restart)
                print(f"{name}: {expected:.6g} s, simulated {mean:.6g} s, standard error {error / mean:.3%}")
                self.assertLess(error, 0.0025 * mean)
                self.assertLess(abs(expected - mean), 0.01 * mean)
                self.assertEqual(goodput.goodput(work, interval, 1 / between, stall, save, restart), work / expected)

    def test_without_interruptions(self):
        for work, interval, stall, save, seconds in [
                (1000, 100, 7, 7, 1000 + 10 * 7),
                (1000, 100, 2, 30, 1000 + 9 * 2 + 30),
                (1050, 100, 2, 30, 1050 + 10 * 2 + 30),
                (1050, 100, 5, 350, 100 + 11 * 350),  # from the second save on, each waits for the one before
                (1000, 5000, 2, 30, 1000 + 30)]:
            self.assertEqual(goodput.expected_seconds(work, interval, 0, stall, save, 60), seconds)

    def test_equal_parts_of_the_work(self):
        """Work over work over n may be a little over n, which makes no segment more. n sums round by less than 1e-6."""
        for n in range(1, 1000):
            seconds = goodput.expected_seconds(1000, 1000 / n, 0, 7, 7, 60)
            self.assertLess(abs(seconds - (1000 + 7 * n)), 1e-6)

    def test_daly_s_equation(self):
        """Of whole intervals with training that waits for saves. Both are a few roundings of 2^-53 from the same number, and
        e^x - 1 with x = 0.106 loses four bits."""
        between, restart, interval, save = 5000, 60, 500, 30
        daly = between * math.exp(restart / between) * (math.exp((interval + save) / between) - 1) * 40
        self.assertLess(abs(goodput.expected_seconds(20000, interval, 1 / between, save, save, restart) / daly - 1), 1e-14)

    def test_never_ends(self):
        self.assertEqual(goodput.expected_seconds(1e6, 1e6, 1, 1, 1, 1), math.inf)
        self.assertEqual(goodput.goodput(1e6, 1e6, 1, 1, 1, 1), 0)


class BestInterval(unittest.TestCase):
    def test_no_interval_of_a_grid_is_better(self):
        """An interval from 1/3000 of the work to more than all of it, and all equal parts of the work."""
        rng = random.Random(50)
        parts = set()
        for _ in range(40):
            work, per_s = 10 ** rng.uniform(2, 5), 10 ** rng.uniform(-6, -2)
            stall, restart = 10 ** rng.uniform(-1, 1.5), 10 ** rng.uniform(0, 2)
            save = stall * 10 ** rng.choice([0, rng.uniform(0, 1.5)])
            best = goodput.best_interval(work, per_s, stall, save, restart)
            parts.add(round(work / best))
            seconds = goodput.expected_seconds(work, best, per_s, stall, save, restart)
            for interval in [work / 3000 * 1.005 ** k for k in range(1610)] + [work / n for n in range(1, 500)]:
                other = goodput.expected_seconds(work, interval, per_s, stall, save, restart)
                self.assertLessEqual(seconds, other * (1 + 1e-6), (work, per_s, stall, save, restart, best, interval))
        self.assertIn(1, parts)
        self.assertGreater(max(parts), 100)

    def test_young_s_interval(self):
        """Of endless work, with x = tau / M and d = stall / M, the best interval has (1 - x) e^(x + d) = 1, so
        d = -x - ln(1 - x) = x^2 / 2 + x^3 / 3 + ..., which is between x^2 / 2 and x^2 / 2 + x^3 / (3 (1 - x)). Young's
        interval over it, sqrt(2 d) / x, is then between 1 and 1 + x / (3 (1 - x)), where x <= y = sqrt(2 d). With n segments
        the best one is the work over a whole number beside its quotient, so a part of 1 / n beside."""
        for between, stall in [(1e6, 0.5), (1e5, 5), (1e4, 50)]:
            young, y = math.sqrt(2 * stall * between), math.sqrt(2 * stall / between)
            work = 1000 * young
            best = goodput.best_interval(work, 1 / between, stall, 2 * stall, 60)
            n = work / best
            self.assertGreater(young / best, 1 - 1 / n)
            self.assertLess(young / best, (1 + y / (3 * (1 - y))) * (1 + 2 / n))

    def test_limits(self):
        self.assertEqual(goodput.best_interval(1000, 0, 1, 10, 60), 1000)
        # Waiting for saves of 100 s is avoided while interruptions are rarer, though Young's interval is 14 s.
        self.assertEqual(goodput.best_interval(10000, 1 / 10000, 0.01, 100, 60), 100)


class BreakEven(unittest.TestCase):
    def dollars(self, a_node_day, nodes, work, saving):
        per_s = goodput.interruptions_per_s(nodes, a_node_day)
        return goodput.expected_seconds(work, goodput.best_interval(work, per_s, *saving), per_s, *saving)

    def test_costs_are_equal_there(self):
        for usd_spot, usd_on_demand, nodes, work, saving in [
                (10, 22, 4, 5e5, (2, 60, 300)), (21, 22, 1, 1e5, (30, 30, 600)), (6, 55, 64, 3e6, (1, 120, 900))]:
            rate = goodput.break_even_rate(usd_spot, usd_on_demand, nodes, work, *saving)
            on_demand = usd_on_demand * self.dollars(0, nodes, work, saving)
            self.assertEqual(self.dollars(0, nodes, work, saving), work + saving[1])
            self.assertLess(abs(usd_spot * self.dollars(rate, nodes, work, saving) / on_demand - 1), 1e-6)
            self.assertLess(usd_spot * self.dollars(rate * 0.999, nodes, work, saving), on_demand)
            self.assertGreater(usd_spot * self.dollars(rate * 1.001, nodes, work, saving), on_demand)

    def test_spot_that_is_no_cheaper(self):
        for usd_spot in [22, 23]:
            self.assertEqual(goodput.break_even_rate(usd_spot, 22, 4, 5e5, 2, 60, 300), 0)


class Refusals(unittest.TestCase):
    def test_bad_figures(self):
        for call, said in [
                (lambda: goodput.expected_seconds(0, 1, 0, 1, 1, 1), "seconds of work: 0 is not above 0"),
                (lambda: goodput.expected_seconds(math.inf, 1, 0, 1, 1, 1), "seconds of work: inf is not above 0"),
                (lambda: goodput.expected_seconds(1, -1, 0, 1, 1, 1), "the interval between checkpoints: -1 is not above 0"),
                (lambda: goodput.expected_seconds(1, 1, -2, 1, 1, 1), "interruptions a second: -2 is not at least 0"),
                (lambda: goodput.expected_seconds(1, 1, 0, math.nan, 1, 1), "the seconds of a save's stall: nan is not at least 0"),
                (lambda: goodput.expected_seconds(1, 1, 0, 5, 4, 1), "the seconds of a save: 4 is not at least 5"),
                (lambda: goodput.best_interval(1, 0, 0, 0, 1), "the seconds of a save: 0 is not above 0"),
                (lambda: goodput.goodput(1, 1, 0, 1, 1, -1), "the seconds of a restart: -1 is not at least 0"),
                (lambda: goodput.interruptions_per_s(0, 1), "nodes: 0 is not at least 1"),
                (lambda: goodput.interruptions_per_s(1, -1), "interruptions a node and day: -1 is not at least 0"),
                (lambda: goodput.break_even_rate(0, 1, 1, 1, 1, 1, 1), "the price of spot: 0 is not above 0"),
                (lambda: goodput.break_even_rate(1, 0, 1, 1, 1, 1, 1), "the price on demand: 0 is not above 0")]:
            with self.subTest(said), self.assertRaises(Failure) as raised:
                call()
            self.assertEqual((raised.exception.code, *raised.exception.lines), (CONFIG, said))


if __name__ == "__main__":
    unittest.main(verbosity=2)
