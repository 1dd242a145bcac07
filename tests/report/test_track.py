#!/usr/bin/env python3
"""launch/track.py with stand-ins for the clients of wandb and MLflow, which write down what they are told.

    test_track.py [unittest arguments]

check_track.py, part of tests/nightly.sh, does the same with the real clients.
"""
import fcntl
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

TRACK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch", "track.py")
sys.path.insert(0, os.path.dirname(TRACK))
import track
# Both write calls as lines of JSON to $CALLS.
NOTE = """
import json, os
def note(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")
"""
WANDB = NOTE + """
class Settings(dict): pass
class Summary:
    def update(self, values): note("summary", values)
class Run:
    summary = Summary()
    def define_metric(self, name, step_metric=None): note("axis", name, step_metric)
    def log(self, row, step): note("log", step, row)
    def finish(self, exit_code): note("finish", exit_code)
def init(settings, **more):
    note("init", more)
    return Run()
"""
MLFLOW = NOTE + """
from types import SimpleNamespace
def get_tracking_uri(): return os.environ.get("MLFLOW_TRACKING_URI", "file:./mlruns")
class MlflowException(Exception): pass
def fails(place):
    if os.environ.get("FAILS") == place: raise MlflowException("no\\n  \\x1b[1mfolder")
class MlflowClient:
    def get_experiment_by_name(self, name): return fails("begin")
    def create_experiment(self, name): note("experiment", name); return "7"
    def create_run(self, experiment, run_name):
        note("create", experiment, run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    def log_batch(self, run, metrics=(), params=()):
        if metrics: fails("send")
        if params: fails("params")
        assert len(metrics) <= 1000 and len(params) <= 100
        note("batch", run, [vars(m) for m in metrics], {p.key: p.value for p in params})
    def set_tag(self, run, key, value): fails("end") or note("tag", run, key, value)
    def update_run(self, run, status): note("status", run, status)
    def set_terminated(self, run, status): note("end", run, status)
"""
ENTITIES = """
from types import SimpleNamespace
def Metric(key, value, timestamp, step): return SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)
def Param(key, value): return SimpleNamespace(key=key, value=value)
"""


def training(step, **more):
    slowest = {"rank": 0, "host": "a", "ratio": 1.5}
    return {"step": step, "loss": 1 / step, "mfu": None, "slowest": slowest, "time": 1000 + step, **more}


