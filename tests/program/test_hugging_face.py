#!/usr/bin/env python3
"""A folder of a Hugging Face model stands wherever a checkpoint is named. The models are random, and made here.

    test_hugging_face.py PATH_TO_TANDEM [unittest arguments]

tests/interop/check_hugging_face.py compares the numbers with those of transformers.
"""
import json
import math
import os
import random
import re
import resource
import shutil
import struct

import tandem_program
from tandem_program import CONFIG, DATA, NUMERICAL, Workspace, run, tensors_in

WIDTH, FFN, VOCAB, POSITIONS = 16, 24, 260, 32  # bytes have 256 tokens
GPT2 = {"architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 2, "n_embd": WIDTH, "n_inner": FFN,
        "n_positions": POSITIONS, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-6}
LLAMA = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "hidden_size": WIDTH, "intermediate_size": FFN, "max_position_embeddings": POSITIONS, "vocab_size": VOCAB,
         "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}
QWEN2 = {**{key: value for key, value in LLAMA.items() if key != "rope_parameters"}, "architectures": ["Qwen2ForCausalLM"], "head_dim": 6,
         "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}
QWEN3 = {**QWEN2, "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": False}
TRAIN = ["--train.global_batch", "6", "--train.steps", "1", "--run.device", "cpu", "--run.threads", "1",
         "--log.progress", "none", "--run.watch_spot", "off"]


def shapes_of(config):
    vocab = config["vocab_size"]
    if "n_embd" in config:
        shapes = {"wte.weight": [vocab, WIDTH], "wpe.weight": [POSITIONS, WIDTH], "ln_f.weight": [WIDTH], "ln_f.bias": [WIDTH]}
        for i in range(config["n_layer"]):
            for name, sizes in {"attn.c_attn": [WIDTH, 3 * WIDTH], "attn.c_proj": [WIDTH, WIDTH], "mlp.c_fc": [WIDTH, FFN],
                                "mlp.c_proj": [FFN, WIDTH], "ln_1": [WIDTH], "ln_2": [WIDTH]}.items():
                shapes[f"h.{i}.{name}.weight"], shapes[f"h.{i}.{name}.bias"] = sizes, sizes[-1:]
        return {"transformer." + name: sizes for name, sizes in shapes.items()}
    shapes = {"model.embed_tokens.weight": [vocab, WIDTH], "model.norm.weight": [WIDTH], "lm_head.weight": [vocab, WIDTH]}
    heads, kv_heads = (config.get("head_dim", WIDTH // 4) * config[f"num_{which}_heads"] for which in ["attention", "key_value"])
    for i in range(config["num_hidden_layers"]):
        for name, sizes in {"input_layernorm": [WIDTH], "post_attention_layernorm": [WIDTH], "self_attn.q_proj": [heads, WIDTH],
                            "self_attn.k_proj": [kv_heads, WIDTH], "self_attn.v_proj": [kv_heads, WIDTH],
                            "self_attn.o_proj": [WIDTH, heads], "mlp.gate_proj": [FFN, WIDTH], "mlp.up_proj": [FFN, WIDTH],
                            "mlp.down_proj": [WIDTH, FFN]}.items():
            shapes[f"model.layers.{i}.{name}.weight"] = sizes
            if config["architectures"] == ["Qwen2ForCausalLM"] and name[-6:] in ["q_proj", "k_proj", "v_proj"]:
                shapes[f"model.layers.{i}.{name}.bias"] = sizes[:1]
        if config["architectures"] == ["Qwen3ForCausalLM"]:
            shapes.update({f"model.layers.{i}.self_attn.{which}_norm.weight": [config["head_dim"]] for which in "qk"})
    return shapes


def write_safetensors(path, shapes, padding, seed=1):
    pick, header, data = random.Random(seed), {}, b""
    for name, sizes in shapes.items():
        count = 1
        for size in sizes:
            count *= size
        numbers = [pick.gauss(0, 0.3) for _ in range(count)]
        if name == "lm_head.weight" and padding:  # the logit of one of these two rows is the largest
            numbers[256 * WIDTH:258 * WIDTH] = [padding] * WIDTH + [-padding] * WIDTH
        values = struct.pack(f"<{count}f", *numbers)
        header[name] = {"dtype": "F32", "shape": sizes, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


class HuggingFace(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bytes = cls.path("bytes.h5")
        cls.check(run("prepare", "text", "--input", cls.text_file, "--output", cls.bytes, "--tokenizer", "bytes"))
        for name, config in [("gpt2", GPT2), ("llama", LLAMA), ("qwen2", QWEN2), ("qwen3", QWEN3)]:
            cls.make(name, config)

    @classmethod
    def make(cls, name, config, end_tokens=(), padding=None):
        folder = cls.path(name)
        os.makedirs(folder, exist_ok=True)
        write_safetensors(os.path.join(folder, "model.safetensors"), shapes_of(config), padding)
        for file, content in [("config.json", config), ("generation_config.json", {"eos_token_id": list(end_tokens)})]:
            with open(os.path.join(folder, file), "w") as out:
                json.dump(content, out)
        return folder

    def start(self, model, name, *settings, code=tandem_program.OK, data=None, ranks=None):
        words = ["train", "--checkpoint.init_from", self.path(model), "--data.path", data or self.bytes, "--run.dir",
                 self.path("runs"), "--run.name", name, *TRAIN, *settings]
        return self.check(run(*words, ranks=ranks), code)

    def test_each_rank_takes_its_part(self):
        """A step without learning leaves the weights as they came, on any number of ranks, in every stage."""
        for model in ["gpt2", "llama", "qwen2", "qwen3"]:
            want = tensors_in(self.path(model))
            self.assertGreater(len(want), 10)
            for ranks, zero in [(1, 0), (3, 1), (3, 3)]:
                name = f"{model}-{ranks}-{zero}"
                self.start(model, name, "--optim.lr", "0", "--optim.min_lr", "0", "--dist.zero", zero, ranks=ranks)
                got = {tensor: value for tensor, value in self.tensors(name).items() if tensor.startswith("param/")}
                self.assertEqual(got, want, name)

    def test_a_model_that_moved_still_says_its_sizes(self):
        """The settings of a run name none of them, and checkpoint.init_from is where the model was."""
        self.make("movable", LLAMA)
        tuned = ["--lora.rank", "2"]
        self.start("movable", "tuned", *tuned)
        os.rename(self.path("movable"), self.path("moved"))
        said = self.start("movable", "tuned", *tuned, "--train.steps", "9", code=CONFIG).stderr
        self.assertRegex(said, r"\n  nothing is at checkpoint.init_from = \S+/movable, which may have said them; "
                               r"if it was moved, checkpoint.base says where to\n\Z")
        self.start("movable", "tuned", *tuned, "--train.steps", "9", "--checkpoint.base", self.path("moved"))

    def test_an_export_reads_as_far_as_the_model_before(self):
        def exported():
            shutil.rmtree(self.path("longer"), ignore_errors=True)
            said = self.check(run("export", self.run_folder("tuned-shorter"), "--output", self.path("longer"))).stderr
            with open(self.path("longer/config.json")) as file:
                return json.load(file)["max_position_embeddings"], said
        self.make("original", LLAMA)
        self.start("original", "tuned-shorter", "--model.context", "8")
        self.assertEqual(exported()[0], POSITIONS)
        shutil.rmtree(self.path("original"))
        self.assertEqual(exported()[0], 8)
        self.assertRegex(exported()[1], "the exported model reads no further than it was trained: .*original")

    def test_settings_come_from_config_json(self):
        self.start("llama", "settings")
        shown = self.check(run("inspect", self.run_folder("settings"), "--tensors")).stdout
        for line in ["kind = llama", "layers = 2", "heads = 4", "kv_heads = 2", "width = 16", "ffn_width = 24", "context = 32",
                     "vocab = 260", "tie_embeddings = false", "norm_eps = 1e-06", r"rope_theta = 5e\+05",
                     "rope_scaling = llama3", "rope_factor = 8", "rope_original_context = 16"]:
            self.assertRegex(shown, rf"(?m)^{line}$")
        self.start("qwen2", "qwen")
        shown = self.check(run("inspect", self.run_folder("qwen"), "--tensors")).stdout
        for line in ["head_width = 6", "qkv_bias = true", "attention_bias = false", "sliding_window = 5"]:
            self.assertRegex(shown, rf"(?m)^{line}$")
        # Settings that agree may be given, and the context may be shorter.
        self.start("llama", "agrees", "--model.layers", "2", "--model.context", "8", "--model.norm_eps", "0.000001")
        self.start("gpt2", "shorter", "--model.context", "8")
        self.assertEqual(self.tensors("shorter")["param/wpe"][0], [POSITIONS, WIDTH])
        for settings, line in [
                (["--model.layers", "3"], r"model.layers = 3, but .*llama/config.json has 2; leave the setting out"),
                (["--model.rope_theta", "10000"], r"model.rope_theta = 10000, but .*config.json has 5e\+05"),
                (["--model.context", "33"], r"model.context = 33, but .*config.json has 32")]:
            self.assert_one_line(self.start("llama", "disagrees", *settings, code=CONFIG), line)

    def test_only_runs_are_resumed(self):
        result = self.start("gpt2", "resumed", "--checkpoint.resume", self.path("gpt2"), code=CONFIG)
        self.assert_one_line(result, "checkpoint.resume = .*gpt2 is a model, not a run; use checkpoint.init_from")

    def test_what_is_missing_is_said_before_training(self):
        folder = self.make("relu", {**GPT2, "activation_function": "relu"})
        self.assert_one_line(self.start("relu", "relu", code=DATA), 'activation_function = "relu" is not in this program')
        for command in [["inspect", folder], ["eval", "--checkpoint", folder, "--data", self.bytes],
                        ["generate", "--checkpoint", folder, "--tokenizer", self.bytes]]:
            self.assert_one_line(self.check(run(*command), DATA), 'activation_function = "relu"')
        folder = self.make("odd", {**LLAMA, "head_dim": 7})
        for result in [self.start("odd", "odd", code=DATA), self.start("odd", "odd", code=DATA, ranks=2),
                       self.check(run("inspect", folder), DATA)]:
            self.assert_one_line(result, f"{folder}/config.json: head_dim = 7 must be even")
        os.remove(os.path.join(self.make("empty", GPT2), "model.safetensors"))
        self.assert_one_line(self.start("empty", "empty", code=DATA, ranks=2), "empty")

    def test_data_with_more_tokens_than_the_model(self):
        self.make("few", {**GPT2, "vocab_size": 255})
        line = "bytes.h5: the tokenizer has 256 tokens, but the model's vocabulary is model.vocab = 255"
        self.assert_one_line(self.start("few", "few", code=DATA), line)
        for command in [["eval", "--data"], ["generate", "--tokenizer"]]:
            result = run(command[0], "--checkpoint", self.path("few"), command[1], self.bytes)
            self.assert_one_line(self.check(result, DATA), line)

    def test_data_of_another_tokenizer(self):
        """Each token of the data must be the model's token of that number; the model may have more."""
        self.start("llama", "exported")
        self.check(run("export", self.run_folder("exported"), "--output", self.path("named")))
        path = os.path.join(self.path("named"), "tokenizer.json")
        with open(path) as file:
            names = json.load(file)
        vocabulary = names["model"]["vocab"]
        wrong = {"swapped": {**vocabulary, "a": vocabulary["b"], "b": vocabulary["a"]},
                 "short": {name: token for name, token in vocabulary.items() if token != 200}, "none": {}}
        for kind, line in [("same", ""), ("more", ""), ("swapped", "token 97 is 'a', and the model's is 'b'; prepare .*--tokenizer"),
                           ("short", "token 200 is .*, and the model has none"), ("none", "token 0 is .*, and the model has none")]:
            names["model"]["vocab"] = wrong.get(kind, vocabulary)
            names["added_tokens"] = [{"id": 256, "content": "<pad>"}] if kind == "more" else []
            with open(path, "w") as out:
                json.dump(names, out)
            for result in [self.start("named", kind, code=DATA if line else tandem_program.OK),
                           self.check(run("eval", self.path("named"), "--data", self.bytes), DATA if line else tandem_program.OK)]:
                if line:
                    self.assert_one_line(result, "bytes.h5 has another tokenizer than .*named: " + line)

    def test_eval_and_inspect(self):
        """The loss of the model is that of a checkpoint with its weights."""
        for model in ["gpt2", "llama"]:
            self.start(model, "eval-" + model, "--optim.lr", "0", "--optim.min_lr", "0")
            shown = []
            for path in [self.path(model), self.run_folder("eval-" + model)]:
                for more in [], ["--context", "8"], ["--context", str(POSITIONS)]:
                    printed = self.check(run("eval", "--checkpoint", path, "--data", self.bytes, *more)).stdout
                    shown.append(re.search(r"val_loss +(\S+)", printed)[1])
            self.assertEqual(shown[:3], shown[3:])
            self.assertNotEqual(shown[0], shown[1])
            self.assertEqual(shown[0], shown[2])
        for more in ["33", "64"]:
            result = run("eval", "--checkpoint", self.path("gpt2"), "--data", self.bytes, "--context", more)
            self.assert_one_line(self.check(result, CONFIG), f"--context {more} must be at most model.context = 32")
        result = run("eval", "--checkpoint", self.path("gpt2"))
        self.assert_one_line(self.check(result, CONFIG), "knows no dataset.*--data FILE.h5")
        shown = self.check(run("inspect", self.path("gpt2"), "--tensors")).stdout
        self.assertRegex(shown, r"(?m)^  param/blocks.1.mlp.fc.weight +\[24, 16\]$")
        self.assertRegex(shown, r"(?m)^parameters  \d+$")
        self.assertRegex(shown, r"(?m)^positions = 32$")

    def test_eval_says_what_it_computes_in(self):
        """The type of the files, unless --precision asks for another."""
        self.make("narrow", dict(LLAMA, dtype="bfloat16"))
        losses = {}
        for asked, used in [("model", "bf16"), ("bf16", "bf16"), ("f32", "f32")]:
            printed = self.check(run("eval", "--checkpoint", self.path("narrow"), "--data", self.bytes, "--precision", asked)).stdout
            self.assertRegex(printed, f"(?m)^precision +{used}$")
            losses[asked] = re.search(r"val_loss +(\S+)", printed)[1]
        self.assertEqual(losses["model"], losses["bf16"])
        self.assertNotEqual(losses["model"], losses["f32"])
        result = self.check(run("eval", "--checkpoint", self.path("narrow"), "--data", self.bytes, "--precision", "int8"), CONFIG)
        self.assert_one_line(result, "precision")

    def test_a_tied_head_that_differs(self):
        """Who reads the weights refuses it, on any number of ranks in one line."""
        folder = self.make("untied", dict(LLAMA, tie_word_embeddings=True))
        for ranks, *command in [(2, "train", "--checkpoint.init_from", folder, "--data.path", self.bytes, *TRAIN, "--run.dir", self.path("runs")),
                                (None, "eval", folder, "--data", self.bytes), (None, "generate", folder, "--tokenizer", self.bytes),
                                (None, "export", folder, "--tokenizer", self.bytes, "--output", self.path("out")),
                                (None, "inspect", folder, "--verify")]:
            with self.subTest(command[0]):
                result = self.check(run(*command, ranks=ranks), DATA)
                lines = [line for line in result.stderr.splitlines() if line.startswith("tandem: ")]
                self.assertEqual(lines, [f"tandem: {folder}: lm_head.weight is not model.embed_tokens.weight, though config.json ties "
                                         "them; set tie_word_embeddings to false"])
        self.assertFalse(os.path.exists(self.path("out")))

    def test_a_loss_that_is_not_finite(self):
        path = os.path.join(self.make("nan", GPT2), "model.safetensors")
        with open(path, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(struct.pack("<f", math.nan))
        result = run("eval", "--checkpoint", self.path("nan"), "--data", self.bytes)
        self.assert_one_line(self.check(result, NUMERICAL), "nan: the loss is not finite; its weights may be damaged")
        self.assertEqual(result.stdout, "")

    def generated(self, model, *options):
        return self.check(run("generate", "--checkpoint", self.path(model), "--tokenizer", self.bytes, "--prompt", "the ",
                              "--tokens", "20", "--threads", "1", *options), tandem_program.OK)

    def test_padding_is_never_generated(self):
        """Rows that no token has change no text, however large their logits are."""
        self.make("padded", LLAMA, padding=100)
        for temperature in ["0", "1"]:
            want, got = (self.generated(model, "--temperature", temperature).stdout for model in ["llama", "padded"])
            self.assertGreater(len(want), 5)
            self.assertEqual(got, want)

    def test_a_large_window_costs_what_is_used_of_it(self):
        """Keys and values of all of it would be 550 GB, and a batch of it more than the 2 GiB that eval has here."""
        self.make("long", {**LLAMA, "max_position_embeddings": 1 << 22})
        self.generated("long", "--samples", "1024", "--batch", "1024", "--tokens", "2")
        with open(self.path("questions.jsonl"), "w") as file:
            file.write('{"prompt": "a", "choices": ["b", "c"], "label": 0}\n')
        self.check(run("eval", self.path("long"), "--choices", self.path("questions.jsonl"), "--tokenizer", self.bytes, "--threads", "1",
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))))

    def test_generation_ends_at_an_end_token(self):
        self.assert_one_line(self.check(run("generate", "--checkpoint", self.path("gpt2")), CONFIG), "--tokenizer FILE.h5")
        start = tensors_in(self.path("llama"))
        self.make("ends", LLAMA)
        self.assertEqual(tensors_in(self.path("ends")), start)
        free = self.generated("ends", "--temperature", "1").stdout
        self.make("ends", LLAMA, end_tokens=range(256))
        self.assertEqual(self.generated("ends", "--temperature", "1", "--tokens", 2**63 - 1).stdout, "\n")
        self.assertGreater(len(free), 1)


if __name__ == "__main__":
    tandem_program.main()
