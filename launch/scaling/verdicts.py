"""What a case shows, by what evidence, and what to try next. Only what the metrics of a run measure is judged: step time and
its parts, the slowest rank, bytes sent, memory and loss."""
from statistics import median

from .amounts import size
from .losses import loss_text

EXPOSED = 0.10  # communication that takes this part of a step is worth a change of settings
EFFICIENT = 0.90
OFTEN, SLOWER = 0.8, 1.1  # in this part of the steps, and so many times the median: a rank makes the others wait
SLOW_SAVE = 1.5  # writes of so many times the median: a rank makes the others wait
WAITS = 0.10  # waiting for data or saves that takes this part of a step is worth a change
LINK = 2  # so many times the exposed communication of one node: the link between nodes is the cause
NOISY = 0.10  # an interval is too wide at this part of the median
DOUBTFUL = 1.05  # an efficiency that noise alone does not give
EFFICIENCY_ABOVE = "the smaller job was slowed by something else, or had more to do than fits into the caches"
MFU_ABOVE = "the peak of the device was measured, at the start of a run, while something else slowed it"


def verdict(case, rows, request):
    """{"finding", "evidence", "next"}."""
    for judge in (not_measured, other_model, saves, slow_rank, data, copies, link, communication, noise, efficiency):
        found = judge(case, rows, request)
        if found:
            return dict(zip(("finding", "evidence", "next"), found))
    raise AssertionError("efficiency() always finds something")


def not_measured(case, _rows, _request):
    if case["step_ms"]:
        return None
    if not case["failed"]:
        return "not measured yet", "no launch has ended", "give the same command again"
    last = case["failed"][-1]
    return "fails", f"exit code {last['code']}: {last['last_line']}", "mend what it says, and give the same command again"


def other_model(case, _rows, _request):
    check = case["loss_check"]
    if not check["differs"]:
        return None
    return ("trains something else", f"its loss is {case['loss']:.6g}, {loss_text(check)}",
            "find out why before the times are used; dist.reduce=exact shows whether sums are the cause")


def saves(case, _rows, _request):
    """Saves come on top of the step."""
    stall = case["parts_ms"]["saving"]
    share = stall / (case["step_ms"]["median"] + stall)
    if share < WAITS:
        return None
    evidence = (f"checkpoints hold up training for {stall:.4g} ms a step, {share:.0%} of all time, on top of its "
                f"{case['step_ms']['median']:.4g} ms")
    advice = ["checkpoint.async=true"] if case["settings"]["checkpoint.async"] == "false" else []
    rank, host, ratio, count = often_slow(case["slow_saves"], SLOW_SAVE)
    if not count:
        return "waits for saves", evidence, " or ".join([*advice, "rarer checkpoints", "faster storage for run.dir"])
    evidence += f"; rank {rank} on {host} writes for {ratio:.2f} x the median"
    return f"waits for saves of rank {rank}", evidence, " or ".join([f"look at the storage of {host}", *advice, "rarer checkpoints"])


def often_slow(launches, least):
    """The rank that is slow in half of the launches or more: rank, host, ratio to the median, and in how many; 0: none is."""
    found = [each for each in launches if each["share"] >= OFTEN and each["ratio"] >= least]
    ranks = [(each["rank"], each["host"]) for each in found]
    rank, host = max(sorted(set(ranks)), key=ranks.count, default=(None, None))
    count = ranks.count((rank, host))
    if not count or 2 * count < len(launches):
        return None, None, None, 0
    return rank, host, median([each["ratio"] for each in found if each["rank"] == rank]), count


def slow_rank(case, _rows, _request):
    rank, host, ratio, count = often_slow(case["slowest"], SLOWER)
    if case["ranks"] == 1 or not count:
        return None
    parts = case["parts_ms"]
    own = parts["compute"] + parts["data"] + parts["optimizer"] + parts["copy"]
    evidence = (f"rank {rank} on {host} was slowest in {OFTEN:.0%} of the steps or more of {count} of {len(case['slowest'])} "
                f"launches, its own time {ratio:.2f} x the median; {parts['data']:.4g} of its {own:.4g} ms it waits for data")
    if 2 * parts["data"] >= own * (1 - 1 / ratio):  # data takes half of the time that the rank takes longer
        return f"waits for rank {rank}, which waits for data", evidence, f"look at the storage of {host}"
    return f"waits for rank {rank}, which computes longer", evidence, f"look at {host} for another process or a hot GPU"


def data(case, _rows, _request):
    if data_share(case) < WAITS:
        return None
    return ("waits for data", f"{case['parts_ms']['data']:.4g} of {case['step_ms']['median']:.4g} ms, {data_share(case):.0%}, "
            "is waiting for the loader", "a larger data.prefetch, or faster storage")


def data_share(case):
    return case["parts_ms"]["data"] / case["step_ms"]["median"]


