"""Datasets of instruction data, for tests: made from records, read back, and exported with a model."""
import collections
import json
import os
import subprocess

import h5py
import tandem_program
from tandem_program import run

Prepared = collections.namedtuple("Prepared", ["path", "examples", "printed"])


def golden_chats():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "chats.json"), encoding="ascii") as file:
        return json.load(file)


def write_tokenizer(folder, tokenizer, end="</s>"):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    names = [token["content"] for token in tokenizer["added_tokens"]]
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token": end} if end in names else {}, file)
    return folder


def prepared(test, records, tokenizer, template, *words):
    """The dataset, and for each record in it its tokens and which are learned."""
    source, path = test.path("records.jsonl"), test.path(f"{os.path.basename(tokenizer)}-{template}.h5".replace(" ", ""))
    with open(source, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    printed = test.check(run("prepare", "sft", "--input", source, "--output", path, "--tokenizer", tokenizer, "--template", template,
                             "--force", *words)).stdout
    return Prepared(path, examples_in(path), printed)


def examples_in(path):
    examples = []
    with h5py.File(path) as file:
        for split in ["train", "val"]:
            tokens, loss, starts = (file[f"{split}/{name}"][:].tolist() for name in ["tokens", "loss", "starts"])
            examples += [{"tokens": tokens[begin:end], "loss": loss[begin:end]} for begin, end in zip(starts, starts[1:])]
    return examples


def store_hash(path):
    """Makes the content hash of a changed dataset that of what it holds."""
    program = os.path.join(os.path.dirname(tandem_program.TANDEM), "tandem_interop")
    content = subprocess.run([program, "hash", path], stdout=subprocess.PIPE, check=True).stdout
    with h5py.File(path, "r+") as file:
        file.attrs.modify("content_hash", content)


def invert_masks(path):
    """Makes learned in a dataset what was not, and the other way round."""
    with h5py.File(path, "r+") as file:
        for split in ["train", "val"]:
            file[f"{split}/loss"][:] = 1 - file[f"{split}/loss"][:]
    store_hash(path)


def exported(test, dataset, name):
    """The folder of a small model that was trained on the dataset for one step."""
    test.train(name, "--data.windows", "documents", "--train.steps", "1", "--model.kind", "llama", data=dataset)
    folder = test.path(name + "-exported")
    test.check(run("export", "--checkpoint", test.run_folder(name), "--output", folder))
    return folder
