#!/usr/bin/env python3
"""Packings of 5,000 random lists of documents against a planner that is slow and says no more than the rules do.

    test_packing_plans.py build/tandem_packing [unittest arguments]
"""
import itertools
import os
import random
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "parity"))
from packing_reference import POOL, planned_pool
from sample_order import pools

LISTS = 5000


def planned(context, cuts, seed, lengths):
    """What tandem_packing prints."""
    starts = list(itertools.accumulate(lengths, initial=0))
    in_order = [range(first, min(first + POOL, len(lengths))) for first in range(0, len(lengths), POOL)]
    windows = []
    for pool in in_order if seed < 0 else pools(seed, len(lengths)):
        windows += planned_pool([(lengths[n], starts[n]) for n in pool], context + 1, cuts)

    ends = set(starts[1:])

    def shown(length, start):
        return f"{start}:{length}" + (" " if start + length in ends else "+ ")
    text = "".join("".join(shown(*piece) for piece in window) + "| " for window in windows)
    cut = text.count("+") if cuts else sum(length > context + 1 for length in lengths)
    return f"{text}{cut} {len(windows) * (context + 1) - sum(length for window in windows for length, _ in window)}"


def random_list(number):
    draw = random.Random(number)
    context = draw.choice([1, 2, 3, 7, 16, 64])
    count = draw.randint(1000, 3000) if number % 250 == 0 else draw.randint(0, 40)
    length = draw.choice([
        lambda: 1,
        lambda: draw.randint(1, context + 2),
        lambda: draw.randint(1, 4 * context + 4),
        lambda: draw.choice([context, context + 1, context + 2, 2 * context + 2]),
        lambda: 1 + int(draw.expovariate(3 / context)),
        lambda: 1 + int(draw.lognormvariate(1, 1.5)),
    ])
    return context, draw.random() < 0.5, draw.choice([-1, number]), [length() for _ in range(count)]


class PackingPlans(unittest.TestCase):
    def test_windows_are_those_of_the_rules(self):
        lists = [random_list(number) for number in range(LISTS)]
        given = "".join(" ".join(map(str, [context, int(cuts), seed, *lengths])) + "\n" for context, cuts, seed, lengths in lists)
        found = subprocess.run([program], input=given, capture_output=True, text=True, check=True).stdout.splitlines()
        for one, windows in zip(lists, found, strict=True):
            self.assertEqual(windows, planned(*one), one)
        self.assertGreater(sum(len(lengths) > POOL for *_, lengths in lists), LISTS / 500)


if __name__ == "__main__":
    program = sys.argv.pop(1)
    unittest.main()