def copies(case, _rows, _request):
    copy, step, offload = case["parts_ms"]["copy"], case["step_ms"]["median"], case["settings"]["train.offload"]
    if copy / step < WAITS:
        return None
    longer = ["a larger train.global_batch"] if offload == "optimizer" else []  # the same copies, and more that hides them
    return ("waits for copies between host and GPU", f"{copy:.4g} of {step:.4g} ms, {copy / step:.0%}, is waiting for what train.offload = {offload} "
            "copies", " or ".join([*longer, "train.offload=none on more ranks"]))


def link(case, rows, _request):
    """The link holds up a job on several nodes whose ranks, on one node, wait much less for each other."""
    row = against(case, rows, "1 node")
    if not row or exposed_share(case) < EXPOSED or case["exposed_comm_ms"]["median"] < LINK * row["base_exposed_ms"]:
        return None
    sent = case["between_bytes"] * case["ranks"] // case["nodes"]
    # A node may also send while something hides that, so the time that it sends lies between these two.
    slow, fast = (sent / case[key]["median"] / 1e6 for key in ("step_ms", "exposed_comm_ms"))
    return (f"waits for the link between nodes: {slow:.2g} to {fast:.2g} GB/s", f"{exposed(case)}, against "
            f"{row['base_exposed_ms']:.4g} ms on one node; a node sends {size(sent)} to others in a step",
            " or ".join(["`tandem bench links`, which shows whether the link reaches its rate", *less_communication(case)][:3]))


def communication(case, _rows, _request):
    if exposed_share(case) < EXPOSED:
        return None
    evidence = exposed(case)
    predicted = case["predicted"]
    if predicted["step_ms"] > 0:
        evidence += f"; `tandem estimate` expects {predicted['exposed_comm_ms'] / predicted['step_ms']:.0%}"
    return "waits for communication", evidence, " or ".join(list(less_communication(case))[:3])


def exposed(case):
    return (f"{case['exposed_comm_ms']['median']:.4g} of {case['step_ms']['median']:.4g} ms, {exposed_share(case):.0%}, "
            "is communication that nothing hides")


def less_communication(case):
    """Settings that send less, or hide more, the strongest first."""
    settings = case["settings"]
    if settings["dist.overlap"] == "false":
        yield "dist.overlap=true"
    if settings["dist.zero"] == "3":
        yield "dist.zero=2, if it fits"
    if case["nodes"] > 1 and settings["dist.zero"] != "0" and settings["dist.shard"] == "world":
        yield "dist.shard=node"
    if settings["dist.wire_dtype"] != "int8" and settings["dist.reduce"] == "ring":
        yield f"dist.wire_dtype={'bf16' if settings['dist.wire_dtype'] == 'f32' else 'int8'}"
    yield "a larger train.global_batch"
    yield "another dist.bucket_mb"


def noise(case, _rows, request):
    interval = case["step_ms"]
    width = (interval["high"] - interval["low"]) / interval["median"]
    if interval["launches"] < 2 or width <= NOISY:
        return None
    return ("too noisy to say", f"the interval of its step is {width:.0%} of the median wide",
            f"--launches {2 * request['launches']}, on a machine that does nothing else")


def efficiency(case, rows, _request):
    row = against(case, rows, "1 node") or against(case, rows, "1 rank")
    again = "the same again on a machine that does nothing else"
    if case["mfu"] and case["mfu"]["median"] > 1:
        return "an MFU above 100 %", f"{case['mfu']['median']:.0%}: {MFU_ABOVE}", again
    if not row:
        return "a baseline", f"{exposed_share(case):.0%} of its step is exposed communication", memory_advice(case)
    percent = f"{row['efficiency']['median']:.0%} of the throughput of a rank of {row['base']}"
    if row["efficiency"]["median"] > DOUBTFUL:
        return "more than can be", f"{percent}: {EFFICIENCY_ABOVE}", again
    if row["efficiency"]["median"] >= EFFICIENT:
        return "scales well", percent, memory_advice(case)
    evidence = f"{percent}, though only {exposed_share(case):.0%} of its step is exposed communication"
    if row["mode"] == "strong":
        return "loses time, not by communication", evidence, "more samples a rank: smaller ones make smaller, slower products"
    return "loses time, not by communication", evidence, "a look for a host that is slower, or shared with other jobs"


def against(case, rows, baseline):
    """The case's row against another case."""
    return next((row for row in rows if row["case"] == case["id"] != row["base"] and row["against"] == baseline), None)


def exposed_share(case):
    return case["exposed_comm_ms"]["median"] / case["step_ms"]["median"]


def memory_advice(case):
    used = case["peak_bytes"] / case["predicted"]["memory_bytes"]
    if used < 0.5:
        return f"more samples a rank: it uses {used:.0%} of the memory"
    return "more ranks"
