#!/usr/bin/env python3
"""launch/sagemaker/submit.py: what it refuses, and its requests, read strictly by botocore's own model of them. And
launch/sagemaker/meeting.py: how hosts part.

    test_submit.py [unittest arguments]
"""
import copy
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from types import SimpleNamespace
from unittest import mock

LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch")
sys.path[:0] = [os.path.join(LAUNCH, "run"), os.path.join(LAUNCH, "sagemaker")]
import meeting

SUBMIT = os.path.join(LAUNCH, "sagemaker", "submit.py")
ROLE = "arn:aws:iam::123456789012:role/tandem"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/tandem:1"
ONE = {"--name": "book", "--instance": "ml.p4d.24xlarge", "--nodes": "1", "--image": IMAGE, "--role": ROLE,
       "--data": "s3://b/data", "--checkpoints": "s3://b/runs/book"}
FSX = {"--fsx": "fs-0123456789abcdef0:/mount/tandem", "--subnet": "subnet-0123456789abcdef0",
       "--security-group": "sg-0123456789abcdef0"}
TWO = {**ONE, **FSX, "--nodes": "2"}
LARGEST = {**TWO, "--name": "b" * 63, "--nodes": "1000", "--role": ROLE + "m" * 2010, "--checkpoints": "s3://b/" + "r" * 1000,
           "--max-run": "2419200", "--volume": "16384", "--tag": "k" * 128 + "=" + "v" * 256}
SPOT = {**ONE, "--spot": True, "--max-run": "600", "--max-wait": "900"}
SETTINGS = ["--config", "configs/gpt2_124m.cfg", "--train.steps=100", "--data.augment", "--optim.lr", "1e-3"]
TYPES = {"string": str, "integer": int, "long": int, "boolean": bool, "list": list, "map": dict, "structure": dict}


def submit(options, *more, settings=SETTINGS, **how):
    words = [word for key, value in options.items() for word in ([key] if value is True else [key, value])]
    command = [sys.executable, SUBMIT, *words, *more, "--", "train", *settings]
    return subprocess.run(command, capture_output=True, text=True, **how)


def without(name, options):
    return {key: value for key, value in options.items() if key != name}


def request(options):
    done = submit(options, "--dry-run")
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def faults(shapes, name, value, place="request"):
    """What botocore's model has against a value of the shape `name`. boto3 itself looks at no pattern and no maximum."""
    shape = shapes[name]
    kind = shape["type"]
    if type(value) is not TYPES[kind]:
        yield f"{place} is no {kind}"
        return
    size = value if kind in ("integer", "long") else 0 if kind == "boolean" else len(value)
    if not shape.get("min", size) <= size <= shape.get("max", size):
        yield f"{place}: {size} is not within {shape.get('min')} and {shape.get('max')}"
    pattern = shape.get("pattern", "(?s:.*)").replace(r"\p{L}\p{Z}\p{N}", r"\w ")  # Python has no \p
    if kind == "string" and not re.fullmatch(pattern, value):
        yield f"{place}: {value} does not match {pattern}"
    if kind == "string" and "enum" in shape and value not in shape["enum"]:
        yield f"{place}: {value} is none of {shape['enum'][:9]}"
    if kind == "list":
        for number, each in enumerate(value):
            yield from faults(shapes, shape["member"]["shape"], each, f"{place}[{number}]")
    if kind == "map":
        for key, each in value.items():
            yield from faults(shapes, shape["key"]["shape"], key, f"{place}'s name")
            yield from faults(shapes, shape["value"]["shape"], each, f"{place}.{key}")
    if kind == "structure":
        yield from (f"{place}.{key} is missing" for key in shape.get("required", []) if key not in value)
        for key, each in value.items():
            if key not in shape["members"]:
                yield f"{place}.{key} is unknown"
            else:
                yield from faults(shapes, shape["members"][key]["shape"], each, f"{place}.{key}")


