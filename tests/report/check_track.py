#!/usr/bin/env python3
"""launch/track.py with the real clients of wandb, offline, and of MLflow, with files and SQLite, from PyPI for the moment.

    check_track.py PATH_TO_TANDEM [unittest arguments]

Part of tests/nightly.sh, because it needs a network for PyPI. It needs no account, and reaches nobody else.
"""
import glob
import json
import math
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program
from tandem_program import Workspace, logged

TRACK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch", "track.py")
# Print as JSON what the clients have of the run. A .wandb file is 7 bytes and then a log, as LevelDB writes it, of protocol
# buffers.
READ_WANDB = """
import json, sys
from wandb.proto import wandb_internal_pb2 as pb
def messages(data):
    at, parts = 7, b""
    while at + 7 <= len(data):
        if -at % 32768 < 7:  # no room for a header in this block
            at += -at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        parts += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
rows, config, exits = [], {}, []
for path in sys.argv[1:]:
    for message in messages(open(path, "rb").read()):
        record = pb.Record.FromString(message)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
            config["id"] = record.run.run_id
        elif kind == "history":
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
        elif kind == "exit":
            exits.append(record.exit.exit_code)
print(json.dumps([rows, config, exits]))
"""
READ_MLFLOW = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("tandem").experiment_id])
print(json.dumps([run.info.status, run.data.params, run.data.tags,
                  {key: [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, key)]
                   for key in run.data.metrics}]))
"""


class Clients(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.python = os.environ.get("TANDEM_TRACK_PYTHON")  # one that has the clients
        if not cls.python:
            subprocess.run(["/usr/bin/python3", "-m", "venv", cls.path("venv")], check=True)
            cls.python = cls.path("venv/bin/python")
            subprocess.run([cls.python, "-m", "pip", "install", "--quiet", "wandb", "mlflow"], check=True)
        cls.make_digits()

    def python_says(self, *words, **environment):
        done = subprocess.run([self.python, *words], capture_output=True, text=True, timeout=300, cwd=self.folder,
                              env={**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def digits_run(self, name, steps):
        self.train(name, "--model.kind", "mlp", "--model.layers", "1", "--model.width", "8", "--log.tensorboard", "false",
                   "--train.eval_every", "5", "--train.steps", steps, data=self.digits)
        return logged(self.run_folder(name))

    def test_wandb_offline(self):
        for steps in (10, 20):
            lines = self.digits_run("w", steps)
            for _ in range(2):  # the second time there is nothing to send
                self.python_says(TRACK, "wandb", self.run_folder("w"))
        files = sorted(glob.glob(self.path("wandb/offline-run-*/run-*.wandb")))
        self.assertEqual(len(files), 4)
        rows, config, exits = json.loads(self.python_says("-c", READ_WANDB, *files))
        self.assertEqual(exits, [0] * 4)
        self.assertEqual([row["_step"] for row in rows], list(range(len(lines))))
        self.assertEqual([(row["step"], row.get("loss"), row.get("val_loss")) for row in rows],
                         [(line["step"], line.get("loss"), line.get("val_loss")) for line in lines])
        self.assertEqual((config["train"]["steps"], config["model"]["kind"]), (20, "mlp"))
        self.assertIn("slowest/ratio", rows[0])

    def test_mlflow(self):
        for store in ["sqlite:///" + self.path("mlflow.db"), "file:" + self.path("mlruns")]:
            with self.subTest(store=store):
                name = "m" + store[:4]
                lines = self.digits_run(name, 10)
                place = {"MLFLOW_TRACKING_URI": store, "MLFLOW_ALLOW_FILE_STORE": "true"}
                for _ in range(2):
                    self.python_says(TRACK, "mlflow", self.run_folder(name), **place)
                lines = self.digits_run(name, 20)
                self.python_says(TRACK, "mlflow", self.run_folder(name), **place)
                status, parameters, tags, metrics = json.loads(self.python_says("-c", READ_MLFLOW, **place))
                self.assertEqual(status, "FINISHED")
                self.assertEqual((parameters["train.steps"], parameters["model.kind"]), ("10", "mlp"))
                self.assertEqual((tags["mlflow.runName"], tags["start.state"], tags["start.step"]), (name, "finished", "20"))
                for key in ["loss", "val_loss", "elapsed_s"]:
                    expected = [[line["step"], line[key], int(1000 * line["time"])] for line in lines if key in line]
                    self.assertEqual(sorted(metrics[key]), sorted(expected))

    def test_follow(self):
        """Started beside a run, it ends with it, and has everything."""
        place = {"MLFLOW_TRACKING_URI": "sqlite:///" + self.path("followed.db")}
        arguments = ["train", "--data.path", self.digits, "--run.dir", self.path("runs"), "--run.name", "followed",
                     *tandem_program.QUICK, "--model.kind", "mlp", "--train.steps", "3000000", "--train.log_every", "1000"]
        training = subprocess.Popen([tandem_program.TANDEM, *arguments], env=tandem_program.MPI_ENV, stdout=subprocess.DEVNULL)
        folder = self.run_folder("followed")
        while not (os.path.exists(os.path.join(folder, "metrics.jsonl")) and logged(folder)):
            self.assertIsNone(training.poll())
            time.sleep(0.1)
        following = subprocess.Popen([self.python, TRACK, "mlflow", folder, "--follow"], env={**os.environ, **place},
                                     cwd=self.folder)
        def tracked():
            try:
                with open(os.path.join(folder, "track.json")) as file:
                    return any(place["rows"] > 0 for place in json.load(file).values())
            except (FileNotFoundError, ValueError):
                return False
        while not tracked():
            self.assertIsNone(following.poll())
            time.sleep(0.1)
        self.assertIsNone(training.poll())
        training.terminate()
        self.assertEqual(training.wait(timeout=60), tandem_program.STOPPED)
        self.assertEqual(following.wait(timeout=60), 0)
        status, _, tags, metrics = json.loads(self.python_says("-c", READ_MLFLOW, **place))
        self.assertEqual((status, tags["start.state"]), ("KILLED", "stopped"))
        losses = [line for line in logged(folder) if "loss" in line]
        self.assertEqual([step for step, *_ in sorted(metrics["loss"])], [line["step"] for line in losses])
        self.assertTrue(all(math.isfinite(value) for _, value, _ in metrics["loss"]))


if __name__ == "__main__":
    tandem_program.main()
