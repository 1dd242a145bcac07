#!/usr/bin/env python3
"""How fast text is encoded (one thread) and BPE is trained (all cores), beside Hugging Face's `tokenizers`, taking turns.

    tokenizers_speed.py build/tandem_tokenizer TEXT [--rounds 5] [--size 16000] [--raw FILE]

Needs pip's tokenizers. TEXT is encoded in parts of 10,000 characters, with GPT-2's pattern and with Llama 3's, by tokenizers
that were trained on it. --raw appends a line of JSON for each case.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

import tokenizers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import make_tokenizers  # noqa: E402
from vs_pytorch import cpu_field  # noqa: E402

ALONE = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


def tandem_seconds(program, *words):
    return float(subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def timed(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=16000, help="of the vocabulary")
    parser.add_argument("--raw", metavar="FILE")
    options = parser.parse_args()
    with open(options.text, encoding="utf-8") as file:
        text = file.read()
    parts = [text[at:at + 10000] for at in range(0, len(text), 10000)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "texts")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(parts, file)

        def compare(case, ours, theirs):
            times = [(ours(), theirs()) for _ in range(options.rounds)]
            mine, other = [median(column) for column in zip(*times)]
            ratio = median(a / b for a, b in times)
            print(f"{case:30} Tandem {mine:.3f} s, tokenizers {other:.3f} s, ratio {ratio:.3f}", flush=True)
            if options.raw:
                with open(options.raw, "a") as file:
                    file.write(json.dumps({"date": time.strftime("%Y-%m-%d"), "machine": cpu_field("model name"),
                                           "tokenizers": tokenizers.__version__, "text": os.path.basename(options.text),
                                           "bytes": len(text.encode()), "case": case,
                                           "vocabulary": options.size, "seconds": times, "ratio": ratio}) + "\n")

        threads = str(len(os.sched_getaffinity(0)))
        compare(f"train, {threads} threads", lambda: tandem_seconds(options.program, "train", str(options.size), threads, path),
                lambda: timed(lambda: make_tokenizers.gpt2_like(parts, options.size)))
        models = {"GPT-2": make_tokenizers.gpt2_like(parts, options.size),
                  "Llama 3": make_tokenizers.llama3_like(parts, options.size)}
        os.environ.update(ALONE)
        for name, tokenizer in models.items():
            tokenizer.save(os.path.join(folder, "tokenizer.json"))
            compare(f"encode, {name}", lambda: tandem_seconds(options.program, "encode", folder, path),
                    lambda: timed(lambda: tokenizer.encode_batch_fast(parts)))


if __name__ == "__main__":
    main()
