#!/usr/bin/env python3
"""launch/sagemaker/train, as a container of SageMaker calls it: alone, and on two pretend hosts that have an /opt/ml each, an
sshd each, and one `fsx`.

    test_sagemaker.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pretend_hosts
from supervised import ROOT, Launched, wait_until
import tandem_program
from tandem_program import CONFIG, DATA, NUMERICAL, STOPPED, losses, tensors_in

LAUNCH = os.path.join(ROOT, "launch")
sys.path += [os.path.join(LAUNCH, "run"), os.path.join(LAUNCH, "sagemaker")]
from container import Container

RUN = os.path.join(LAUNCH, "run.sh")
TRAIN, METRICS = os.path.join(LAUNCH, "sagemaker", "train"), os.path.join(LAUNCH, "sagemaker", "metrics.json")
LOST = 75
LONG = 10**6  # steps
# The same sums, and so the same bits, on any number of ranks.
EXACT = ["--train.global_batch", "24", "--train.micro_batch", "1", "--dist.reduce", "exact"]
# /opt/ml of a host as the service makes it: a folder that no other host sees, and a file system that all do.
MAKE_OPT_ML = """set -e
mount -t tmpfs tmpfs /opt; mkdir -p /opt/ml/input/config /opt/ml/input/data/fsx /opt/ml/model /opt/ml/output
mount --bind "$1" /opt/ml/input/data/fsx"""
CLEAN = "umount /opt/ml/input/data/fsx && umount /opt"


def settings_of(arguments):
    """["--a.b", 1] as {"a.b": "1"}"""
    return {str(key).removeprefix("--"): str(value) for key, value in zip(arguments[::2], arguments[1::2])}


class Sagemaker(Launched):
    def hyperparameters(self, name, steps, more):
        given = {**settings_of([*tandem_program.TINY, *EXACT]), "train.steps": str(steps), "run.name": name,
                 "launch.tandem": tandem_program.TANDEM, "launch.wait": "120", **more}
        return {key: value for key, value in given.items() if value is not None}

    def finished(self, process, code):
        """Its output and its errors."""
        output, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, code, output + errors)
        return output, errors

    def assert_generates(self, model):
        done = tandem_program.run("generate", "--checkpoint", model, "--prompt", "the ", "--tokens", "8")
        self.assertGreater(len(self.check(done).stdout), 4)


class OneHost(Sagemaker):
    """A host without namespaces, and with another folder than /opt/ml."""

    def start(self, name, steps=4, channels={}, written={}, train=TRAIN, environment=os.environ, **more):
        ml = self.ml = self.path(name)
        for channel, files in channels.items():
            os.makedirs(os.path.join(ml, "input/data", channel))
            for file, source in files.items():
                os.symlink(source, os.path.join(ml, "input/data", channel, file))
        files = {"resourceconfig": {"current_host": "algo-1", "hosts": ["algo-1"], "current_instance_type": "ml.c7i.8xlarge"},
                 "hyperparameters": self.hyperparameters(name, steps, more),
                 "inputdataconfig": {channel: {"TrainingInputMode": "File"} for channel in channels}, **written}
        os.makedirs(os.path.join(ml, "input/config"))
        for file, content in files.items():
            with open(os.path.join(ml, "input/config", file + ".json"), "w") as out:
                json.dump(content, out)
        process = subprocess.Popen([train, "train"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**environment, "TANDEM_OPT_ML": ml})
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def read(self, *names):
        with open(os.path.join(self.ml, *names)) as file:
            return file.read()

    def test_the_type_is_what_the_service_says_at_the_services_price(self):
        self.finished(self.start("type"), CONFIG)  # without a dataset
        environment = {**os.environ, "TANDEM_OPT_ML": self.ml}
        facts = subprocess.run([os.path.join(LAUNCH, "node.sh"), *["/none"] * 4], env=environment, capture_output=True, text=True).stdout
        self.assertIn("machine c7i.8xlarge\n", facts)
        self.assertEqual(Container(self.ml).options["market"], "sagemaker")

    def test_hyperparameters_and_what_is_collected(self):
        """Raw values, quoted ones, and those of the SDK itself. The dataset is the one of the channels."""
        config = self.path("steps.cfg")
        with open(config, "w") as file:
            file.write("[train]\nsteps = 3\nlog_every = 2\n")
        process = self.start("one", steps=100, channels={"config": {"a.cfg": config}, "data": {"words.h5": self.text}},
                             **{"config": "\"a.cfg\"", "train.steps": "\"6\"", "train.log_every": None, "log.progress": None,
                                "train.eval_every": "3", "data.verify": "true", "sagemaker_program": "\"x.py\""})
        output, errors = self.finished(process, 0)
        run = os.path.join(self.ml, "checkpoints", "one")
        self.assertEqual(list(losses(run)), [1, 2, 4, 6])  # log_every is that of a.cfg, and the line wins over it
        self.assertRegex(errors, r"(?m)^run: 1 rank on \S+ \(sagemaker\)$")
        # Metrics: each regular expression finds the figure in a line of the program.
        with open(METRICS) as file:
            patterns = {metric["Name"]: metric["Regex"] for metric in json.load(file)}
        lines = output.splitlines()
        found = {name: [float(match[1]) for line in lines if (match := re.search(pattern, line))]
                 for name, pattern in patterns.items()}
        self.assertEqual(found["train:step"], [2, 4, 6])
        for name, values in found.items():
            expected = {"validation:accuracy": 0, "validation:loss": 2, "validation:perplexity": 2}.get(name, 3)
            self.assertEqual(len(values), expected, (name, lines))
        for said, step in zip(found["train:loss"], [2, 4, 6]):
            self.assertAlmostEqual(said, losses(run)[step], places=3)
        # What the service takes away.
        self.assertGreater(len(os.listdir(os.path.join(self.ml, "output/tensorboard"))), 0)
        self.assertFalse(os.path.exists(os.path.join(self.ml, "output/failure")))
        self.assert_generates(os.path.join(self.ml, "model"))
        best = os.listdir(os.path.join(self.ml, "model/checkpoints"))
        self.assertEqual(tensors_in(os.path.join(self.ml, "model")), tensors_in(os.path.join(run, "checkpoints/best")))
        self.assertRegex(best[0], "^step-0000000[36]$")

    def test_one_host_with_fsx_keeps_its_run_there(self):
        self.finished(self.start("fsx", channels={"fsx": {"words.h5": self.text}}), 0)
        self.assertEqual(len(losses(os.path.join(self.ml, "input/data/fsx/runs/fsx"))), 4)
        self.assertFalse(os.path.exists(os.path.join(self.ml, "checkpoints")))

    def test_hosts_that_are_named_go_before_those_of_the_service(self):
        self.finished(self.start("named", config="no.cfg"), CONFIG)
        done = subprocess.run([RUN, "--tandem", tandem_program.TANDEM, "--hosts", "localhost:2", "--print", "--", "train", "--data.path", "x"],
                              env={**os.environ, "TANDEM_OPT_ML": self.ml}, capture_output=True, text=True)
        self.assertRegex(self.check(done).stdout, " mpirun -np 2 ")

    def test_accuracy_is_a_metric(self):
        with open(METRICS) as file:
            pattern = next(metric["Regex"] for metric in json.load(file) if metric["Name"] == "validation:accuracy")
        done = self.train("images", "--model.kind", "resnet", "--train.steps", "1", "--log.progress", "plain", data=self.images)
        self.assertEqual(len(re.findall(pattern, done.stdout)), 1, done.stdout)

    def test_a_failure_has_its_reason(self):
        settings = {"data.path": self.text, "optim.lr": "1e30", "optim.min_lr": "1e30"}
        errors = self.finished(self.start("nan", **settings), NUMERICAL)[1]
        reason = self.read("output/failure")
        self.assertRegex(reason, r"^tandem: .*\nrun: ended with 64 \(the loss or gradient is not finite\) after \d+ s\n$")
        self.assertTrue(all(line in errors for line in reason.splitlines()))

    def test_a_reason_with_a_long_value(self):
        """What stands after the value is why it was refused."""
        self.finished(self.start("long", **{"data.path": self.text, "optim.lr": "1" * 3000 + "x"}), CONFIG)
        self.assertRegex(self.read("output/failure"), r"^command line: optim.lr = 1{200}1*\.\.\.1{60}1*x must be .*$")

    def test_files_of_the_service_that_are_no_objects(self):
        for name, content in [("hyperparameters", ["a"]), ("hyperparameters", 3), ("inputdataconfig", "x"), ("resourceconfig", []),
                              ("resourceconfig", {"current_host": "algo-1"}), ("resourceconfig", {"current_host": 1, "hosts": ["1"]})]:
            with self.subTest(name=name, content=content):
                self.finished(self.start(f"{name}-{content}", written={name: content}), CONFIG)
                self.assertRegex(self.read("output/failure"), rf"^/.*/input/config/{name}\.json: must be an object.*: it is SageMaker that")

    def test_a_reason_of_a_launcher_that_breaks(self):
        """The service takes 1,024 characters of it, so a longer one has no middle."""
        shutil.copytree(LAUNCH, self.path("launch"))
        for said, reason in [("4.5", "ValueError: 4.5\n"), ("4" * 2000 + "!", f"ValueError: {'4' * 498}...{'4' * 508}!\n")]:
            with open(self.path("launch/run.sh"), "w") as file:
                file.write(f"#!/bin/sh\necho Traceback >&2; echo ValueError: {said} >&2; exit 1\n")
            self.finished(self.start(f"breaks-{len(said)}", train=self.path("launch/sagemaker/train"), **{"data.path": self.text}), 1)
            self.assertEqual(self.read("output/failure"), reason)

    def test_a_run_that_saved_nothing(self):
        errors = self.finished(self.start("unsaved", **{"data.path": self.text, "checkpoint.at_end": "false"}), DATA)[1]
        line = f"{self.ml}/checkpoints/unsaved/checkpoints has no checkpoint, and so there is no model: "
        self.assertIn("run: " + line, errors.splitlines()[-1])
        self.assertTrue(self.read("output/failure").startswith(line))
        self.assertFalse(os.path.exists(os.path.join(self.ml, "model")))

    def test_what_is_refused(self):
        for name, code, line, more in [
                ("gone", CONFIG, "config = no.cfg is in none of .*/data/c, /.*", {"config": "no.cfg", "channels": {"c": {}}}),
                ("lost", CONFIG, "run.dir = runs is lost with the container: leave it out, or ", {"run.dir": "runs"}),
                ("several", CONFIG, r"there are several datasets \(/.*/x/a.h5, /.*/y/b.h5\): say which with data.path",
                 {"channels": {"x": {"a.h5": self.text}, "y": {"b.h5": self.text}}}),
                ("wrong", CONFIG, "command line: unknown setting train.stepz; did you mean train.steps?", {"train.stepz": "3", "data.path": self.text}),
                ("broken", CONFIG, r"command line: train.steps = one\\x0Atwo must be", {"train.steps": "one\ntwo", "data.path": self.text}),
                ("deep", CONFIG, r"command line: train.steps = \[{60}", {"train.steps": "[" * 2000, "data.path": self.text}),
                ("zero", CONFIG, r"hyperparameter 'run.name': it has a character that no command line takes", {"run.name": "a\0b"}),
                ("half", CONFIG, r"hyperparameter '\\udc00': it has a character that no command line takes", {"\udc00": "a"}),
                ("help", CONFIG, "hyperparameter help: it would train nothing: leave it out", {"help": "true", "data.path": self.text}),
                ("print", CONFIG, "hyperparameter launch.print: it would train nothing: leave it out", {"launch.print": "true"}),
                ("hosts", CONFIG, "hyperparameter launch.hosts: SageMaker says which hosts there are: ", {"launch.hosts": "a:8"}),
                ("soon", CONFIG, "hyperparameters launch.NAME are options of launch/run.sh: argument --wait: 'soon' is", {"launch.wait": "soon"}),
                ("empty", CONFIG, "data.path is empty; make a dataset", {}),
                ("missing", DATA, ".*cannot read /no.h5: ", {"data.path": "/no.h5"})]:
            with self.subTest(name):
                errors = self.finished(self.start(name, **more), code)[1]
                self.assertRegex(errors, "(^|\n)run: " + line + ".*\n$")
                self.assertRegex(self.read("output/failure"), line)

    def test_a_stop_in_the_first_moment(self):
        process = self.start("at-once", environment=self.early_signal(signal.SIGTERM), **{"data.path": self.text})
        self.finished(process, 0)
        self.assertFalse(os.path.exists(os.path.join(self.ml, "checkpoints")))

    def test_a_stop_saves(self):
        process = self.start("stopped", LONG, **{"data.path": self.text})
        run = os.path.join(self.ml, "checkpoints/stopped")
        wait_until(lambda: os.path.exists(os.path.join(run, "metrics.jsonl")) and len(losses(run)) > 2)
        process.send_signal(signal.SIGTERM)
        self.finished(process, 0)
        self.assertFalse(os.path.exists(os.path.join(self.ml, "output/failure")))
        last = max(losses(run))
        self.check(tandem_program.run("inspect", run, "--verify"))
        self.assertIn(f"step-{last:08d}", os.listdir(os.path.join(run, "checkpoints")))


class TwoHosts(Sagemaker):
    @classmethod
    def setUpClass(cls):
        pretend_hosts.require("sshd", "ssh", "mpirun")
        super().setUpClass()
        cls.make_hosts(2)
        with open(os.path.join(cls.hosts.folder, "hosts"), "a") as file:  # the service's names, which are not the hosts' own
            for number, address in enumerate(cls.hosts.addresses.values(), 1):
                file.write(f"{address} algo-{number}\n")

    def begin(self, name, steps, order=("algo-1", "algo-2"), only=(0, 1), channels=("fsx",), environment={}, **more):
        """Starts the containers; their processes."""
        self.fsx = self.path("fsx-" + name)
        os.makedirs(self.fsx, exist_ok=True)
        self.run = os.path.join(self.fsx, "runs", name)
        processes = []
        for number in only:
            host = f"host{number}"
            self.hosts.run(host, ["sh", "-c", MAKE_OPT_ML, "make", self.fsx])
            self.addCleanup(self.hosts.run, host, ["sh", "-c", CLEAN])
            order = order if number == 0 else order[::-1]
            for file, content in [("resourceconfig", {"current_host": f"algo-{number + 1}", "hosts": order}),
                                  ("hyperparameters", self.hyperparameters(name, steps, {"data.path": self.text, **more})),
                                  ("inputdataconfig", {channel: {} for channel in channels})]:
                self.hosts.run(host, ["tee", f"/opt/ml/input/config/{file}.json"], input=json.dumps(content))
            process = self.hosts.start(host, [TRAIN, "train"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env={**os.environ, "TRAINING_JOB_NAME": "job", **environment})
            self.addCleanup(lambda process=process: (process.kill(), process.communicate()))
            processes.append(process)
        return processes

    def file(self, number, path):
        """What is in a file of a host's /opt/ml; None if it is not there."""
        done = self.hosts.run(f"host{number}", ["cat", "/opt/ml/" + path], check=False)
        return done.stdout if done.returncode == 0 else None

    def shared_text(self, name):
        """What is in a file through which the hosts meet; empty if it is not there."""
        path = os.path.join(self.fsx, ".tandem-job", name)
        if not os.path.exists(path):
            return ""
        with open(path) as file:
            return file.read()

    def wait_for_steps(self, processes):
        def is_decided():
            return any(process.poll() is not None for process in processes) or (
                os.path.exists(os.path.join(self.run, "metrics.jsonl")) and len(losses(self.run)) > 2)
        wait_until(is_decided)
        self.assertEqual([process.poll() for process in processes], [None] * len(processes))

    def expect_nothing_left(self):
        self.assertEqual([name for name in os.listdir(self.fsx) if name.startswith(".")], [])  # no keys on the shared storage
        wait_until(lambda: all(not re.search("tandem|orted|sshd", command) for host in self.hosts.names
                               for command in self.hosts.processes(host).values()), 15)

    def test_hosts_in_another_order_train_together(self):
        """Each of the hosts is told another order. The leftovers of an earlier attempt under this job's name mislead nobody."""
        os.makedirs(self.path("fsx-success/.tandem-job"))
        with open(self.path("fsx-success/.tandem-job/leader.json"), "w") as file:
            json.dump({"key": "old", "heard": {"algo-2": "ssh-ed25519 old"}, "beat": 9, "code": 64, "reason": "old"}, file)
        with open(self.path("fsx-success/.tandem-job/algo-2.pub"), "w") as file:
            file.write("ssh-ed25519 old")
        worker, = self.begin("success", 4, order=("algo-2", "algo-1"), only=[1])
        wait_until(lambda: self.shared_text("algo-2.pub") not in ("", "ssh-ed25519 old"))
        leader, = self.begin("success", 4, order=("algo-2", "algo-1"), only=[0])
        errors = self.finished(leader, 0)[1]
        self.assertIn("run: 2 ranks on algo-1, algo-2 (sagemaker)", errors.splitlines())
        self.assertEqual(self.finished(worker, 0), ("", ""))
        self.expect_nothing_left()
        self.train("alone", *EXACT, "--train.steps", "4")
        self.assertEqual(tensors_in(self.run), tensors_in(self.run_folder("alone")))
        model = self.path("model")
        self.hosts.run("host0", ["cp", "-r", "/opt/ml/model", model])
        self.assert_generates(model)
        self.assertNotEqual(self.hosts.run("host0", ["ls", "/opt/ml/output/tensorboard"]).stdout, "")
        self.assertEqual([self.file(number, "output/failure") for number in (0, 1)], [None, None])

    def test_a_killed_rank(self):
        processes = self.begin("killed", LONG)
        self.wait_for_steps(processes)
        rank = next(process for process, command in self.hosts.processes("host1").items()
                    if command.startswith(tandem_program.TANDEM + " train"))
        os.kill(rank, signal.SIGKILL)
        for number, process in enumerate(processes):
            self.finished(process, 137)
            self.assertRegex(self.file(number, "output/failure"), 
                             rf"(?m)^run: ended with 137 \(a process was ended by SIGKILL\).*\nrun: rank \d on \S+ \(process {rank}\) is gone, in ")
        self.expect_nothing_left()

    def test_a_stop_saves(self):
        """SIGTERM to the containers of both hosts, as the service sends it; the worker's sshd stays until all is saved."""
        processes = self.begin("stopped", LONG)
        self.wait_for_steps(processes)
        began = time.monotonic()
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in processes:
            self.finished(process, 0)
        self.assertLess(time.monotonic() - began, 30)
        last = max(losses(self.run))
        self.check(tandem_program.run("inspect", self.run, "--verify"))
        self.assertIn(f"step-{last:08d}", os.listdir(os.path.join(self.run, "checkpoints")))
        self.assertIsNone(self.file(0, "output/failure"))
        self.expect_nothing_left()

    def test_a_stop_of_one_worker_saves(self):
        """Its container alone is asked to end. The service has not ended the job, so the leader says that it did not finish."""
        leader, worker = self.begin("parted", LONG)
        self.wait_for_steps([leader, worker])
        worker.send_signal(signal.SIGTERM)
        self.assertIn("run: algo-2 is asked to end: the job saves and ends", self.finished(leader, STOPPED)[1].splitlines())
        self.finished(worker, 0)
        self.assertIn(f"step-{max(losses(self.run)):08d}", os.listdir(os.path.join(self.run, "checkpoints")))
        self.assertRegex(self.file(0, "output/failure"), r"(?m)^run: ended with 85 ")
        self.assertIsNone(self.file(1, "output/failure"))
        self.expect_nothing_left()

    def test_a_worker_that_never_comes(self):
        leader, = self.begin("alone", 4, only=[0], **{"launch.wait": "2"})
        self.finished(leader, LOST)
        self.assertEqual(self.file(0, "output/failure"), "algo-2: has not come within 2 s: see its log")
        self.expect_nothing_left()

    def test_a_stop_before_all_have_come(self):
        leader, = self.begin("early", 4, only=[0])
        wait_until(lambda: self.shared_text("leader.json"))
        self.assertEqual(os.stat(os.path.join(self.fsx, ".tandem-job")).st_mode & 0o777, 0o700)
        leader.send_signal(signal.SIGTERM)
        self.finished(leader, 0)
        os.mkdir(os.path.join(self.fsx, ".tandem-job"))
        worker, = self.begin("early", 4, only=[1])
        wait_until(lambda: self.shared_text("algo-2.pub"))
        worker.send_signal(signal.SIGTERM)
        self.finished(worker, 0)
        self.assertEqual([self.file(number, "output/failure") for number in (0, 1)], [None, None])

    def test_a_leader_that_never_comes(self):
        worker, = self.begin("leaderless", 4, only=[1], **{"launch.wait": "2"})
        self.finished(worker, LOST)
        self.assertEqual(self.file(1, "output/failure"), "the leader has not come within 2 s: see its log")

    def test_a_leader_that_dies_without_a_word(self):
        leader, worker = self.begin("silent", LONG, environment={"TANDEM_SILENT_S": "6"})
        self.wait_for_steps([leader, worker])
        for process in self.hosts.processes("host0"):
            os.kill(process, signal.SIGKILL)
        self.finished(worker, LOST)
        self.assertRegex(self.file(1, "output/failure"), "^the leader has been silent for 6 s: ")

    def test_no_shared_storage(self):
        for number, process in enumerate(self.begin("unshared", 4, channels=("data",))):
            self.finished(process, CONFIG)
            self.assertEqual(self.file(number, "output/failure"),
                             "2 instances share no storage: add a channel fsx (FSx for Lustre, rw)")


if __name__ == "__main__":
    tandem_program.main()
