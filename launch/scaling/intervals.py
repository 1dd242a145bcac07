"""Confidence intervals.

The interval of a median is a pair of order statistics, which assumes nothing about the distribution but that the values are
independent. Of n values the k-th smallest is above the true median when fewer than k values are below it, which happens with
the probability that a fair coin shows heads fewer than k times in n throws. So the k-th smallest and the k-th largest enclose
the median with probability 1 - 2 P(heads < k). The largest k that keeps 95 % is taken. With 6 values it is 1: all lie in the
interval, with 1 - 2 / 64 = 96.9 %. Fewer than 6 cannot reach 95 %: then the range is given, and called so.
"""
from math import comb
from statistics import median

CONFIDENCE = 0.95


def confidence(count, k):
    """The probability that the k-th smallest and the k-th largest of `count` values enclose the median."""
    return 1 - 2 * sum(comb(count, below) for below in range(k)) / 2**count


def order(count):
    """The largest k that keeps the confidence; 0: none does."""
    return max((k for k in range(1, count // 2 + 1) if confidence(count, k) >= CONFIDENCE), default=0)


def summary(values):
    """The median with its interval. `confidence` is None for a range."""
    if not values:
        return None
    ordered, k = sorted(values), order(len(values))
    return {"median": median(ordered), "low": ordered[max(k, 1) - 1], "high": ordered[-max(k, 1)], "launches": len(ordered),
            "confidence": confidence(len(ordered), k) if k else None}
