#!/usr/bin/env python3
"""Tokens a second of `tandem generate` on the CPU, beside `generate` of Hugging Face's transformers, taking turns.

    inference/generate_speed.py PATH_TO_TANDEM [--rounds 3] [--tokens 64] [--width 768] [--layers 12] [--threads 1 2] [--raw FILE]

Needs pip's transformers 5 and torch. A GPT-2 with random weights and 50,257 tokens, in f32, continues a prompt of 16 tokens
with sampled ones, 1 and 8 texts at a time; both sides cache keys and values. The time to load the model is left out. --raw
appends a line of JSON for each case.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from vs_pytorch import cpu_field, worker_environment

PROMPT = "0123456789abcdef"
TRANSFORMERS = """
import json, sys, time
import torch, transformers
folder, tokens, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
print("ready", flush=True)
for line in sys.stdin:
    ids = torch.tensor([list(sys.argv[4].encode())] * int(line))
    began = time.monotonic()
    with torch.inference_mode():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=True, temperature=0.8,
                              top_k=0, pad_token_id=0)
    assert made.shape[1] == ids.shape[1] + tokens
    print(len(ids) * tokens / (time.monotonic() - began), flush=True)
"""
MODEL = """
import sys
import transformers
layers, width, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64, bos_token_id=None, eos_token_id=None)
transformers.GPT2LMHeadModel(config).save_pretrained(folder)
print(transformers.__version__)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    for option, number in [("rounds", 3), ("tokens", 64), ("width", 768), ("layers", 12)]:
        parser.add_argument("--" + option, type=int, default=number)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--raw", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, text, data = (os.path.join(folder, name) for name in ["model", "bytes.txt", "bytes.h5"])
        made = subprocess.run([sys.executable, "-c", MODEL, str(options.layers), str(options.width), model], check=True,
                              capture_output=True, text=True)
        with open(text, "w") as file:
            file.write(PROMPT * 100)
        subprocess.run([options.tandem, "prepare", "text", "--input", text, "--output", data, "--tokenizer", "bytes"], check=True,
                       stdout=subprocess.DEVNULL)
        for threads in options.threads:
            environment = worker_environment(threads)
            worker = subprocess.Popen([sys.executable, "-c", TRANSFORMERS, model, str(options.tokens), str(threads), PROMPT],
                                      env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert worker.stdout.readline() == "ready\n"

            def theirs(batch):
                worker.stdin.write(f"{batch}\n")
                worker.stdin.flush()
                return float(worker.stdout.readline())

            def ours(batch):
                command = [options.tandem, "generate", model, "--tokenizer", data, "--prompt", PROMPT, "--tokens", options.tokens,
                           "--samples", batch, "--batch", batch, "--device", "cpu", "--threads", threads, "--json"]
                shown = subprocess.run(list(map(str, command)), env=environment, check=True, capture_output=True, text=True)
                return json.loads(shown.stdout)["tokens_per_s"]

            for batch in [1, 8]:
                theirs(batch)  # the first call is slower
                rates = [(ours(batch), theirs(batch)) for _ in range(options.rounds)]
                mine, other = map(median, zip(*rates))
                ratio = median(a / b for a, b in rates)
                print(f"{threads} threads, {batch} texts: Tandem {mine:.1f}, transformers {other:.1f} tokens/s, ratio {ratio:.2f}",
                      flush=True)
                if options.raw:
                    with open(options.raw, "a") as file:
                        file.write(json.dumps({"date": time.strftime("%Y-%m-%d"), "machine": cpu_field("model name"),
                                               "transformers": made.stdout.split()[-1], "layers": options.layers,
                                               "width": options.width, "tokens": options.tokens, "threads": threads,
                                               "batch": batch, "tokens_per_s": rates, "ratio": ratio}) + "\n")
            worker.stdin.close()
            worker.wait()


if __name__ == "__main__":
    main()
