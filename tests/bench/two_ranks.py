#!/usr/bin/env python3
"""Share of the machine's own matrix-product rate that a 6-layer, 384-wide GPT (context 256, batch 8) turns into useful model
FLOP/s on ranks of one thread each. Prints one line a rank count.

    two_ranks.py PATH_TO_TANDEM [--ranks 1 2] [--steps 12]

The rate is measured at the start of each run, on all ranks at once (`mfu` in metrics.jsonl). FLOPs are 6 for each weight of a
matrix product and token, and 12 * layers * width * context / 2 a token for causal attention.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_rmaps_base_oversubscribe="1")
    tandem = os.path.abspath(options.tandem)
    with tempfile.TemporaryDirectory() as folder:
        pick = random.Random(1)
        with open(os.path.join(folder, "text.txt"), "w") as out:
            out.write("".join(chr(pick.randrange(32, 97)) for _ in range(200000)))
        subprocess.run([tandem, "prepare", "text", "--input", "text.txt", "--output", "text.h5"], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        for ranks in options.ranks:
            subprocess.run(["timeout", "-k", "5", "600", "mpirun", "-np", str(ranks), tandem, "train", "--run.name", str(ranks),
                            "--data.path", "text.h5", "--model.layers", "6", "--model.heads", "6", "--model.width", "384",
                            "--model.context", "256", "--train.global_batch", "8", "--train.steps", str(options.steps),
                            "--train.log_every", "1", "--train.eval_batches", "1", "--run.threads", "1", "--log.progress", "none"],
                           cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
            with open(os.path.join(folder, "runs", str(ranks), "metrics.jsonl")) as lines:
                steps = [json.loads(line) for line in lines]
            steps = [step for step in steps if "mfu" in step][2:]  # the first ones fill the memory pool
            print(f"{ranks} rank(s) of one thread: {statistics.median(s['step_ms'] for s in steps):.0f} ms a step, "
                  f"{100 * statistics.median(s['mfu'] for s in steps):.0f} % of the GEMM rate, "
                  f"exposed communication {statistics.median(s['exposed_comm_ms'] for s in steps):.1f} ms")


if __name__ == "__main__":
    main()
