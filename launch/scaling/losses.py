"""Do cases of one global batch train the same model?

They take the same samples in the same order, so their losses may differ by rounding alone. The tolerance is relative:

    2 u + 10 x steps x (ranks - 1) x 2^-24

u is the unit roundoff of the coarsest type that one of the two cases stores weights in or sends gradients or values in (f32
2^-24, fp16 2^-11, bf16 2^-8; int8 1 / 127, of a block's largest element). Each case's loss is computed from values rounded to that type, which is off by at most u: 2 u for two cases.
Then, gradients are summed over ranks in f32 in different orders. A sum of n terms is off by at most (n - 1) x 2^-24 of the sum
of their magnitudes. Cancellation within a gradient makes this about 10 times larger relative to the gradient. An optimizer
such as Adam divides by the gradient's own size, so each step adds one such error.
"""

ROUNDOFF = {"auto": 0, "f32": 2**-24, "fp16": 2**-11, "bf16": 2**-8, "int8": 1 / 127}
CANCELLATION = 10
# Swept settings that may change rounding only; islands are looked at beside them. All others change what is trained.
SAME_MODEL = ("dist.", "checkpoint.", "log.", "data.prefetch", "run.device", "run.threads", "train.precision", "train.recompute",
              "train.micro_batch")


def tolerance(one, other, steps):
    u = max(ROUNDOFF[case["settings"].get(key, "auto")] for case in (one, other)
            for key in ("train.precision", "dist.wire_dtype", "dist.gather_dtype"))
    ranks = max(one["ranks"], other["ranks"])
    return 2 * u + CANCELLATION * steps * (ranks - 1) * 2**-24


def group_of(case):
    """Cases with the same key should have the same loss. BatchNorm takes its statistics from one micro-batch, so a resnet's
    loss also depends on its size."""
    settings = case["settings"]
    changes = tuple((key, value) for key, value in case["sweep"].items() if not key.startswith(SAME_MODEL))
    islands = [settings[f"dist.{key}"] for key in ("islands", "sync_every", "sync_delay")]
    micro_batch = int(settings["train.micro_batch"]) or case["global_batch"] // case["ranks"]
    return case["global_batch"], changes, tuple(islands) if islands[0] != "1" else None, micro_batch if settings["model.kind"] == "resnet" else None


def compare(cases, steps):
    """Writes into each case that has a loss how far it is from that of its group's smallest job."""
    groups = {}
    for case in cases:
        if case["loss"] is not None:
            groups.setdefault(group_of(case), []).append(case)
    for group in groups.values():
        first = min(group, key=lambda case: case["ranks"])
        for case in group:
            difference = abs(case["loss"] - first["loss"]) / abs(first["loss"])
            allowed = tolerance(case, first, steps)
            case["loss_check"] = {"against": first["id"], "relative_difference": difference, "tolerance": allowed,
                                  "differs": not difference <= allowed}


def loss_text(check):
    return (f"which differs from that of {check['against']} by {check['relative_difference']:.2g} of it; "
            f"rounding explains {check['tolerance']:.2g}")
