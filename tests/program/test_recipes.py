#!/usr/bin/env python3
"""Runs every command of configs/recipes.md in a folder like a clone, with small stand-ins for data, models and steps.

    test_recipes.py PATH_TO_TANDEM [unittest arguments]

What a recipe downloads is made here: `curl`, `pip`, `hf` and the module pyarrow are scripts that put it in place.
"""
import io
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import tarfile

import tandem_program
from tandem_program import MPI_ENV, Workspace, letters_of_bytes, words, write_program
from test_hugging_face import LLAMA, QWEN3, shapes_of, write_safetensors

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
RECIPES = os.path.join(ROOT, "configs", "recipes.md")
GOLDEN = os.path.join(ROOT, "tests", "interop", "tokenizers.json")
CHATS = os.path.join(ROOT, "tests", "interop", "chats.json")
# Settings after those of a recipe, by its configuration file.
QUICK = "--train.steps 3 --train.global_batch 8 --train.eval_every 0 --train.eval_batches 2 --checkpoint.every_steps 0 " \
        "--run.device cpu --run.threads 1 --log.progress none --run.watch_spot off"
TEXT = "--model.layers 1 --model.heads 2 --model.width 16 --model.context 16"
SMALL = {"gpt2_124m": TEXT, "shakespeare_char": TEXT, "finetune": "--model.context 16", "cifar10_resnet20": "--model.depth 8"}
SCRIPTS = {
    "build/tandem": """#!/bin/bash
[[ "$1" = train || "$1" = estimate ]] && small=$(cat "small/$(basename "$2" .cfg)")
exec TANDEM "$@" $small
""",
    "bin/mpirun": """#!/bin/bash
[ "$1" = -np ] && exec timeout -k 5 100 MPIRUN -np 2 "${@:3}"
""",
    # ... -o FILE URL
    "bin/curl": """#!/bin/bash
url=${@: -1}
while [ "$1" != -o ]; do shift; done
mkdir -p "$(dirname "$2")"
cp "internet/$(basename "$url")" "$2"
""",
    # download NAME ... --local-dir FOLDER
    "bin/hf": """#!/bin/bash
name=$2
while [ "$1" != --local-dir ]; do shift; done
mkdir -p "$2"
cp -r "internet/$(basename "$name")/." "$2"
""",
    "bin/pip": "#!/bin/bash\n",
    "modules/pyarrow/__init__.py": "",
    "modules/pyarrow/parquet.py": """import json
class Column(list):
    def to_pylist(self):
        return list(self)
class ParquetFile:
    def __init__(self, path):
        self.path = path
    def iter_batches(self, columns):
        with open(self.path) as file:
            lines = [json.loads(line) for line in file]
        yield {name: Column(line[name] for line in lines) for name in columns}
""",
}


def recipes():
    """The commands of each recipe, by its title."""
    with open(RECIPES) as file:
        parts = re.split(r"^## (.*)$", file.read(), flags=re.MULTILINE)
    return {title: "".join(re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
            for title, text in zip(parts[1::2], parts[2::2])}


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb" if isinstance(content, bytes) else "w") as out:
        out.write(content)


def cifar_archive():
    pick, archive = random.Random(1), io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as out:
        for name in [*[f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"]:
            batch = b"".join(bytes([i % 10]) + pick.randbytes(3072) for i in range(10))
            entry = tarfile.TarInfo("cifar-10-batches-bin/" + name)
            entry.size = len(batch)
            out.addfile(entry, io.BytesIO(batch))
    return archive.getvalue()


class Recipes(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        program = shlex.quote(tandem_program.TANDEM)
        for name, text in SCRIPTS.items():
            write_program(cls.path(name), text.replace("TANDEM", program).replace("MPIRUN", shutil.which("mpirun")))
        for config, settings in SMALL.items():
            write(cls.path("small/" + config), f"{QUICK} {settings}")
        os.symlink(os.path.join(ROOT, "configs"), cls.path("configs"))
        cls.fill_internet()

    @classmethod
    def fill_internet(cls):
        vocabulary = {letter: byte for byte, letter in letters_of_bytes().items()} | {"<|endoftext|>": 256}
        records = "".join(json.dumps({"text": words(60, seed)}) + "\n" for seed in range(20))
        files = {"input.txt": "ROMEO:\n" + words(2000), "names.txt": "\n".join(sorted(set(words(500).split()))) * 20,
                 "fineweb/sample/10BT/000_00000.parquet": records, "cifar-10-binary.tar.gz": cifar_archive(),
                 "encoder.json": json.dumps(vocabulary), "vocab.bpe": "#version: 0.2\n"}
        for name, content in files.items():
            write(cls.path("internet/" + name), content)
        with open(GOLDEN, encoding="ascii") as file:
            tokenizers = {case["name"]: case["tokenizer"] for case in json.load(file)["cases"]}
        with open(CHATS, encoding="ascii") as file:
            chats = json.load(file)
        tokenizers["Qwen"] = next(case["tokenizer"] for case in chats["cases"] if case["name"] == "Qwen")  # it has the marks, too
        write(cls.path("data/chats.jsonl"), "".join(json.dumps(record) + "\n" for record in chats["records"]))
        for model, config, tokenizer in [("Llama-3.2-1B", LLAMA, tokenizers["Llama 3"]), ("Qwen3-0.6B-Base", QWEN3, tokenizers["Qwen"])]:
            config = dict(config, vocab_size=len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]))
            for name, content in [("config.json", config), ("tokenizer.json", tokenizer), ("generation_config.json", {})]:
                write(cls.path(f"internet/{model}/{name}"), json.dumps(content))
            write_safetensors(cls.path(f"internet/{model}/model.safetensors"), shapes_of(config), None)
        write(cls.path("data/book.txt"), words(2000))

    def follow(self, title):
        env = dict(MPI_ENV, PATH=self.path("bin") + os.pathsep + MPI_ENV["PATH"], PYTHONPATH=self.path("modules"))
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", recipes()[title]], cwd=self.folder, env=env, capture_output=True,
                              text=True, timeout=300)
        return self.check(done).stdout

    def test_shakespeare(self):
        self.assertRegex(self.follow("Shakespeare, letter by letter"), r"(?s)\nnext [^\n]*\n.{500}")

    def test_names(self):
        self.assertRegex(self.follow("Names"), r"(?s)\nnext [^\n]*\n.{100}")

    def test_gpt2(self):
        self.assertIn("vocabulary 257 (gpt2)", self.follow("GPT-2 124M on a web corpus"))

    def test_llama(self):
        self.follow("A Llama, tuned on your own text")
        self.assertTrue(os.path.exists(self.path("llama-book/model.safetensors")))

    def test_qwen3(self):
        self.follow("A Qwen3, tuned on your own text")
        with open(self.path("qwen-book/config.json")) as file:
            self.assertEqual(json.load(file)["architectures"], ["Qwen3ForCausalLM"])
        with open(self.path("qwen-book/tokenizer.json")) as file:
            self.assertEqual(json.load(file)["normalizer"], {"type": "NFC"})

    def test_qwen3_on_conversations(self):
        self.assertIn("20 records", self.follow("A Qwen3, tuned on conversations"))
        self.assertTrue(os.path.exists(self.path("qwen-chats/chat_template.jinja")))

    def test_cifar(self):
        self.assertIn("accuracy", self.follow("CIFAR-10"))

    def test_each_recipe_has_a_test(self):
        self.assertEqual(len(recipes()), len([name for name in dir(self) if name.startswith("test_")]) - 1)


if __name__ == "__main__":
    tandem_program.main()
