#!/usr/bin/env python3
"""Runs that train adapters of a model: lora.rank above 0.

    test_lora.py PATH_TO_TANDEM [unittest arguments]
"""
import glob
import itertools
import json
import math
import os
import re
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import CONFIG, DATA, OK, Workspace, run, tensors_in  # noqa: E402

SIZES = ["--model.kind", "llama", "--model.layers", "2", "--model.heads", "4", "--model.kv_heads", "2", "--model.width", "32",
         "--model.ffn_width", "48", "--model.context", "8"]
RUN = ["--train.global_batch", "12", "--train.log_every", "1", "--optim.warmup_steps", "1", "--log.tensorboard", "false",
       "--log.progress", "none", "--run.threads", "1", "--run.device", "cpu"]
RANK = 4
# Inputs and outputs of the layers of a block, with keys and values half as wide as queries.
LAYERS = {"attn.q": (32, 32), "attn.k": (32, 16), "attn.v": (32, 16), "attn.proj": (32, 32), "mlp.gate": (32, 48), "mlp.up": (32, 48),
          "mlp.down": (48, 32)}
# What peft 0.21 writes beside what its user chose, with settings of an initialization.
OF_PEFT = {"alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None, "bias": "none",
           "corda_config": None, "ensure_weight_tying": False, "eva_config": {"rho": 2.0}, "exclude_modules": None,
           "init_lora_weights": True, "kasa_config": None, "layer_replication": None, "layers_pattern": None,
           "layers_to_transform": None, "loftq_config": {}, "lora_bias": False, "lora_dropout": 0.1, "lora_ga_config": None,
           "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None, "monteclora_config": None,
           "peft_version": "0.21.2", "qalora_group_size": 16, "rank_pattern": {}, "revision": None, "target_parameters": None,
           "trainable_token_indices": None, "use_bdlora": None, "use_dora": False, "use_qalora": False,
           "use_rslora": False, "velora_config": None}
SHARD = 128  # elements of which a rank's shard of a bucket is a multiple


def adapters(layers=LAYERS):
    """Their shapes by name."""
    return {f"blocks.{block}.{layer}.lora_{matrix}.weight": [RANK, LAYERS[layer][0]] if matrix == "A" else [LAYERS[layer][1], RANK]
            for block in range(2) for layer in layers for matrix in "AB"}


def elements(layers=LAYERS):
    return sum(rows * columns for rows, columns in adapters(layers).values())


