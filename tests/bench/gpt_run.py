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


def arguments(folder, settings):
    words = ["train", "--run.name", "r", "--data.path", os.path.join(folder, "text.h5"), "--run.dir", os.path.join(folder, "runs"),
             "--run.device", "cpu", "--run.threads", "1", "--train.log_every", "1", "--train.eval_batches", "1", "--log.progress", "none",
             "--log.tensorboard", "false"]
    return words + [word for key, value in settings.items() for word in ("--" + key, str(value))]


def remove_run(folder):
    subprocess.run(["rm", "-rf", "runs"], cwd=folder, check=True)


def started(launcher, tandem, folder, settings):
    remove_run(folder)
    command = ["timeout", "-k", "5", "600", *launcher, tandem, *arguments(folder, settings)]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL)


def logged(folder):
    with open(os.path.join(folder, "runs", "r", "metrics.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def steps(tandem, folder, ranks, settings):
    """Trains, and returns each step's line of metrics.jsonl, without the first three steps, which fill the memory pool."""
    job = started(["mpirun", "-np", str(ranks)], tandem, folder, settings)
    if job.wait() != 0:
        raise RuntimeError(f"{job.args} ended with {job.returncode}")
    return [line for line in logged(folder) if "step_ms" in line][3:]


def train(tandem, folder, settings):
    """Trains on one rank without a launcher. All lines of metrics.jsonl, and the largest memory in use, in KiB."""
    job = started([], tandem, folder, settings)
    _, status, usage = os.wait4(job.pid, 0)
    if status != 0:
        raise RuntimeError(f"{job.args} ended with status {status}")
    return logged(folder), usage.ru_maxrss
