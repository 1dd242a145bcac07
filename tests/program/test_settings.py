#!/usr/bin/env python3
"""Every setting of `tandem train` does what it says: a table of pairs of runs that differ in one setting, and of how
their results must differ. A setting without a row fails.

    test_settings.py PATH_TO_TANDEM [unittest arguments]

To test one setting: Settings.test_optim_lr.
"""
import configparser
import glob
import os
import re
import signal
import subprocess
import tempfile
import time

import tandem_program
from ended_run import (Row, Run, biases, buckets, changes_only, checkpoints, differs, exists, figure, gives, has_events, losses,
                       lowers, memory, moments, names, numbered, of_rank_0, places_sent_to, printed, rates, roots, same,
                       saves_beside_steps, scales, sent, settings_of, shape, shapes, steps, texts_shown, val_losses, validations, weights)
from fake_imds import NOTICE, FakeImds
from tandem_program import CONFIG, DATA, MPI_ENV, NUMERICAL, OK, STOPPED, Workspace, run, words

LOST_PEER, CHARACTERS, CONTEXT, BATCH, LR = 75, 2000, 8, 4, 2 ** -7
VALIDATED = CHARACTERS - int(0.9 * CHARACTERS) - 1  # the number of validation targets
# The settings of each run, unless its row says otherwise. No GPU and no cloud, so that results are the same everywhere.
BASE = {"run.device": "cpu", "run.threads": "1", "run.watch_spot": "off", "data.path": "words.h5", "train.global_batch": str(BATCH), "train.steps": "2",
        "train.log_every": "1", "optim.lr": str(LR), "optim.min_lr": "0", "optim.warmup_steps": "0", "log.progress": "none"}
TEXT = {"model.layers": "1", "model.heads": "2", "model.width": "16", "model.context": str(CONTEXT)}
SIZES = {"gpt": TEXT, "llama": TEXT, "mlp": {"model.layers": "1", "model.width": "16"}, "resnet": {"model.depth": "8"}}
# Shards of a bucket are multiples of 128 elements. This is the most padding, in bytes, of two f32 moments in four buckets.
PADDING = 128 * 4 * 2 * 4
STILL = "optim.lr=0"  # weights do not change, but losses, gradients and moments are computed
SGD = "optim.kind=sgd"
# Its pairs of heads of 8 make 2.5, 0.25, 0.025 and 0.0025 turns in the original context.
LLAMA = STILL + " model.kind=llama"
LLAMA3 = LLAMA + " model.rope_scaling=llama3 model.rope_original_context=16"
MLP, RESNET = "model.kind=mlp data.path=digits.h5", "model.kind=resnet data.path=digits.h5"
ISLANDS = "dist.islands=2 train.steps=4"
TUNED = "checkpoint.init_from=runs/teacher lora.rank=4"
BORROWS = "checkpoint.init_from=runs/teacher checkpoint.self_contained=false model.freeze=wpe"


class Live:
    """What can be tested only while jobs run: test(test, key)."""

    def __init__(self, test):
        self.test = test


def timeouts(test, key):
    """A job with a rank that is stopped ends after so many seconds, or a little later."""
    short, long = (test.start(f"timeout{seconds}", {key: str(seconds)}, ranks=2) for seconds in [3, 600])
    stopped = [test.processes_of(f"timeout{seconds}")[0] for seconds in [3, 600]]
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    began = time.monotonic()
    _, errors = short.communicate(timeout=30)
    test.assertGreater(time.monotonic() - began, 2.9)
    test.assertEqual(short.returncode, LOST_PEER, errors)
    test.assertIsNone(long.poll())
    os.kill(stopped[1], signal.SIGCONT)
    test.stop(long, "timeout600")