class Tracked(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-test-")
        self.addCleanup(folder.cleanup)
        self.folder, self.run_folder = folder.name, os.path.join(folder.name, "runs", "names")
        os.makedirs(os.path.join(self.folder, "clients", "mlflow"))
        os.makedirs(self.run_folder)
        for name, text in [("wandb.py", WANDB), ("mlflow/__init__.py", MLFLOW), ("mlflow/entities.py", ENTITIES)]:
            with open(os.path.join(self.folder, "clients", name), "w") as file:
                file.write(text)
        self.put("config.cfg", "# comment\n[train]\nsteps = 20\non = true\n[optim]\nlr = 1e-3\n"
                               "[run]\nname = names\nstop_file =\n")
        self.put("metrics.jsonl", "")

    def put(self, name, text, mode="w"):
        with open(os.path.join(self.run_folder, name), mode) as file:
            file.write(text)

    def text(self, name):
        path = os.path.join(self.run_folder, name)
        if not os.path.exists(path):
            return ""
        with open(path) as file:
            return file.read()

    def log(self, *lines, mode="a"):
        self.put("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines), mode)

    def report(self, state):
        last = {"version": "1.2", "hosts": ["a", "b"], "state": state}
        self.put("report.json", json.dumps({"starts": [{"state": "died"}, last]}))

    def lock(self):
        """As a run locks its folder."""
        file = open(os.path.join(self.run_folder, "lock"), "w")
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return file

    def start(self, *words, clients="clients", **more):
        environment = {**os.environ, **more, "PYTHONPATH": os.path.join(self.folder, clients),
                       "CALLS": os.path.join(self.folder, "calls")}
        return subprocess.Popen([sys.executable, TRACK, *words], env=environment, cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(self, process, code=0):
        out, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, errors)
        return errors if code else out

    def track(self, client, *more, code=0, **how):
        return self.end(self.start(client, self.run_folder, *more, **how), code)

    def calls(self, name):
        """What the client was told with this call, as far as the lines are whole."""
        try:
            with open(os.path.join(self.folder, "calls")) as file:
                calls = [json.loads(line) for line in file.read().split("\n")[:-1]]
            return [call[1:] for call in calls if call[0] == name]
        except FileNotFoundError:
            return []

    def wait_for(self, condition):
        deadline = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def metrics_sent(self):
        return [(m["key"], m["step"], m["value"], m["timestamp"]) for _, metrics, _ in self.calls("batch") for m in metrics]


class Wandb(Tracked):
    def test_settings_rows_and_the_end(self):
        self.log(training(10), {"step": 10, "val_loss": 2.5}, {"step": 9, "checkpoint": {"stall_ms": 1.5, "steps": 2}},
                 {"step": 11, "skipped_batch": True})
        self.report("finished")
        said = self.track("wandb", "--project", "book")
        self.assertRegex(said, r"^track: 4 lines of \S+names sent to wandb, book, as \w{8}\n$")
        ((given,),) = self.calls("init")
        self.assertEqual(given["config"], {"train": {"steps": 20, "on": True}, "optim": {"lr": 0.001},
                                           "run": {"name": "names"}})
        self.assertEqual((given["project"], given["name"], given["resume"]), ("book", "names", "allow"))
        self.assertEqual(self.calls("log"), [[0, {"step": 10, "loss": 0.1, "slowest/rank": 0, "slowest/ratio": 1.5}],
                                             [1, {"step": 10, "val_loss": 2.5}],
                                             [2, {"step": 9, "checkpoint/stall_ms": 1.5, "checkpoint/steps": 2}],
                                             [3, {"step": 11, "skipped_batch": 1}]])
        self.assertEqual(self.calls("axis"), [["step", None], ["*", "step"]])
        self.assertEqual(self.calls("summary"),
                         [[{"start/version": "1.2", "start/hosts": ["a", "b"], "start/state": "finished"}]])
        self.assertEqual(self.calls("finish"), [[0]])

    def test_twice_sends_nothing_twice(self):
        self.log(training(10), training(20))
        self.track("wandb")
        self.assertRegex(self.track("wandb"), "^track: 0 lines")
        self.log(training(30), {"step": 20, "val_loss": 2.5})  # of the same step as a line that was sent
        self.track("wandb")
        self.assertEqual([(row, figures["step"], sorted(figures)[0]) for row, figures in self.calls("log")],
                         [(0, 10, "loss"), (1, 20, "loss"), (2, 30, "loss"), (3, 20, "step")])
        self.assertEqual(len({given["id"] for given, in self.calls("init")}), 1)
        self.track("wandb", "--project", "another")
        self.assertEqual(len({given["id"] for given, in self.calls("init")}), 2)
        self.assertEqual(len(self.calls("log")), 8)

    def test_a_line_that_is_being_written_waits_and_a_log_may_begin_again(self):
        self.log(training(10))
        self.put("metrics.jsonl", '{"step": 20, "lo', "a")
        run = track.Run(self.run_folder)
        self.assertEqual([line["step"] for line in run.fresh_lines()], [10])
        self.assertRegex(self.track("wandb"), "^track: 1 line of")
        self.put("metrics.jsonl", 'ss": 2.5}\n', "a")
        self.assertEqual(list(run.fresh_lines()), [{"step": 20, "loss": 2.5}])
        self.log(training(30))
        os.remove(os.path.join(self.run_folder, "metrics.jsonl"))
        self.assertEqual([line["step"] for line in run.fresh_lines()], [30])
        self.assertEqual(list(run.fresh_lines()), [])
        self.log(training(40))
        self.assertEqual([line["step"] for line in run.fresh_lines()], [40])
        run.file.close()
        self.assertRegex(self.track("wandb"), "^track: 1 line of")

    def test_a_number_is_not_lost_with_a_save(self):
        """Where a save fails, the run keeps its number, and is not sent again as another one."""
        sent = track.Sent(track.Run(self.run_folder), "here")
        self.addCleanup(sent.file.close)
        sent.here["id"] = "a"
        sent.save()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(signal.signal, signal.SIGXFSZ, signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            self.assertRaises(OSError, sent.save)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        with open(os.path.join(self.run_folder, "track.json")) as file:
            self.assertEqual(json.load(file)["here"]["id"], "a")

    def test_a_run_that_died(self):
        self.log(training(10))
        self.report("running")
        self.track("wandb")
        self.assertEqual(self.calls("finish"), [[1]])

    def test_follows_until_the_run_ends(self):
        held = self.lock()
        self.report("running")
        self.log(training(10))
        process = self.start("wandb", self.run_folder, "--follow")
        self.wait_for(lambda: len(self.calls("log")) == 1)
        self.assertIn("another launch/track.py sends this run", self.track("wandb", code=75))
        # The run goes on from a checkpoint: its log is a new file, and a step is done again.
        os.rename(os.path.join(self.run_folder, "metrics.jsonl"), os.path.join(self.run_folder, "old"))
        self.log(training(5), training(10), training(20))
        self.wait_for(lambda: len(self.calls("log")) == 2)
        self.assertIsNone(process.poll())
        self.log(training(30))
        self.report("stopped")
        held.close()
        self.end(process)
        self.assertEqual([figures["step"] for _, figures in self.calls("log")], [10, 20, 30])
        self.assertEqual(self.calls("finish"), [[0]])

    def test_killed_and_called_again(self):
        self.lock_held = self.lock()
        self.log(training(10))
        process = self.start("wandb", self.run_folder, "--follow")
        self.wait_for(lambda: '"rows": 1' in self.text("track.json"))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.log(training(20))
        self.track("wandb")
        self.lock_held.close()
        self.assertEqual([row for row, _ in self.calls("log")], [0, 1])


class Mlflow(Tracked):
    def test_parameters_metrics_and_the_end(self):
        self.log(training(10), {"step": 10, "val_loss": 2.5, "time": 1010.5})
        self.report("stopped")
        self.track("mlflow", "--project", "book")
        self.assertEqual(self.calls("experiment"), [["book"]])
        self.assertEqual(self.calls("create"), [["7", "names"]])
        self.assertEqual(self.calls("batch")[0], ["r1", [], {"train.steps": "20", "train.on": "True", "optim.lr": "0.001",
                                                             "run.name": "names"}])
        self.assertEqual(self.metrics_sent(), [("loss", 10, 0.1, 1010000), ("slowest/rank", 10, 0, 1010000),
                                               ("slowest/ratio", 10, 1.5, 1010000), ("val_loss", 10, 2.5, 1010500)])
        self.assertEqual(self.calls("tag"), [["r1", "start.version", "1.2"], ["r1", "start.hosts", "a, b"],
                                             ["r1", "start.state", "stopped"]])
        self.assertEqual(self.calls("end"), [["r1", "KILLED"]])

    def test_many_lines_go_in_several_messages_and_once(self):
        self.log(*(training(step) for step in range(1, 701)))
        self.report("finished")
        self.track("mlflow")
        self.log(training(701))
        self.track("mlflow")
        self.assertEqual([step for key, step, *_ in self.metrics_sent() if key == "loss"], list(range(1, 702)))
        self.assertEqual(len(self.calls("create")), 1)
        self.assertEqual(self.calls("end"), [["r1", "FINISHED"]] * 2)

    def test_a_run_that_goes_on_is_left_running(self):
        held = self.lock()
        self.report("running")
        self.log(training(10))
        self.track("mlflow")
        self.assertEqual(self.calls("status"), [["r1", "RUNNING"]])
        self.assertEqual(self.calls("end"), [])
        held.close()


class Refused(Tracked):
    def test_one_line_says_what_is_wrong(self):
        self.log(training(10))
        os.makedirs(os.path.join(self.folder, "broken"))
        for client in ["wandb", "mlflow"]:
            said = self.track(client, code=2, clients="nowhere")
            self.assertRegex(said, rf"^track: Python has no {client}: \S+ -m pip install {client}\n$")
            with open(os.path.join(self.folder, "broken", client + ".py"), "w") as file:
                file.write("raise AttributeError('another numpy')")
            self.assertEqual(self.track(client, code=2, clients="broken"), f"track: {client} cannot be imported: another numpy\n")
        with open(os.path.join(self.folder, "broken", "mlflow.py"), "w") as file:
            file.write("def get_tracking_uri(): raise ValueError('no place')")
        self.assertEqual(self.track("mlflow", code=2, clients="broken"), "track: builtins: no place\n")
        unknown, elsewhere = self.start("comet", self.run_folder), self.start("wandb", self.folder)
        self.assertRegex(self.end(unknown, 2), "^track: .*invalid choice: 'comet'.*--help shows all options\n$")
        self.assertRegex(self.end(elsewhere, 3), "^track: .*no metrics.jsonl and config.cfg; name the folder")
        place = "wandb tandem online"
        for text in ["{", "[" * 200000, "[]", "3", json.dumps({place: 3}), json.dumps({place: {}}), json.dumps({place: {"id": 3, "rows": 0, "steps": {}}}),
                     json.dumps({place: {"id": "a", "rows": "b", "steps": {}}}), json.dumps({place: {"id": "a", "rows": 0, "steps": []}})]:
            self.put("track.json", text)
            self.assertRegex(self.track("wandb", code=3), "^track: .*track.json: damaged; remove it.*\n$")
        self.put("config.cfg", b"\xff\0", "wb")
        self.assertRegex(self.track("wandb", code=3), "^track: .*config.cfg: is no text; .*\n$")
        self.assertEqual(self.calls("init"), [])

    def test_notes_that_cannot_be_kept(self):
        self.log(training(10))
        path = os.path.join(self.run_folder, "track.json")
        os.mkdir(path)
        self.assertRegex(self.track("wandb", code=3), "^track: .*Is a directory: .*track.json'\n$")
        os.rmdir(path)
        os.symlink("elsewhere", path)
        self.assertEqual(self.track("wandb", code=3), f"track: {path}: is no regular file; remove it, or name another\n")
        self.assertEqual(self.text("elsewhere"), "")

    def test_what_is_nested_deeply(self):
        self.put("metrics.jsonl", "[" * 200000 + "\n")
        self.log(training(10))
        self.put("config.cfg", "[run]\nname = " + "[" * 200000 + "\n")
        self.put("report.json", "[" * 200000)
        self.assertRegex(self.track("wandb"), "^track: 1 line of ")

    def test_what_is_no_file(self):
        """Nothing waits for the other end of a FIFO. A report is not needed."""
        self.log(training(10))
        for name, code in [("report.json", 0), ("track.json", 3), ("lock", 3), ("metrics.jsonl", 3), ("config.cfg", 3)]:
            with self.subTest(name):
                path = os.path.join(self.run_folder, name)
                kept = self.text(name) if os.path.exists(path) else None
                if kept is not None:
                    os.remove(path)
                os.mkfifo(path)
                said = self.track("wandb", code=code)
                if code:
                    self.assertEqual(said, f"track: {path}: is no regular file; remove it, or name another\n")
                os.remove(path)
                if kept is not None:
                    self.put(name, kept)

    def test_a_client_that_fails(self):
        self.log(training(10))
        self.report("finished")
        for place, code in [("begin", 2), ("params", 2), ("params", 2), ("send", 75), ("end", 75)]:
            self.assertEqual(self.track("mlflow", code=code, FAILS=place), "track: mlflow: no [1mfolder\n")
        self.track("mlflow")
        self.assertEqual(self.metrics_sent(), [("loss", 10, 0.1, 1010000), ("slowest/rank", 10, 0, 1010000), ("slowest/ratio", 10, 1.5, 1010000)])
        self.assertEqual([params["train.steps"] for _, _, params in self.calls("batch") if params], ["20"])
        self.assertEqual(len(self.calls("create")), 1)

    def test_reports_of_any_shape(self):
        self.log(training(10))
        for report in [[], 3, {"starts": 3}, {"starts": []}, {"starts": [3]}, {"starts": {"a": 1}}, {"starts": [{"state": ["x"]}]}, "text"]:
            self.put("report.json", json.dumps(report))
            for client in ["wandb", "mlflow"]:
                self.track(client)
        self.assertEqual({code for code, in self.calls("finish")}, {0})
        self.assertEqual({state for _, state in self.calls("end")}, {"FINISHED"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