class Lora(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("base", "--train.steps", "3", model=[*SIZES[:-1], "16"], lora=[])

    @classmethod
    def train(cls, name, *settings, lora=("--lora.rank", str(RANK)), source="base", model=SIZES, ranks=None, code=OK):
        start = ["--checkpoint.init_from", cls.path("runs/" + source)] if lora and source else []
        done = run("train", "--data.path", cls.text, "--run.dir", cls.path("runs"), "--run.name", name, *model, *RUN, *lora, *start,
                   *settings, ranks=ranks)
        return cls.check(done, code)

    def report(self, name):
        with open(os.path.join(self.run_folder(name), "report.json")) as file:
            return json.load(file)

    def evaluated(self, *what):
        return float(re.search(r"val_loss +(\S+)", self.check(run("eval", *what, "--data", self.text, "--context", "8",
                                                                  "--device", "cpu")).stdout)[1])

    def test_checkpoints_hold_adapters_only(self):
        before = tensors_in(self.run_folder("base"))
        for name, targets, layers in [("all", "all", LAYERS), ("two", "q_proj,v_proj", ["attn.q", "attn.v"])]:
            self.train(name, "--lora.targets", targets, "--train.steps", "3")
            want = {f"{kind}/{tensor}" for tensor in adapters(layers) for kind in ["param", "optim/m", "optim/v"]}
            got = tensors_in(self.run_folder(name))
            self.assertEqual(got.keys(), want)
            self.assertEqual({tensor: got["param/" + tensor][0] for tensor in adapters(layers)}, adapters(layers))
            files = glob.glob(os.path.join(self.run_folder(name), "checkpoints/step-00000003/*"))
            # Weights and two moments, in f32, and what describes them.
            self.assertLessEqual(sum(map(os.path.getsize, files)), 3 * 4 * elements(layers) + 65536)
        self.assertEqual(tensors_in(self.run_folder("base")), before)
        # One that is self-contained has the base's bytes.
        self.train("apart", "--train.steps", "3", "--checkpoint.self_contained", "true")
        apart = tensors_in(self.run_folder("apart"))
        self.assertEqual({name: value for name, value in before.items() if name.startswith("param/")},
                         {name: value for name, value in apart.items() if name.startswith("param/") and ".lora_" not in name})
        self.assertEqual({name: value for name, value in apart.items() if ".lora_" in name}, tensors_in(self.run_folder("all")))

    def test_only_adapters_are_summed_sent_and_kept(self):
        """Over three ranks, in two steps. Stage 3 also gathers the model. With bf16 adapters have masters of f32."""
        padded = 4 * math.ceil(elements() / (3 * SHARD)) * 3 * SHARD  # all is one bucket
        [base] = self.report("base")["ranks"]
        figures = base["memory"]["optimizer"] - 2 * base["memory"]["gradients"]  # of a step, whatever is trained
        for zero, precision in itertools.product(range(4), ["f32", "bf16"]):
            name = f"sent{zero}{precision}"
            self.train(name, "--train.steps", "2", "--dist.zero", zero, "--train.precision", precision, ranks=3)
            shard = padded // (3 if zero else 1)
            for rank in self.report(name)["ranks"]:
                memory, sent = rank["memory"], {kind: sum(bytes_.values()) for kind, bytes_ in rank["wire"].items()}
                self.assertEqual(memory["gradients"], padded // (3 if zero > 1 else 1))
                self.assertEqual(memory["optimizer"], 2 * shard + figures)
                self.assertEqual(memory.get("masters", 0), shard if precision == "bf16" else 0)
                self.assertEqual(sent["reduce_scatter" if zero else "all_reduce"], 2 * padded * 2 // 3 * (1 if zero else 2))
                if 0 < zero < 3:  # once more than there are steps, after loading
                    self.assertEqual(sent["all_gather"], 3 * padded * 2 // 3 // (2 if precision == "bf16" else 1))

    def test_restarts_ranks_and_stages_change_no_bit(self):
        exact = ["--dist.reduce", "exact", "--train.micro_batch", "2", "--data.windows", "documents"]
        self.train("once", *exact, "--train.steps", "4")
        want = tensors_in(self.run_folder("once"))
        self.assertNotEqual(want["param/blocks.1.mlp.down.lora_B.weight"][1], bytes(len(want["param/blocks.1.mlp.down.lora_B.weight"][1])))
        for ranks, zero, recompute in [(1, "0", "block"), (3, "0", "none"), (3, "3", "block"), (2, "2", "none")]:
            name = f"bits{ranks}{zero}{recompute}"
            parts = ["--dist.zero", zero, "--train.recompute", recompute, "--checkpoint.every_steps", "2"]
            self.train(name, *exact, *parts, "--train.steps", "4", ranks=ranks)
            self.assertEqual(tensors_in(self.run_folder(name)), want, name)
        # From its second step, on other ranks.
        shutil.rmtree(os.path.join(self.run_folder(name), "checkpoints/step-00000004"))
        self.train(name, *exact, "--train.steps", "4", "--dist.zero", "3", ranks=3)
        self.assertEqual(tensors_in(self.run_folder(name)), want)

    def test_a_run_goes_on_from_adapters(self):
        self.train("first", "--train.steps", "3", "--optim.lr", "0.01")
        loss = self.evaluated(self.run_folder("first"))
        self.assertLess(loss, self.evaluated(self.run_folder("base")))
        self.train("second", "--train.steps", "1", "--optim.lr", "0", "--optim.min_lr", "0", source="first")
        self.assertEqual(self.evaluated(self.run_folder("second")), loss)
        for setting, was, now in [("lora.alpha", "16", "8"), ("lora.rank", "4", "8"), ("lora.targets", "all", "q_proj")]:
            refused = self.train("third", "--" + setting, now, "--train.steps", "1", source="first", code=CONFIG)
            self.assert_one_line(refused, "was written with other settings; set these as they were:")
            self.assertIn(f"was {setting} = {was}, now {now}", refused.stderr)

    def test_exports(self):
        self.train("tuned", "--train.steps", "3", "--optim.lr", "0.01")
        for folder, options in [("adapters", []), ("merged", ["--merge"])]:
            self.check(run("export", self.run_folder("tuned"), "--output", self.path(folder), *options))
        for path, key in [("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")]:
            with open(self.path("merged/" + path)) as file:
                self.assertEqual(json.load(file)[key], 16)  # as in the base, though the adapters saw 8
        # Rounded sums of f32 on the way to a loss; the losses are printed with six decimals.
        self.assertAlmostEqual(self.evaluated(self.path("merged")), self.evaluated(self.run_folder("tuned")), delta=2e-6)
        with open(self.path("adapters/adapter_config.json")) as file:
            config = json.load(file)
        self.assertEqual((config["r"], config["lora_alpha"], config["fan_in_fan_out"]), (RANK, 16, False))
        self.assertEqual(config["target_modules"], ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                                    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"])
        self.assertEqual(config["base_model_name_or_path"], os.path.join(self.run_folder("base"), "checkpoints/step-00000003"))
        self.assertEqual(sorted(os.listdir(self.path("adapters"))),
                         ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"])
        with open(self.path("adapters/adapter_model.safetensors"), "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self.assertEqual(header["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"]["shape"], [16, RANK])
        self.assertEqual(len(header), 1 + len(adapters()))  # one more: metadata
        self.assert_one_line(self.check(run("export", self.run_folder("base"), "--output", self.path("no"), "--merge"), CONFIG),
                             "has no adapters to merge; leave --merge out")

    def test_queries_keys_and_values_of_a_gpt_are_one_layer(self):
        gpt = ["--model.kind", "gpt", *SIZES[2:6], *SIZES[8:]]
        self.train("gpt_base", "--train.steps", "3", lora=[], model=gpt)
        self.train("gpt_tuned", "--train.steps", "3", "--optim.lr", "0.01", source="gpt_base", model=gpt)
        self.assertEqual(tensors_in(self.run_folder("gpt_tuned"))["param/blocks.0.attn.qkv.lora_B.weight"][0], [96, RANK])
        self.check(run("export", self.run_folder("gpt_tuned"), "--output", self.path("gpt_merged"), "--merge"))
        losses_of = [self.evaluated(path) for path in [self.path("gpt_merged"), self.run_folder("gpt_tuned"), self.run_folder("gpt_base")]]
        self.assertAlmostEqual(losses_of[0], losses_of[1], delta=2e-6)
        self.assertGreater(losses_of[2] - losses_of[1], 1e-3)

    def test_adapters_of_a_folder(self):
        """A folder of peft, or a run, for a model in Hugging Face's files or ours."""
        self.train("lent", "--lora.targets", "q_proj,down_proj", "--lora.alpha", "6", "--train.steps", "3", "--optim.lr", "0.01")
        lent, base, model, folder = self.run_folder("lent"), self.run_folder("base"), self.path("model"), self.path("folder")
        self.check(run("export", lent, "--output", folder))
        self.check(run("export", base, "--output", model))
        loss = self.evaluated(lent)
        self.assertNotEqual(loss, self.evaluated(base))
        for source in [base, model]:
            self.assertEqual(self.evaluated(source, "--adapter", folder), loss)
            texts = {self.check(run("generate", source, *adapter, "--tokenizer", self.text, "--prompt", "the", "--seed", "3")).stdout
                     for adapter in [["--adapter", folder], ["--adapter", lent], []]}
            self.assertEqual(len(texts), 2)  # with adapters and without
        self.assertEqual(self.evaluated(base, "--adapter", lent), loss)
        merged = set()
        for source in [[lent], [base, "--adapter", folder], [model, "--adapter", folder]]:
            shutil.rmtree(self.path("whole"), ignore_errors=True)
            self.check(run("export", *source, "--output", self.path("whole"), "--merge"))
            with open(self.path("whole/model.safetensors"), "rb") as file:
                merged.add(file.read())
        self.assertEqual(len(merged), 1)
        self.check(run("export", model, "--adapter", folder, "--output", self.path("again")))
        with open(self.path("again/adapter_model.safetensors"), "rb") as one, open(self.path("folder/adapter_model.safetensors"), "rb") as two:
            self.assertEqual(one.read(), two.read())
        with open(os.path.join(model, "tokenizer.json")) as one, open(self.path("again/tokenizer.json")) as two:
            self.assertEqual(one.read(), two.read())
        with open(os.path.join(folder, "adapter_config.json")) as file:
            config = json.load(file)
        whole_names = [f"model.layers.{block}.{name}" for block in range(2) for name in ["self_attn.q_proj", "mlp.down_proj"]]
        for change in [OF_PEFT, {"init_lora_weights": False, "layers_to_transform": []}, {"init_lora_weights": "gaussian"},
                       {"target_modules": ["down_proj", "q_proj", "lm_head"]}, {"target_modules": whole_names}]:
            self.write_settings(folder, config | change)
            self.assertEqual(self.evaluated(base, "--adapter", folder), loss)

    @staticmethod
    def write_settings(folder, settings):
        with open(os.path.join(folder, "adapter_config.json"), "w") as file:
            file.write(settings if isinstance(settings, str) else json.dumps(settings))

    def refused(self, message, model, adapter, code=DATA):
        """Nothing of an adapter may keep the program busy: it takes 0.1 s, and 5 s are time enough on a machine with other work."""
        result = run("eval", model, *(["--adapter", adapter] if adapter else []), "--data", self.text, timeout=5)
        self.assert_one_line(self.check(result, code), message)

    def test_folders_that_are_refused(self):
        self.train("other", "--lora.targets", "q_proj,down_proj", "--train.steps", "1")
        base, folder, weights = self.run_folder("base"), self.path("hostile"), self.path("hostile/adapter_model.safetensors")
        # Adapters are one file however small the shards of a model are to be.
        self.check(run("export", self.run_folder("other"), "--output", folder, "--shard-gb", "0.000001"))
        self.evaluated(base, "--adapter", folder)
        with open(os.path.join(folder, "adapter_config.json")) as file:
            config = json.load(file)
        for key, value in [("r", 0), ("r", 2**31), ("lora_alpha", "x"), ("use_dora", True), ("use_rslora", True),
                           ("rank_pattern", {"q_proj": 2}), ("modules_to_save", ["lm_head"]), ("bias", "all"), ("peft_type", "IA3"),
                           ("init_lora_weights", "pissa"), ("init_lora_weights", "pissa_niter_4"), ("init_lora_weights", "olora"),
                           ("kasa_config", {"beta": 1}), ("of_the_future", {"x": []}), ("of_the_future", 1), ("layers_to_transform", 0),
                           ("layers_to_transform", [0, 1]), ("exclude_modules", "q_proj"), ("target_modules", 5),
                           ("target_modules", None), ("target_modules", [5]), ("target_modules", ".*_proj"),
                           ("target_modules", ["down_proj", "proj"])]:
            self.write_settings(folder, config | {key: value})
            shown = json.dumps(value, separators=(",", ":"))
            self.refused("hostile/adapter_config.json: " + re.escape(f"{key} = {shown} "), base, folder)
        self.write_settings(folder, config | {"target_modules": ["down_proj", "layers.0.self_attn.q_proj"]})
        self.refused(r"leaves out model\.layers\.1\.self_attn\.q_proj, which has adapters in .*; add it", base, folder)
        for settings, message in [({"r": RANK}, "has no peft_type"), (config | {"r": 3}, "has no .*lora_A"),
                                  ("[" * 1000, "cannot be read")]:
            self.write_settings(folder, settings)
            self.refused(message, base, folder)
        self.write_settings(folder, config)
        with open(weights, "rb") as file:
            whole = file.read()
        name = "layers.{}.self_attn.q_proj.lora_A"
        for damaged, message in [
                (whole.replace(name.format(0).encode(), name.format(9).encode()), "tensor .*q_proj.* belongs to no adapter"),
                (whole.replace(b'"shape":[4,32]', b'"shape":[32,4]'), r"has no .*lora_A\.weight \[4, 32\]; it is for another model"),
                (whole[:-4] + struct.pack("<f", math.nan), r"lora_B\.weight has a number that is not finite"),
                (whole[:1000], "adapter_model.safetensors: .*may be cut short")]:
            with open(weights, "wb") as file:
                file.write(damaged)
            self.refused(message, base, folder)
        os.remove(weights)
        os.mkdir(weights)
        self.refused("hostile/adapter_model.safetensors: is a folder", base, folder)

    def test_models_that_are_no_adapters(self):
        base, model = self.run_folder("base"), self.path("no_adapters")
        self.check(run("export", base, "--output", model))
        self.refused("was trained without adapters; name a run with lora.rank above 0", base, base, CONFIG)
        self.refused("is a whole model, without adapter_config.json; name", base, model, CONFIG)
        # Runs that refer to themselves and to each other: adapters stand where their base was.
        for name in ["left", "right", "itself"]:
            shutil.copytree(base, self.run_folder(name + "_base"))
            self.train(name, "--train.steps", "3", source=name + "_base")
        for name, other in [("left", "right"), ("right", "left"), ("itself", "itself")]:
            now, then = (self.run_folder(run + "/checkpoints/step-00000003") for run in [other, name + "_base"])
            shutil.rmtree(then)
            os.symlink(now, then)
        for name, adapter in [("left", None), ("right", None), ("itself", None), ("left", "right"), ("right", "left"), ("itself", "itself")]:
            self.refused("/(left|right|itself)/.* refers to weights in .*has no tensor param/", self.run_folder(name),
                         adapter and self.run_folder(adapter))

    def test_what_it_does_not_go_with(self):
        for setting, value, ranks in [("optim.kind", "muon", 1), ("dist.tensor", "2", 2), ("dist.islands", "2", 2),
                                      ("train.offload", "optimizer", 1), ("model.freeze", "wte", 1)]:
            refused = self.train("refused", "--" + setting, value, ranks=ranks, code=CONFIG)
            self.assert_one_line(refused, f"lora.rank = {RANK} is not possible with {setting} = {value}; use .*, or lora.rank = 0")
        self.train("uncut", "--train.steps", "1")
        for command in [["eval", self.run_folder("uncut"), "--data", self.text, "--tensor", "2"], ["generate", self.run_folder("uncut")]]:
            self.assert_one_line(self.check(run(*command, ranks=2), CONFIG),
                                 f"lora.rank = {RANK}: ranks cannot cut layers with adapters; leave out --tensor .with generate: mpirun., or merge")
        self.assert_one_line(self.train("refused", "--lora.targets", "q_proj,wte", code=CONFIG), "lora.targets: wte is no layer of the model")
        self.assert_one_line(self.train("refused", "--lora.targets", "", code=CONFIG), "lora.targets is empty")
        self.assert_one_line(self.train("refused", model=["--model.kind", "mlp"], code=CONFIG), "not possible with model.kind = mlp")
        self.assertEqual(glob.glob(self.path("runs/refused")), [])


if __name__ == "__main__":
    tandem_program.main()