def minutes_between_checkpoints(test, key):
    """With 0.01 minutes a save begins every 0.6 s or a little later; with 0.6 minutes there is none yet."""
    often, rarely = (test.start("minutes" + minutes, {key: minutes, "checkpoint.keep": "99"}) for minutes in ["0.01", "0.6"])
    def saved(minutes):
        return [os.stat(path).st_mtime for path in glob.glob(f"runs/minutes{minutes}/checkpoints/step-*[0-9]/manifest.json")]
    test.wait_until(lambda: len(saved("0.01")) >= 3, 20)
    times, none = sorted(saved("0.01")), saved("0.6")
    test.stop(often, "minutes0.01")
    test.stop(rarely, "minutes0.6")
    test.assertEqual(none, [])
    began = os.stat("runs/minutes0.01/lock").st_mtime
    for number, time_ in enumerate(times, 1):  # a manifest is written some time after its save began; clocks of files tick every 10 ms
        test.assertGreater(time_ - began, number * 0.6 - 0.01)


def spot_notices(test, key):
    """There is a notice from the start."""
    for value, code, asks in [("on", STOPPED, True), ("auto", STOPPED, True), ("off", OK, False)]:
        with FakeImds(NOTICE) as imds:
            steps = "20" if value == "off" else "100000000"
            settings = {"run.name": "spot" + value, key: value, "train.steps": steps}
            test.check(run(*test.words_of(settings), environment={"TANDEM_IMDS": imds.address}), code)
            test.assertEqual(len(imds.requests) > 0, asks)


