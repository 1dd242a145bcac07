"""The expected time of a run that is interrupted, the best interval between its checkpoints, and when spot is cheaper.

A run needs W seconds of work. After every tau seconds of work, and at the end of all work, it begins a save, which stalls
training for `stall` seconds and is durable `save` seconds after it began, beside training. As in `tandem train`, a save begins
only after the one before it is durable. The run ends when its last save is durable. Interruptions of the whole job come at the
rate lambda, independent of all before. Each is followed by a restart of R seconds, which may be interrupted and then begins
anew, and by the work after the newest durable checkpoint, or all work if there is none. The time of the first start is not
counted.

Of n segments of work w_k, k = 0 ... n - 1 (tau seconds, the last one the rest), let A_k be the time from a start at checkpoint
k until checkpoint k + 1 is durable, and L_k the time from the moment that checkpoint k is durable until k + 1 is, both without
an interruption. A save is due w_k + stall after the one before it began, and begins no sooner than that one ends. So

    A_k = w_k + save        L_0 = A_0        L_k = max(w_k + stall, save)

A stage of s seconds lasts (1 - e^(-lambda s)) / lambda on average until it ends or is interrupted, and a restart
(e^(lambda R) - 1) / lambda until it succeeds. Let F_k be the expected time from a start at checkpoint k to the end of the run,
G_k that from the moment that checkpoint k is durable, and G_n = 0. With C = e^(lambda R) / lambda

    F_k = (1 - e^(-lambda A_k)) (C + F_k) + e^(-lambda A_k) G_(k+1)    so    F_k = C (e^(lambda A_k) - 1) + G_(k+1)
    G_k = (1 - e^(-lambda L_k)) (C + F_k) + e^(-lambda L_k) G_(k+1)    so    G_k = C e^(lambda A_k) (1 - e^(-lambda L_k)) + G_(k+1)

    F_0 = sum over all k of C e^(lambda A_k) (1 - e^(-lambda L_k))

With save = stall, when training waits for the whole save, a term is C (e^(lambda (w_k + stall)) - 1), the exact equation of
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006.
"""
from math import ceil, exp, expm1, inf, isfinite, sqrt

from errors import CONFIG, Failure

DAY = 86400
ROUNDING = 1e-9  # W / (W / n) may be so much over n


def interruptions_per_s(nodes, a_node_day):
    """The rate for the whole job, which any one node interrupts."""
    require("nodes", nodes, 1)
    require("interruptions a node and day", a_node_day)
    return nodes * a_node_day / DAY


def expected_seconds(work_s, interval_s, per_s, stall_s, save_s, restart_s):
    """F_0, with `per_s` interruptions a second; infinite where no float holds it."""
    require("seconds of work", work_s, above=True)
    require("the interval between checkpoints", interval_s, above=True)
    require("interruptions a second", per_s)
    require("the seconds of a save's stall", stall_s)
    require("the seconds of a save", save_s, stall_s, above=stall_s == 0)
    require("the seconds of a restart", restart_s)
    segments = max(1, ceil(work_s / interval_s - ROUNDING))
    rest_s = work_s - (segments - 1) * interval_s
    first_s = min(interval_s, work_s) + save_s
    stages = [(1, first_s, first_s)]  # how many, A_k, L_k
    if segments > 1:
        stages += [(count, w + save_s, max(w + stall_s, save_s)) for count, w in [(segments - 2, interval_s), (1, rest_s)]]
    if per_s == 0:
        return sum(count * l for count, _, l in stages)
    try:
        return exp(per_s * restart_s) / per_s * sum(count * exp(per_s * a) * -expm1(-per_s * l) for count, a, l in stages)
    except OverflowError:
        return inf


def goodput(work_s, interval_s, per_s, stall_s, save_s, restart_s):
    """The part of the expected time that is work."""
    return work_s / expected_seconds(work_s, interval_s, per_s, stall_s, save_s, restart_s)


def best_interval(work_s, per_s, stall_s, save_s, restart_s):
    """The seconds of work between two saves with the least expected time. Segments of one length are best: with n of them

        F_0 / C = n h(W / n) + m(W / n)    h(w) = e^(lambda (w + save)) - e^(lambda min(w, d))    m(w) = e^(lambda min(w, d)) - 1

    where d = save - stall. h is convex, so a longer tau, which shortens the last segment, makes the sum of h no less, nor m,
    which grows. F_0 is convex in n: n h(W / n) is, and m(W / n) is but for a bend down where W / n = d, at which n h bends up n
    times as much. So the way downhill from Daly's estimate ends at the best n.
    """
    def seconds(segments):
        return expected_seconds(work_s, work_s / segments, per_s, stall_s, save_s, restart_s)

    segments = 1
    seconds(segments)  # refuses bad figures
    if per_s > 0:  # shorter than d is only of use where interruptions come sooner
        segments = max(1, round(work_s / max(daly(stall_s, 1 / per_s), min(save_s - stall_s, 1 / per_s))))
    for way in (1, -1):
        while segments + way > 0 and seconds(segments + way) < seconds(segments):
            segments += way
    return work_s / segments


def daly(stall_s, between_s):
    """Daly's higher order estimate of the best interval, for a mean time between interruptions."""
    if stall_s >= 2 * between_s:
        return between_s
    part = stall_s / (2 * between_s)
    return sqrt(2 * stall_s * between_s) * (1 + sqrt(part) / 3 + part / 9) - stall_s


def break_even_rate(usd_spot, usd_on_demand, nodes, work_s, stall_s, save_s, restart_s):
    """The interruptions a node and day up to which spot, at its best interval, costs less than on demand without interruptions.
    Both prices are of one thing, such as an hour of a node. 0: spot costs no less even without interruptions."""
    require("the price of spot", usd_spot, above=True)
    require("the price on demand", usd_on_demand, above=True)
    undisturbed_s = expected_seconds(work_s, work_s, 0, stall_s, save_s, restart_s)

    def is_cheaper(a_node_day):
        per_s = interruptions_per_s(nodes, a_node_day)
        interval_s = best_interval(work_s, per_s, stall_s, save_s, restart_s)
        return usd_spot * expected_seconds(work_s, interval_s, per_s, stall_s, save_s, restart_s) < usd_on_demand * undisturbed_s

    if not is_cheaper(0):
        return 0.0
    low, high = 0.0, 1.0
    while is_cheaper(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if is_cheaper(middle) else (low, middle)
    return low


def require(what, value, least=0, above=False):
    if not isfinite(value) or value < least or (above and value == least):
        raise Failure(CONFIG, f"{what}: {value:g} is not {'above' if above else 'at least'} {least:g}")