class Requests(unittest.TestCase):
    def test_one_instance(self):
        body = request(ONE)
        self.assertEqual(body["HyperParameters"],
                         {"config": "configs/gpt2_124m.cfg", "train.steps": "100", "data.augment": "true", "optim.lr": "1e-3"})
        self.assertEqual(body["CheckpointConfig"], {"S3Uri": "s3://b/runs/book", "LocalPath": "/opt/ml/checkpoints"})
        self.assertEqual(body["OutputDataConfig"]["S3OutputPath"], "s3://b/runs/output/book")
        self.assertEqual([channel["ChannelName"] for channel in body["InputDataConfig"]], ["data"])
        self.assertEqual(body["EnableManagedSpotTraining"], False)
        self.assertNotIn("MaxWaitTimeInSeconds", body["StoppingCondition"])
        self.assertNotIn("VpcConfig", body)
        self.assertNotIn("Tags", body)
        self.assertIn("train:loss", [metric["Name"] for metric in body["AlgorithmSpecification"]["MetricDefinitions"]])

    def test_spot(self):
        self.assertEqual(request(SPOT)["StoppingCondition"], {"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 900})
        body = request({**ONE, "--spot": True})
        self.assertTrue(body["EnableManagedSpotTraining"])
        self.assertEqual(body["StoppingCondition"], {"MaxRuntimeInSeconds": 86400, "MaxWaitTimeInSeconds": 172800})

    def test_several_instances(self):
        body = request(TWO)
        self.assertEqual(body["ResourceConfig"]["InstanceCount"], 2)
        self.assertEqual(body["VpcConfig"], {"Subnets": [FSX["--subnet"]], "SecurityGroupIds": [FSX["--security-group"]]})
        self.assertEqual(body["InputDataConfig"][1]["DataSource"]["FileSystemDataSource"],
                         {"FileSystemId": "fs-0123456789abcdef0", "FileSystemAccessMode": "rw", "FileSystemType": "FSxLustre",
                          "DirectoryPath": "/mount/tandem"})

    def test_tags(self):
        tags = ["--tag", "team=vision", "--tag", "costs=a=b +x", "--tag", "empty="]
        body = json.loads(submit(ONE, "--dry-run", *tags).stdout)
        self.assertEqual(body["Tags"], [{"Key": "team", "Value": "vision"}, {"Key": "costs", "Value": "a=b +x"},
                                        {"Key": "empty", "Value": ""}])

    def test_a_name_of_its_own(self):
        self.assertRegex(request(without("--name", ONE))["TrainingJobName"], r"^tandem-\d{8}-\d{6}$")

    def test_what_is_refused(self):
        for options, line in [
                ({**ONE, "--nodes": "2"}, "--nodes 2 needs --fsx: several instances share nothing else"),
                ({**ONE, "--output": "s3://b/runs/book/o"}, "--output is in --checkpoints, which a restart copies back: choose a folder be"),
                *(({**without("--checkpoints", options), "--output": "s3://b/o"}, "nothing keeps the run: give --checkpoints or --fsx")
                  for options in [ONE, SPOT]),
                ({**SPOT, "--max-wait": "599"}, "--max-wait 599 is less than --max-run 600: it counts the waiting too"),
                ({**ONE, "--max-wait": "900"}, "--max-wait is for --spot"),
                ({**ONE, "--instance": "ml.p4d.48xlarge"}, "--instance ml.p4d.48xlarge is not in launch/instances.json, which"),
                ({**ONE, "--instance": "p4d.24xlarge"}, "--instance p4d.24xlarge is not in launch/instances.json"),
                ({**ONE, "--name": "b" * 64}, "argument --name: 'b{60}' must be like my-job-1 .*, and has at most 63 letters; --help"),
                ({**ONE, "--name": "my_book"}, "argument --name: 'my_book' must be like my-job-1 "),
                ({**ONE, "--name": "my\nbook"}, r"argument --name: 'my\\nbook' must be like "),
                ({**ONE, "--role": "tandem"}, "argument --role: 'tandem' must be like arn:aws:iam::123456789012:role/NAME, and has "),
                ({**ONE, "--role": ROLE + " and more"}, "argument --role: .* must be like "),
                ({**ONE, "--role": ROLE + "m" * 2048}, "argument --role: .* at most 2048 letters"),
                ({**ONE, "--image": ""}, "argument --image: '' must be like 123456789012.dkr.ecr."),
                ({**ONE, "--image": IMAGE + " b"}, "argument --image: .* must be like "),
                ({**ONE, "--image": "tandem:1"}, "argument --image: 'tandem:1' must be like "),
                *(({**ONE, "--image": IMAGE.replace("tandem", name)}, f"argument --image: '.*/{name}:1' must be like ") for name in ["a//b", "a..b"]),
                ({**ONE, "--data": "/data"}, "argument --data: '/data' must be like s3://BUCKET/FOLDER"),
                ({**ONE, "--checkpoints": "s3://b/" + "r" * 1018}, "argument --checkpoints: .* at most 1024 letters"),
                ({**ONE, "--output": "s3://my bucket/o"}, "argument --output: 's3://my bucket/o' must be like "),
                ({**TWO, "--fsx": "fs-012345"}, "argument --fsx: 'fs-012345' must be like fs-0123456789abcdef0:/MOUNT/FOLDER"),
                ({**TWO, "--subnet": "junk junk"}, "argument --subnet: 'junk junk' must be like subnet-0123456789abcdef0"),
                ({**TWO, "--security-group": "junk"}, "argument --security-group: 'junk' must be like sg-0123456789abcdef0"),
                ({**ONE, "--max-run": "2419201"}, "argument --max-run: '2419201' is no whole number from 1 to 2419200; "),
                ({**ONE, "--volume": "16385"}, "argument --volume: '16385' is no whole number from 1 to 16384; "),
                ({**TWO, "--nodes": "1001"}, "argument --nodes: '1001' is no whole number from 1 to 1000; "),
                ({**TWO, "--nodes": "\u00b2"}, "argument --nodes: '\u00b2' is no whole number"),
                ({**ONE, "--tag": "team"}, "argument --tag: 'team' must be like team=vision"),
                ({**ONE, "--tag": "aws:team=a"}, "argument --tag: 'aws:team=a' must be like team=vision"),
                ({**ONE, "--tag": "Aws:team=a"}, "argument --tag: 'Aws:team=a' must be like team=vision"),
                ({**ONE, "--tag": "a" * 129 + "=b"}, "argument --tag: 'a{60}' must be like team=vision"),
                (without("--subnet", TWO), "--fsx needs --subnet and --security-group: it is in a VPC"),
                (without("--data", ONE), "there is no data: give --data or --fsx"),
                ({**ONE, "--checkpoints": "s3://b"}, "there is no place for the model: give --output"),
                ({**ONE, "--nodes": "0"}, "argument --nodes: '0' is no whole number from 1 to 1000; --help shows all options")]:
            with self.subTest(line):
                self.assert_refused(submit(options, "--dry-run"), line)
        for option, value, most in [("--tag", "k{}=v", 50), ("--subnet", "subnet-{}", 16), ("--security-group", "sg-{}", 5)]:
            given = [word for number in range(most + 1) for word in (option, value.format(number))]
            options = without(option, TWO)
            self.assert_refused(submit(options, "--dry-run", *given), f"{option} stands {most + 1} times: SageMaker takes {most}")
            self.assertEqual(submit(options, "--dry-run", *given[2:]).returncode, 0)
        self.assert_refused(submit(ONE, "--dry-run", "--tag", "a=b", "--tag", "a=c"), "--tag: a key stands twice")
        for settings, line in [
                (["--a.b", "one\ntwo"], "--a.b has 7 letters: SageMaker takes 2500 in one line, of a name 256"),
                (["--sagemaker_program", "x"], "--sagemaker_program never reaches `tandem train`: "),
                (["--help", "true"], "hyperparameter help: it would train nothing: leave it out"),
                (["--check"], "hyperparameter check: it would train nothing: leave it out"),
                (["--launch.print"], "hyperparameter launch.print: it would train nothing: leave it out"),
                (["--launch.hosts", "a:8"], "hyperparameter launch.hosts: SageMaker says which hosts there are: leave it out"),
                (["--launch.wait", "soon"], "hyperparameters launch.NAME are options of launch/run.sh: argument --wait: 'soon' is no whole number"),
                (["--launch.market", "x"], "hyperparameters launch.NAME are options of launch/run.sh: argument --market: invalid choice: 'x'"),
                (["--launch.sleep", "1"], "hyperparameters launch.NAME are options of launch/run.sh: unrecognized arguments: --sleep=1"),
                (["--run.dir", "/fsx/runs"], "run.dir = /fsx/runs is lost with the container: leave it out, or .* /opt/ml/checkpoints"),
                (["--run.name", b"\xff"], r"hyperparameter 'run.name': it has a character that no command line takes: leave that out"),
                (["100"], "'100' belongs to no setting: write --section.key VALUE"),
                (["--a.b", "1", "--a.b", "2"], "--a.b stands twice: SageMaker takes one value"),
                (["--a.b", "x" * 2501], "--a.b has 2501 letters: SageMaker takes 2500 in one line, of a name 256"),
                ([f"--a.b{i}=1" for i in range(101)], "101 settings: SageMaker takes 100, so put them into a file for ")]:
            with self.subTest(line):
                self.assert_refused(submit(ONE, "--dry-run", settings=settings), line)

    def test_settings_that_the_container_takes(self):
        on_fsx = ["--run.dir", "/opt/ml/input/data/fsx/mine"]
        more = ["--launch.wait", "60", "--launch.market", "spot", "--launch.allow=NCCL_ALGO"]
        for options, settings in [(ONE, ["--run.dir", "/opt/ml/checkpoints/mine", *more]), ({**ONE, **FSX}, on_fsx), (TWO, on_fsx)]:
            body = json.loads(submit(options, "--dry-run", settings=settings).stdout)
            self.assertEqual(body["HyperParameters"]["run.dir"], settings[1])
        self.assert_refused(submit(ONE, "--dry-run", settings=on_fsx), "run.dir = /opt/ml/input/data/fsx/mine is lost with the container: ")

    def assert_refused(self, done, line):
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, f"^submit: {line}.*\n$")
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_what_is_sent(self):
        """By a stand-in for boto3: the request of --dry-run, which needs no boto3."""
        stand_in = """
import json
def client(service):
    return type(service, (), {"create_training_job": staticmethod(create)})
def create(**body):
    if body["TrainingJobName"] == "refused":
        raise RuntimeError("the service\\nrefuses")
    return {"TrainingJobArn": json.dumps(body)}
"""
        with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
            environment = {**os.environ, "PYTHONPATH": folder}
            with open(os.path.join(folder, "boto3.py"), "w") as file:
                file.write(stand_in)
            self.assertEqual(json.loads(submit(TWO, env=environment).stdout), request(TWO))
            self.assert_refused(submit({**TWO, "--name": "refused"}, env=environment), "not sent: the service refuses")
            with open(os.path.join(folder, "boto3.py"), "w") as file:
                file.write("raise ImportError")
            self.assert_refused(submit(ONE, env=environment), "boto3 is not installed: pip install boto3, or ")
            self.assertEqual(submit(ONE, "--dry-run", env=environment).returncode, 0)


@mock.patch.object(meeting, "make_key", lambda path: "key")
class Parting(unittest.TestCase):
    # A worker that the leader has heard of, without its sshd.
    WORKER = """if True:
        import sys, types
        sys.path[:0] = sys.argv[3:]
        import meeting
        meeting.make_key = lambda path: "key"
        worker = meeting.Worker(*sys.argv[1:3], "algo-2")
        meeting.write(worker.announcement, worker.key)
        print(worker.outcome(120, types.SimpleNamespace(poll=lambda: None), lambda: False))"""

    def setUp(self):
        private = tempfile.TemporaryDirectory(prefix="tandem-test-")
        self.addCleanup(private.cleanup)
        self.private, self.shared = private.name, os.path.join(private.name, "shared")

    def test_a_worker_that_stands_still_at_the_end(self):
        """The leader waits for it nearly as long as a worker would for the leader; then it reads the outcome. The clock is made up."""
        leader, clock = meeting.Leader(self.shared, self.private, None), 0
        worker = subprocess.Popen([sys.executable, "-c", self.WORKER, self.shared, self.private, *sys.path], stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (worker.kill(), worker.communicate()))
        leader.wait_for(["algo-2"], 60, lambda: False)
        worker.send_signal(signal.SIGSTOP)
        self.assertTrue(os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1]))

        def sleep(seconds):
            nonlocal clock
            clock = min(clock + seconds, 119)
            if clock == 119:
                worker.send_signal(signal.SIGCONT)
                time.sleep(seconds)
        with mock.patch.object(meeting, "time", SimpleNamespace(monotonic=lambda: clock, sleep=sleep)):
            leader.end(0, "good", 120)
        self.assertEqual(clock, 119)
        self.assertEqual(worker.communicate(timeout=60)[0], "(0, 'good')\n")
        self.assertFalse(os.path.exists(self.shared))

    def test_a_word_that_cannot_be_read_again(self):
        """The leader's key is in the word that says that it has heard of the worker."""
        worker = meeting.Worker(self.shared, self.private, "algo-2")
        words = iter([{"heard": {"algo-2": "key"}, "key": "leader's"}, {}, {"code": 0, "reason": "good"}])
        sshd = SimpleNamespace(poll=lambda: None, terminate=lambda: None, wait=lambda: None)
        with mock.patch.object(worker, "word", lambda: next(words)), mock.patch.object(subprocess, "Popen", lambda command: sshd), \
                mock.patch.object(os, "geteuid", lambda: 1000):
            self.assertEqual(worker.wait(60, 120, lambda: False), (0, "good"))
        with open(os.path.join(self.private, "authorized_keys")) as file:
            self.assertEqual(file.read(), "leader's\n")

    def test_a_worker_whose_folder_goes_while_it_reads(self):
        worker = meeting.Worker(self.shared, self.private, "algo-2")
        with mock.patch.object(worker, "word", lambda: {"code": 0, "reason": "good"}):
            self.assertEqual(worker.outcome(120, None, lambda: False), (0, "good"))


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            from botocore.loaders import Loader
        except ImportError:
            reason = "not installed: python3-boto3 (launch/setup.sh --tests)"
            if os.environ.get("TANDEM_REQUIRE_CLUSTER") == "1":
                raise AssertionError(f"TANDEM_REQUIRE_CLUSTER=1, but {reason}")
            raise unittest.SkipTest(reason)
        cls.shapes = Loader().load_service_model("sagemaker", "service-2")["shapes"]

    def faults(self, body):
        return list(faults(self.shapes, "CreateTrainingJobRequest", body))

    def test_it_takes_the_requests(self):
        for options in [ONE, TWO, SPOT, LARGEST, {**without("--checkpoints", TWO), "--output": "s3://b/o", "--spot": True},
                        {**without("--checkpoints", SPOT), **FSX, "--output": "s3://b/o"}, {**ONE, "--image": IMAGE.replace("tandem", "team/a-b__c.d--e")}]:
            self.assertEqual(self.faults(request(options)), [])

    def test_planted_faults(self):
        good = request({**TWO, "--spot": True})
        for place, value, said in [
                (["ResourceConfig", "InstanceTyp"], "ml.p4d.24xlarge", r"ResourceConfig\.InstanceTyp is unknown"),
                (["RoleArn"], None, "RoleArn is missing"),
                (["RoleArn"], "arn:aws:iam::12345:role/tandem", "RoleArn: .* does not match"),
                (["TrainingJobName"], "my_book", "TrainingJobName: my_book does not match"),
                (["TrainingJobName"], "b" * 64, "TrainingJobName: 64 is not within 1 and 63"),
                (["AlgorithmSpecification", "TrainingInputMode"], "Files", "TrainingInputMode: Files is none of"),
                (["AlgorithmSpecification", "MetricDefinitions", 0, "Regex"], None, r"Definitions\[0\]\.Regex is missing"),
                (["AlgorithmSpecification", "MetricDefinitions"], [{"Name": "a", "Regex": "b"}] * 41, "Definitions: 41 is not"),
                (["ResourceConfig", "InstanceType"], "ml.p4d.99xlarge", "InstanceType: ml.p4d.99xlarge is none of"),
                (["ResourceConfig", "InstanceCount"], "2", "InstanceCount is no integer"),
                (["StoppingCondition", "MaxWaitTimeInSeconds"], 0, "MaxWaitTimeInSeconds: 0 is not within"),
                (["HyperParameters", "train.steps"], 100, r"HyperParameters\.train\.steps is no string"),
                (["CheckpointConfig", "S3Uri"], "b/runs", "S3Uri: b/runs does not match"),
                (["InputDataConfig", 1, "DataSource", "FileSystemDataSource", "FileSystemAccessMode"], "w", "Mode: w is none"),
                (["VpcConfig", "SecurityGroupIds"], [], "SecurityGroupIds: 0 is not within 1 and 5"),
                (["EnableManagedSpotTraining"], "true", "EnableManagedSpotTraining is no boolean")]:
            body = copy.deepcopy(good)
            *folders, last = place
            part = body
            for each in folders:
                part = part[each]
            part[last] = value
            if value is None:
                del part[last]
            with self.subTest(place=place, value=value):
                self.assertRegex("\n".join(self.faults(body)), said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