ROWS = {
    "run.name": [Row("one", "two", gives(printed(r"^run +(\S+)"), ["runs/one"], ["runs/two"]), same(losses))],
    "run.dir": [Row("here", "there", gives(printed(r"^run +(\S+)"), ["here/r"], ["there/r"]), given="run.name=r")],
    # The seed decides initial weights, sample order, dropout and augmentation; in each row at most one of them matters.
    "run.seed": [
        Row(1, 2, changes_only("param/", least_dimensions=2, among="param/"), given=STILL),
        Row(1, 2, differs(losses), same(weights), given=STILL + " checkpoint.init_from=runs/teacher"),
        Row(1, 2, differs(losses), same(weights), given=STILL + " checkpoint.init_from=runs/teacher data.path=window.h5 model.dropout=0.5"),
        Row(1, 2, same(losses, weights), given=STILL + " checkpoint.init_from=runs/teacher data.path=window.h5"),
        Row(1, 2, differs(losses), same(weights),
            given=STILL + " checkpoint.init_from=runs/images model.kind=mlp data.path=same.h5 data.augment=true"),
        Row(1, 2, same(losses, weights), given=STILL + " checkpoint.init_from=runs/images model.kind=mlp data.path=same.h5")],
    "run.device": [Row("cpu", "cuda", ends=(CONFIG, "run.device = cuda"))],
    "run.threads": [Row(1, 3, gives(printed(r"^machine .*?(\d+) threads? a rank"), ["1"], ["3"]))],
    "run.choices": [Row(None, "words.txt", ends=(CONFIG, "run.choices is for a GPU"))],
    "run.stop_file": [Row(None, "words.txt", gives(checkpoints, [2], [0]), gives(steps, [1, 2], []),  # words.txt is there
                          ends=(STOPPED, "run.stop_file = words.txt is there: saving after step 0, then stopping; remove the file")),
                      Row(None, "words.txt", gives(checkpoints, [], [0]), given="checkpoint.at_end=false",
                          ends=(STOPPED, "saving after step 0"))],
    "run.watch_spot": [Live(spot_notices)],
    "run.usd_per_node_hour": [Row(0, 36, same(losses, weights), gives(lambda run: len(printed(r"^cost +0[.]\d\d dollars")(run)), 0, 1))],
    "data.path": [Row("words.h5", "other.h5", gives(printed(r"^data +(\S+):"), ["words.h5"], ["other.h5"]), differs(losses))],
    "data.windows": [Row("stream", "documents", gives(lambda run: "padding" in run.report, False, True), differs(losses))],
    "data.prefetch": [Row(1, 5, gives(lambda run: run.report["read_ahead"], 1, 5), same(losses), given="train.steps=8")],
    "data.augment": [Row("false", "true", differs(losses), same(weights), given=f"{MLP} {STILL} train.steps=1")],
    "data.verify": [Row("false", "true", ends=(DATA, "changed.h5: the content does not have the hash"), given="data.path=changed.h5")],
    "model.kind": [
        Row("gpt", "llama", gives(roots, {"wte", "wpe", "blocks", "ln_f"}, {"wte", "blocks", "norm_f"})),
        Row("mlp", "resnet", gives(roots, {"layers", "head"}, {"stem", "stages", "head"}), given="data.path=digits.h5")],
    "model.layers": [Row(1, 3, gives(numbered("blocks."), 1, 3)),
                     Row(1, 3, gives(numbered("layers."), 1, 3), given=MLP)],
    "model.heads": [Row(2, 4, differs(losses), same(shapes, weights), given=STILL)],
    # Heads have 4 elements.
    "model.kv_heads": [Row(0, 1, gives(shape("blocks.0.attn.v.weight"), [16, 16], [4, 16]),
                           given="model.kind=llama model.heads=4")],
    "model.width": [Row(16, 32, gives(shape("wte"), [256, 16], [256, 32])),
                    Row(16, 24, gives(shape("layers.0.weight"), [16, 64], [24, 64]), given=MLP)],
    "model.ffn_width": [
        Row(0, 24, gives(shape("blocks.0.mlp.fc.weight"), [4 * 16, 16], [24, 16])),
        Row(0, 24, gives(shape("blocks.0.mlp.gate.weight"), [64, 16], [24, 16]), given="model.kind=llama")],
    "model.context": [Row(8, 12, gives(shape("wpe"), [8, 16], [12, 16]))],
    "model.positions": [Row(0, 12, gives(shape("wpe"), [8, 16], [12, 16])),
                        Row(0, 7, ends=(CONFIG, "model.positions = 7 is below model.context = 8"))],
    # The loss goes over all rows, also those that no token has, as in other programs.
    "model.vocab": [Row(0, 300, gives(shape("wte"), [256, 16], [300, 16]), differs(losses)), Row(0, 256, same(losses, weights)),
                    Row(0, 255, ends=(DATA, "words.h5: the tokenizer has 256 tokens, but the model's vocabulary is model.vocab = 255"))],
    "model.norm_eps": [Row(1e-5, 1e-3, differs(losses), same(weights), given=STILL),
                       Row(1e-5, 1e-3, differs(losses), same(weights), given=STILL + " model.kind=llama")],
    "model.head_width": [Row(0, 6, gives(shape("blocks.0.attn.q.weight"), [16, 16], [12, 16]),
                             gives(shape("blocks.0.attn.proj.weight"), [16, 16], [16, 12]), given=LLAMA),
                         Row(0, 7, ends=(CONFIG, "model.head_width = 7 must be even: rotary positions turn pairs"), given=LLAMA)],
    "model.qkv_bias": [Row("false", "true", gives(biases, set(), {"q", "k", "v"}), given=LLAMA)],
    "model.attention_bias": [Row("false", "true", gives(biases, set(), {"q", "k", "v", "proj"}), given=LLAMA)],
    "model.qk_norm": [Row("false", "true", gives(lambda run: "blocks.0.attn.q_norm.gain" in names(run), False, True), differs(losses), given=LLAMA)],
    "model.sliding_window": [Row(0, 3, differs(losses), same(weights), given=LLAMA), Row(0, CONTEXT, same(losses, weights), given=LLAMA)],
    "model.rope_theta": [Row(10000, 100, differs(losses), same(weights), given=LLAMA)],
    "model.rope_scaling": [Row(*pair, differs(losses), same(weights), given=LLAMA) for pair in [("none", "linear"), ("linear", "llama3")]],
    "model.rope_factor": [Row(8, 2, differs(losses), same(weights), given=LLAMA + " model.rope_scaling=linear"),
                          Row(8, 1, differs(losses), same(weights), given=LLAMA3)],
    "model.rope_low_freq_factor": [Row(1, 3, differs(losses), same(weights), given=LLAMA3)],
    "model.rope_high_freq_factor": [Row(4, 100, differs(losses), same(weights), given=LLAMA3)],
    "model.rope_original_context": [Row(16, 8192, differs(losses), same(weights), given=LLAMA3)],
    "model.dropout": [Row(0, 0.5, differs(losses), same(val_losses, weights), given=STILL)],
    "model.tie_embeddings": [Row("true", "false", gives(lambda run: "head.weight" in names(run), False, True))],
    "model.depth": [Row(8, 14, gives(numbered("stages.0."), 1, 2), given=RESNET)],
    "model.freeze": [
        Row(None, "wpe,*attn*", gives(lambda run: printed(r"(\d+) trained")(run) != [], False, True),
            lowers(memory("gradients")), lowers(memory("optimizer")), same(names)),
        Row(None, "wpo", ends=(CONFIG, "model.freeze: wpo names no parameter"))],
    "lora.rank": [
        Row(0, 4, lowers(memory("gradients")), lowers(memory("optimizer")), given="checkpoint.init_from=runs/teacher"),
        Row(2, 4, gives(shape("blocks.0.attn.qkv.lora_A.weight"), [2, 16], [4, 16]), given="checkpoint.init_from=runs/teacher"),
        Row(0, 4, ends=(CONFIG, "lora.rank = 4 needs checkpoint.init_from"))],
    "lora.alpha": [Row(16, 4, differs(losses), given=TUNED)],
    "lora.targets": [
        Row("all", "c_attn", gives(lambda run: len(names(run)), 8, 2), given=TUNED),
        Row("all", "q_proj", ends=(CONFIG, "lora.targets: q_proj is no layer of the model; there are c_attn, c_fc, c_proj"), given=TUNED)],
    "train.steps": [Row(2, 3, gives(steps, [1, 2], [1, 2, 3]), gives(checkpoints, [2], [3]))],
    "train.global_batch": [Row(4, 6, gives(lambda run: run.manifest["sampler"]["position"], 2 * 4, 2 * 6), differs(losses))],
    # BatchNorm takes its statistics from one micro-batch, so the loss depends on the micro-batch's size.
    "train.micro_batch": [Row(0, 2, gives(printed(r"= (\d+) micro-batch x (\d+) acc"), [("4", "1")], [("2", "2")]),
                              lowers(memory("activations"))),
                          Row(0, 2, differs(losses), given=RESNET + " train.steps=1")],
    "train.precision": [
        Row("f32", "bf16", scales(memory("parameters"), 0.5), gives(lambda run: memory("masters")(run) > 0, False, True)),
        Row("f32", "fp16", scales(memory("parameters"), 0.5), gives(figure("loss_scale"), None, 65536))],
    "train.graphs": [Row("auto", "on", given="run.device=auto", ends=(CONFIG, "train.graphs = on is for a GPU; use auto or off"))],
    "train.offload": [Row("none", "optimizer", gives(printed("(train.offload) changes nothing on a CPU"), [], ["train.offload"]), same(losses, weights)),
                      Row("none", "activations", ends=(CONFIG, "train.offload = activations moves the one input that a recomputed"))],
    "train.recompute": [Row("none", "block", lowers(memory("activations")), same(losses, weights), given="model.layers=3")],
    "train.eval_every": [Row(0, 1, gives(validations, [3], [1, 2, 3]), given="train.steps=3")],
    "train.eval_batches": [Row(0, 1, gives(printed(r"over (\d+) targets"), [str(VALIDATED)], [str(BATCH * CONTEXT)]))],
    "train.log_every": [Row(1, 3, gives(steps, [1, 2, 3, 4, 5, 6, 7], [1, 3, 6, 7]), given="train.steps=7")],
    "train.on_nonfinite": [Row("skip", "stop", gives(steps, [1, 2, 3], [1]), ends=(NUMERICAL, "step 2: the gradient is not finite"),
                               given="optim.lr=1e30 optim.clip_norm=0 train.steps=3")],
    "train.skip_batches": [
        Row(None, "2-3", gives(steps, [1, 2, 3, 4], [1, 4]), gives(figure("lr"), LR, LR), differs(weights),
            given="train.steps=4 optim.schedule=constant"),
        Row(None, "3-2", ends=(CONFIG, 'train.skip_batches = "3-2" must be steps, such as 7, 3-5 or 3-5,9'))],
    "train.eval_choices": [Row(None, "questions.jsonl", gives(has_events("val/choices_acc"), [False], [True]), same(losses, val_losses, weights)),
                           Row(None, "words.txt", ends=(DATA, "words.txt:1: not valid JSON"))],
    "kernels.attention": [Row("auto", "own", same(losses, weights)),
                          Row("auto", "cudnn", ends=(CONFIG, "kernels.attention = cudnn"))],
    "optim.kind": [Row("adamw", "sgd", gives(moments, {"m", "v"}, {"momentum"})),
                   Row("adamw", "lion", gives(moments, {"m", "v"}, {"m"})), Row("adamw", "muon", gives(moments, {"m", "v"}, {"m", "momentum", "v"}))],
    "optim.lr": [Row(LR, LR / 4, gives(rates(LR), [1, 1], [0.25, 0.25]), differs(losses), given="optim.schedule=constant")],
    "optim.min_lr": [Row(0, LR / 4, gives(rates(LR), [1, 0.5], [1, 0.625]), differs(weights))],
    "optim.warmup_steps": [Row(0, 3, gives(rates(LR), [1] * 4, [0.25, 0.5, 0.75, 1]), given="optim.schedule=constant train.steps=4")],
    "optim.schedule": [Row("linear", "cosine", gives(rates(LR), [1, 0.75, 0.5, 0.25], [1, 0.853553, 0.5, 0.146447]), given="train.steps=4"),
                       Row("linear", "constant", gives(rates(LR), [1, 0.5], [1, 1])),
                       Row("linear", "wsd", gives(rates(LR), [1, 0.8, 0.6, 0.4, 0.2], [1] * 5), given="train.steps=5")],
    "optim.decay_steps": [Row(2, 4, gives(rates(LR), [1, 1, 1, 0.5], [1, 0.75, 0.5, 0.25]), given="optim.schedule=wsd train.steps=4"),
                          Row(2, 5, ends=(CONFIG, "optim.decay_steps = 5 is above train.steps = 4"), given="optim.schedule=wsd train.steps=4")],
    "optim.beta1": [Row(0.9, 0.8, changes_only("optim/m/"), given=STILL),
                    Row(0.9, 0.8, differs(losses), given="train.steps=3")],
    "optim.beta2": [Row(0.99, 0.9, changes_only("optim/v/"), given=STILL),
                    Row(0.99, 0.9, differs(losses), given="train.steps=3")],
    "optim.eps": [Row(1e-8, 1e-2, changes_only("param/"), given="train.steps=1")],
    "optim.momentum": [Row(0.9, 0.5, changes_only("optim/momentum/"), given=f"{SGD} {STILL}"),
                       Row(0.9, 0.5, differs(losses), given=SGD + " train.steps=3")],
    "optim.nesterov": [Row("false", "true", changes_only("param/"), given=SGD + " train.steps=1")],
    "optim.weight_decay": [Row(0, 0.5, changes_only("param/", least_dimensions=2), given="train.steps=1"),
                           Row(0, 0.5, changes_only("param/", "optim/", least_dimensions=2), given=SGD + " train.steps=1")],
    # The norm that is logged is the one before clipping.
    "optim.clip_norm": [Row(0, 0.01, changes_only("param/", "optim/"), same(figure("grad_norm")), given=SGD + " train.steps=1"),
                        Row(0, 1000, changes_only(), given=SGD)],
    "optim.outer_lr": [Row(0.7, 1, differs(losses), given=ISLANDS + " dist.sync_every=1", ranks=2)],
    "optim.outer_momentum": [Row(0.9, 0, differs(losses), given=ISLANDS + " dist.sync_every=1", ranks=2)],
    "dist.zero": [
        Row(0, 1, scales(memory("optimizer"), 0.5, PADDING), same(memory("gradients"), memory("parameters")), ranks=2),
        Row(1, 2, lowers(memory("gradients")), scales(memory("optimizer"), 1, PADDING), ranks=2),
        Row(2, 3, lowers(memory("parameters")), scales(memory("optimizer"), 1, PADDING), ranks=2)],
    "dist.backend": [Row("mpi", "nccl", ends=(CONFIG, "dist.backend = nccl"), given="run.device=auto")],
    "dist.reduce": [Row("ring", "exact", scales(sent("inside"), 2), ranks=2)],
    # One bucket for wte, which is used twice, and at least one for the rest.
    "dist.bucket_mb": [
        Row(0.001, 100, lowers(buckets), lowers(of_rank_0("collectives")), ranks=2), Row(4, "auto", gives(buckets, 2, 2), same(losses), ranks=2)],
    "dist.wire_dtype": [Row("f32", to, scales(sent("inside"), part), ranks=2) for to, part in [("bf16", 0.5), ("int8", 0.2578125)]],
    "dist.gather_dtype": [Row("auto", "int8", scales(sent("inside"), 0.62890625), ranks=2, given="dist.zero=1")],
    # In stage 3 with overlap, the next block's weights are gathered while one computes: there is memory for both.
    "dist.overlap": [Row("true", "false", lowers(memory("staging")), same(losses, sent("inside")), ranks=2, given="dist.zero=3 model.layers=3")],
    "dist.islands": [Row(1, 2, scales(memory("optimizer"), 2, PADDING), differs(losses), ranks=2)],
    "dist.sync_every": [Row(1, 2, differs(losses), given=ISLANDS, ranks=2)],
    "dist.sync_delay": [Row(0, 1, differs(losses), given=ISLANDS + " dist.sync_every=2", ranks=2)],
    "dist.tensor": [Row(1, 2, lowers(memory("parameters")), lowers(memory("optimizer")), ranks=2)],
    "dist.shard": [Row("world", "node", scales(memory("optimizer"), 2, PADDING), ranks=4, given="dist.zero=1 dist.node_size=2")],
    "dist.node_size": [Row(2, 1, gives(places_sent_to, ["inside"], ["between"]), ranks=2)],
    "dist.unused": [Row("error", "zero", gives(lambda run: run.report.get("unused_parameters"), None, 0), same(losses))],
    "dist.timeout_s": [Live(timeouts)],
    # The all_reduces that measure it send megabytes.
    "dist.min_gb_s": [
        Row(0, 1e-9, gives(lambda run: of_rank_0("wire", "control", "inside")(run) > 2**20, False, True), same(losses),
            gives(lambda run: len(printed(r"; bus bandwidth \S+ GB/s$")(run)), 0, 1), ranks=2),
        *[Row(0, 1e9, ends=(CONFIG, rf"on {n} ranks is \S+ GB/s, less than dist.min_gb_s = 1e\+09; likely causes: .*EFA"), ranks=n, given=axis)
          for n, axis in ((2, ""), (4, "dist.tensor=2"), (2, "dist.islands=2"))], Row(0, 1e9, same(losses))],
    "checkpoint.every_steps": [Row(0, 1, gives(checkpoints, [3], [1, 2, 3]), given="train.steps=3 checkpoint.keep=9")],
    "checkpoint.every_minutes": [Live(minutes_between_checkpoints)],
    "checkpoint.at_end": [
        Row("true", "false", gives(checkpoints, [2], []), gives(validations, [2], []), same(losses)),
        Row("true", "false", gives(checkpoints, [1, 2], [1, 2]), gives(validations, [1, 2], [1, 2]), given="train.eval_every=1 checkpoint.every_steps=1")],
    "checkpoint.keep": [Row(1, 2, gives(checkpoints, [3], [2, 3]), given="train.steps=3 checkpoint.every_steps=1")],
    "checkpoint.keep_every": [Row(0, 2, gives(checkpoints, [5], [2, 4, 5]), given="train.steps=5 checkpoint.every_steps=1 checkpoint.keep=1")],
    "checkpoint.resume": [
        Row("auto", "runs/teacher/checkpoints/step-00000001", gives(steps, [1, 2, 3], [2, 3]), same(weights), given="train.steps=3"),
        Row("auto", "none", ends=(CONFIG, "has checkpoints up to runs/teacher"), given="run.name=teacher train.steps=3")],
    "checkpoint.init_from": [
        Row(None, "runs/teacher", gives(lambda run: weights(run) == weights(Run("runs/teacher")), False, True),
            gives(steps, [1, 2], [1, 2]), given=STILL)],
    "checkpoint.self_contained": [
        Row("true", "false", gives(lambda run: "wpe" in names(run), True, False), given=BORROWS),
        Row("auto", "true", gives(lambda run: "wpe" in names(run), False, True), given=TUNED),
        Row("auto", "true", same(names), given="model.freeze=wpe"),
        Row("true", "false", ends=(CONFIG, "checkpoint.self_contained = false needs checkpoint.init_from"))],
    "checkpoint.base": [Row(None, "runs/images", ends=(DATA, "runs/borrower/.* refers to weights in runs/images: runs/images/"),
                            given=BORROWS + " run.name=borrower train.steps=3")],
    "checkpoint.async": [
        Row("false", "true", same(weights), gives(saves_beside_steps, [(1, False), (2, False)], [(1, True), (2, False)]), given="train.steps=2 checkpoint.every_steps=1")],
    "log.progress": [Row("none", "plain", gives(lambda run: len(printed(r"^step 1/2  loss")(run)), 0, 1)),
                     Row("none", "bar", gives(lambda run: "\033[K" in run.stdout, False, True))],
    "log.tensorboard": [Row("true", "false", same(losses), gives(has_events("train/loss", "val/loss", "hparams"), [True] * 3, [False] * 3))],
    # Two validations, of steps 2 and 4, and each of these shows the model.
    "log.sample_every": [
        Row(0, 1, gives(texts_shown, 0, 2), same(losses, weights), given="train.steps=4 train.eval_every=2"),
        Row(1, 2, gives(texts_shown, 4, 2), same(losses, weights), given="train.steps=4 train.eval_every=1"),
        Row(0, 1, gives(has_events("samples/predictions", "PNG"), [False] * 2, [True] * 2), same(losses, weights), given=MLP),
        Row(0, 1, ends=(CONFIG, "log.sample_every writes to TensorBoard; set log.tensorboard = true"),
            given="log.tensorboard=false")],
    "log.trace": [Row("", "1-2", same(losses, weights), gives(exists("trace.json.gz"), False, True))],
    "log.prometheus": [Row(None, "/proc/none", same(losses, weights), gives(lambda run: "not exported: /proc/none" in run.stderr, False, True))],
    "log.emf": [Row(None, "/dev/full", same(losses, weights), gives(lambda run: "not exported: /dev/full" in run.stderr, False, True))],
    "log.gpu_every_s": [Row(1, 0, same(losses, weights))],  # with a GPU: telemetry.gpu_figures
    "log.histograms": [Row("false", "true", same(losses, weights), gives(has_events("weights/wte", "gradients/wte"), [False] * 2, [True] * 2))],
}


