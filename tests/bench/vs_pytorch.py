#!/usr/bin/env python3
"""Times Tandem's training step against PyTorch's, alternating in the same run with the same number of threads.

For each case two worker processes do a few steps in turn. Only one of them computes at any time, so changes in the machine's
speed affect both alike. Each pair of turns gives a ratio; the table has their median.
Prints a Markdown table and writes the same as JSON. The Tandem worker is
    BUILD/tandem_gpu_bench step --turns --device cpu --precision f32 --case NAME --threads N
which reads lines "run K", prints the seconds K steps took, and ends at end of input.

With --pytorch-only the table has only PyTorch's time.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ("shakespeare_char", "gpt_384", "resnet20")


def cpu_field(name):
    """The first value of a field of /proc/cpuinfo, or an empty string."""
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(name):
                return line.split(":")[1].strip()
    return ""


def worker_environment(threads):
    """The same number of threads for every library. An OpenBLAS older than the processor takes it for a Prescott and
    runs at a fifth of its speed; naming the kernels makes the comparison fair. Tandem gets the same environment."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads),
                       MKL_NUM_THREADS=str(threads))
    if "avx512f" in cpu_field("flags").split():
        environment.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")
    return environment


class Worker:
    """A process that runs training steps on request."""

    def __init__(self, command, threads):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=worker_environment(threads))

    def read_line(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.command)} ended early, exit code {self.process.wait()}")
        return line.strip()

    def run(self, steps):
        """Runs `steps` steps and returns the seconds they took."""
        self.process.stdin.write(f"run {steps}\n")
        self.process.stdin.flush()
        return float(self.read_line())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


def torch_worker(args, case, threads):
    script = os.path.join(HERE, "torch_worker.py")
    return Worker([args.python, script, "--case", case, "--threads", str(threads)], threads)


def tandem_worker(args, case, threads):
    program = os.path.join(args.build, "tandem_gpu_bench")
    return Worker([program, "step", "--turns", "--device", "cpu", "--precision", "f32", "--case", case, "--threads", str(threads)],
                  threads)


def measure(args, case, threads):
    workers = {"pytorch": torch_worker(args, case, threads)}
    info = json.loads(workers["pytorch"].read_line())
    if not args.pytorch_only:
        workers["tandem"] = tandem_worker(args, case, threads)
    steps = {}
    for name, worker in workers.items():
        worker.run(2)
        steps[name] = max(1, round(args.slice_seconds / (worker.run(3) / 3)))
    samples = {name: [] for name in workers}
    for turn in range(args.alternations):
        order = list(workers) if turn % 2 == 0 else list(workers)[::-1]
        for name in order:
            time.sleep(0.02)  # lets the other worker's threads fall asleep
            samples[name].append(1000 * workers[name].run(steps[name]) / steps[name])
    for worker in workers.values():
        worker.close()
    result = {"case": case, "threads": threads, **info, "steps_per_slice": steps,
              "pytorch_ms": statistics.median(samples["pytorch"]), "samples_ms": samples}
    if "tandem" in samples:
        ratios = [t / p for t, p in zip(samples["tandem"], samples["pytorch"])]
        result.update(tandem_ms=statistics.median(samples["tandem"]), ratio=statistics.median(ratios),
                      ratio_least=min(ratios), ratio_most=max(ratios))
    return result


def table(results):
    lines = ["| case | threads | PyTorch | PyTorch ms/step | Tandem ms/step | Tandem / PyTorch (median, range) |",
             "| --- | --- | --- | --- | --- | --- |"]
    for r in results:
        ratio = f"{r['ratio']:.2f} ({r['ratio_least']:.2f} ... {r['ratio_most']:.2f})" if "ratio" in r else ""
        tandem = f"{r['tandem_ms']:.2f}" if "ratio" in r else ""
        lines.append(f"| {r['case']} | {r['threads']} | {r['torch']} ({r['variant']}, {r['attention']}) "
                     f"| {r['pytorch_ms']:.2f} | {tandem} | {ratio} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that has torch")
    parser.add_argument("--build", default="build", help="folder holding tandem_gpu_bench")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--alternations", type=int, default=15)
    parser.add_argument("--slice-seconds", type=float, default=0.4, help="about how long one turn lasts")
    parser.add_argument("--pytorch-only", action="store_true")
    parser.add_argument("--results", default=os.path.join(HERE, "results"), help="folder for the JSON file")
    args = parser.parse_args()
    results = []
    for case in args.cases:
        for threads in args.threads:
            results.append(measure(args, case, threads))
            print(table(results[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(results))
    now = datetime.datetime.now(datetime.timezone.utc)
    os.makedirs(args.results, exist_ok=True)
    path = os.path.join(args.results, f"vs_pytorch_{now:%Y%m%d_%H%M%S}.json")
    with open(path, "w") as file:
        json.dump({"date": now.isoformat(timespec="seconds"), "cpu": cpu_field("model name"), "cpus": os.cpu_count(),
                   "torch": results[0]["torch"], "results": results}, file, indent=1)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
