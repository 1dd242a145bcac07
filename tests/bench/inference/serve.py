#!/usr/bin/env python3
"""How `tandem serve` bears rising rates of requests: tokens a second, and the time to the first token and from token to token.

    inference/serve.py PATH_TO_TANDEM [--rates 0.5 1 2 4] [--seconds 20] [--tokens 32] [--prompt 64] [--batch 16] [--width 768] [--layers 12]
             [--threads 2] [--raw FILE]

Requests come at random times that do not wait for answers (an open loop, as users are), each for a streamed text. The model has
random weights and a vocabulary of 256 bytes. The reference in the same run is `tandem generate` with one text at a time. --raw
appends a line of JSON for each rate.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from statistics import median, quantiles

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "program"), os.path.join(HERE, "..", "..", "serve")]
import tandem_program
from server import Server
from vs_pytorch import cpu_field


def stream(server, request, times):
    """Appends the times of the pieces of a text, or nothing where it was refused."""
    connection, own = server.connect(), [time.monotonic()]
    connection.request("POST", "/v1/completions", json.dumps(request))
    response = connection.getresponse()
    while response.status == 200 and (line := response.readline()):
        if line.startswith(b"data: {"):
            own.append(time.monotonic())
    connection.close()
    times.append(own)


def load(server, rate, options):
    dice, times, threads = random.Random(1), [], []
    began = time.monotonic()
    while time.monotonic() < began + options.seconds:
        request = {"prompt": "".join(dice.choice("abcdefgh") for _ in range(options.prompt)), "max_tokens": options.tokens, "stream": True}
        threads.append(threading.Thread(target=stream, args=(server, request, times)))
        threads[-1].start()
        time.sleep(dice.expovariate(rate))
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    served = [own for own in times if len(own) > 1]
    firsts = [own[1] - own[0] for own in served]
    gaps = [b - a for own in served for a, b in zip(own[1:], own[2:])]
    return {"rate": rate, "requests": len(times), "refused": len(times) - len(served), "tokens_per_s": len(served) * options.tokens / took,
            "first_ms": [1e3 * median(firsts), 1e3 * quantiles(firsts, n=100)[98]], "gap_ms": [1e3 * median(gaps), 1e3 * quantiles(gaps, n=100)[98]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1, 2, 4])
    for option, number in [("seconds", 20), ("tokens", 32), ("prompt", 64), ("batch", 16), ("width", 768), ("layers", 12), ("threads", 2)]:
        parser.add_argument("--" + option, type=int, default=number)
    parser.add_argument("--raw", metavar="FILE")
    options = parser.parse_args()
    tandem_program.TANDEM = os.path.abspath(options.tandem)
    with tempfile.TemporaryDirectory() as folder:
        text, data = os.path.join(folder, "bytes.txt"), os.path.join(folder, "bytes.h5")
        with open(text, "w") as file:
            file.write("0123456789abcdef" * 500)
        quiet = dict(check=True, stdout=subprocess.DEVNULL, env=tandem_program.MPI_ENV)
        subprocess.run([options.tandem, "prepare", "text", "--input", text, "--output", data, "--tokenizer", "bytes"], **quiet)
        subprocess.run([options.tandem, "train", "--data.path", data, "--run.dir", folder, "--run.name", "model", "--train.steps", "1",
                        "--train.global_batch", "1", "--model.layers", str(options.layers), "--model.width", str(options.width), "--model.heads",
                        str(options.width // 64), "--model.context", "512", "--run.watch_spot", "off"], **quiet)
        model = os.path.join(folder, "model")
        shown = subprocess.run([options.tandem, "generate", model, "--prompt", "a" * options.prompt, "--tokens", str(options.tokens), "--threads",
                                str(options.threads), "--json"], check=True, capture_output=True, text=True, env=tandem_program.MPI_ENV)
        alone = json.loads(shown.stdout)["tokens_per_s"]
        print(f"one text at a time: {alone:.1f} tokens/s")
        server = Server(model, "--batch", options.batch, "--threads", options.threads)
        for rate in options.rates:
            found = load(server, rate, options)
            (first, first_most), (gap, gap_most) = found["first_ms"], found["gap_ms"]
            print(f"{rate:g} requests/s: {found['tokens_per_s']:.1f} tokens/s ({found['tokens_per_s'] / alone:.2f} of that), first token "
                  f"{first:.0f} ms (0.99: {first_most:.0f}), next {gap:.0f} ms (0.99: {gap_most:.0f}), {found['refused']} refused", flush=True)
            if options.raw:
                with open(options.raw, "a") as file:
                    file.write(json.dumps({"date": time.strftime("%Y-%m-%d"), "machine": cpu_field("model name"), "threads": options.threads,
                                           "layers": options.layers, "width": options.width, "batch": options.batch, "prompt": options.prompt,
                                           "tokens": options.tokens, "alone": alone, **found}) + "\n")
        server.end()


if __name__ == "__main__":
    main()