class Settings(Workspace):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tandem-test-")
        # Hides GPUs, and sets OpenMP's policy, so that the program does not restart itself with the one that it prefers.
        tandem_program.MPI_ENV.update(CUDA_VISIBLE_DEVICES="", OMP_WAIT_POLICY="passive")
        os.chdir(cls.folder)  # rows name files by relative paths
        cls.runs, cls.help = {}, cls.check(run("train", "--help")).stdout
        cls.defaults = dict(re.findall(r"^  --(\w+\.\w+) (\S+)", cls.help, re.MULTILINE))
        cls.make_digits()
        with open("questions.jsonl", "w") as out:
            out.write('{"prompt": "the", "choices": ["a", "old"], "label": 0}\n')
        same = [1] * 8, [7 * pixel % 256 for pixel in range(64)] * 8
        cls.prepare_images("same", {"train": same, "t10k": same})
        for name, seed, count, validated in [("words", 1, CHARACTERS, "0.1"), ("other", 2, CHARACTERS, "0.1"),
                                             ("window", 3, 2 * (CONTEXT + 1), "0.5")]:  # exactly one window
            with open(name + ".txt", "w") as out:
                out.write(words(1000, seed)[:count])
            cls.check(run("prepare", "text", "--input", name + ".txt", "--output", name + ".h5", "--tokenizer", "bytes",
                          "--val-fraction", validated))
        with open("words.txt", "rb") as text, open("words.h5", "rb") as dataset:
            content = bytearray(dataset.read())
            content[content.index(text.read(8).decode().encode("utf-16-le"))] ^= 1  # the first token
        with open("changed.h5", "wb") as out:
            out.write(content)
            out.truncate(2**29 + 1)  # as large as a file that is not verified
        cls.run_of({"run.name": "teacher", "train.steps": "3", "checkpoint.every_steps": "1", "checkpoint.keep": "9"})
        cls.run_of(settings_of(BORROWS + " run.name=borrower train.steps=1"))
        cls.run_of({"run.name": "images", "model.kind": "mlp", "data.path": "same.h5"})

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        super().tearDownClass()

    @staticmethod
    def complete(settings):
        return {**BASE, **SIZES[settings.get("model.kind", "gpt")], **settings}

    @classmethod
    def words_of(cls, settings):
        return ["train", *(word for key, value in cls.complete(settings).items() for word in ("--" + key, value))]

    @classmethod
    def run_of(cls, settings, ranks=None):
        """Rows with equal settings share a run, also when one of them names a default. Each run has a folder of its own."""
        key = ranks, frozenset(cls.complete(settings).items() - cls.defaults.items())
        if key not in cls.runs:
            settings = {"run.name": f"run{len(cls.runs)}", **settings}
            done = run(*cls.words_of(settings), ranks=ranks)
            folder = os.path.join(settings.get("run.dir", "runs"), settings["run.name"])
            cls.runs[key] = Run(folder, done.returncode, done.stdout, done.stderr)
        return cls.runs[key]

    def wait_until(self, true, seconds):
        deadline = time.monotonic() + seconds
        while not true():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def start(self, name, settings, ranks=None):
        """Starts a run without end, and returns when it trains."""
        command = [tandem_program.TANDEM, *self.words_of({"run.name": name, **settings, "train.steps": "100000000"})]
        if ranks:
            command = ["timeout", "-k", "5", "120", "mpirun", "-np", str(ranks), *command]
        job = subprocess.Popen(command, env=MPI_ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: [os.kill(process, signal.SIGKILL) for process in self.processes_of(name)])
        log = f"runs/{name}/metrics.jsonl"
        self.wait_until(lambda: os.path.exists(log) and os.path.getsize(log) > 0, 60)
        return job

    def stop(self, job, name):
        for process in self.processes_of(name):
            os.kill(process, signal.SIGTERM)
        _, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, STOPPED, errors)

    def test_each_setting_has_a_row(self):
        listed = re.findall(r"^  --(\w+\.\w+)", self.help, re.MULTILINE)
        self.assertEqual(sorted(listed), sorted(ROWS))
        written = configparser.ConfigParser()
        written.read("runs/teacher/config.cfg")
        read = {f"{section}.{key}" for section in written.sections() for key in written[section]}
        self.assertIn("model.heads", read)
        self.assertLess(read, set(listed))

    def test_a_setting_that_the_model_ignores_is_refused(self):
        for given, setting, choice in [(RESNET + " model.heads=2", "model.heads = 2", "model.kind = resnet"),
                                       ("optim.nesterov=true", "optim.nesterov = true", "optim.kind = adamw")]:
            for command in ["train", "estimate"]:
                result = run(command, *self.words_of(settings_of(given))[1:])
                self.assert_one_line(self.check(result, CONFIG), f"{setting} has no meaning with {choice}; remove it")

    def test_shipped_configurations_are_accepted(self):
        configs = sorted(glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs", "*.cfg")))
        self.assertGreater(len(configs), 5)
        for config in configs:
            base = ["--checkpoint.init_from", "runs/teacher"] if config.endswith("lora.cfg") else []
            result = run("train", "--config", config, "--data.path", "missing.h5", "--run.device", "cpu", *base)
            self.assert_one_line(self.check(result, DATA), "missing.h5")


def add_test(key, rows):
    def test(self):
        for row in rows:
            row.test(self, key)
    setattr(Settings, "test_" + key.replace(".", "_"), test)


for name, table in ROWS.items():
    add_test(name, table)

if __name__ == "__main__":
    tandem_program.main()
