"""Short runs of `tandem train` on random text, for benchmarks: a GPT on ranks of one CPU thread each."""
import json
import os
import random
import subprocess

ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_rmaps_base_oversubscribe="1")


def prepare(tandem, folder):
    pick = random.Random(1)
    with open(os.path.join(folder, "text.txt"), "w") as out:
        out.write("".join(chr(pick.randrange(32, 97)) for _ in range(200000)))
    subprocess.run([tandem, "prepare", "text", "--input", "text.txt", "--output", "text.h5"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)


def steps(tandem, folder, ranks, settings):
    """Trains, and returns each step's line of metrics.jsonl, without the first three steps, which fill the memory pool."""
    subprocess.run(["rm", "-rf", "runs"], cwd=folder, check=True)
    command = ["timeout", "-k", "5", "600", "mpirun", "-np", str(ranks), tandem, "train", "--run.name", "r", "--data.path", "text.h5",
               "--run.device", "cpu", "--run.threads", "1", "--train.log_every", "1", "--train.eval_batches", "1",
               "--log.progress", "none", "--log.tensorboard", "false"]
    for key, value in settings.items():
        command += ["--" + key, str(value)]
    subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(folder, "runs", "r", "metrics.jsonl")) as lines:
        return [line for line in map(json.loads, lines) if "step_ms" in line][3:]
