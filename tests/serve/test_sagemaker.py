#!/usr/bin/env python3
"""The contract of a SageMaker endpoint, from the image's entry point on, without Docker; and the requests of deploy.py. Argument:
the program."""
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from types import SimpleNamespace

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAUNCH = os.path.join(os.path.dirname(TESTS), "launch")
sys.path[:0] = [*(os.path.join(TESTS, folder) for folder in ["program", "serve", "launch"]), os.path.join(LAUNCH, "sagemaker")]
import deploy
import tandem_program
from container import Container
from errors import Failure
from tandem_program import MPI_ENV, Workspace, run
from server import Server, events
from test_submit import IMAGE, ROLE, faults

DEPLOY = ["--model", "s3://b/runs/output/book/model.tar.gz", "--name", "book", "--instance", "ml.g5.xlarge", "--image", IMAGE, "--role", ROLE]


class Endpoint(Server):
    """A container's entry point with a folder in the place of /opt/ml."""

    def __init__(self, opt_ml, **environment):
        self.process = subprocess.Popen([os.path.join(LAUNCH, "docker", "entry.sh"), "serve"], stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.PIPE, cwd=opt_ml, env={**MPI_ENV, "TANDEM_OPT_ML": opt_ml, "SAGEMAKER_BIND_TO_PORT": "0",
                                                                                 "TANDEM_PROGRAM": tandem_program.TANDEM, "TANDEM_SERVE_THREADS": "1", **environment})
        self.started(self.process.stdout.readline())


class Contract(Workspace):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train(cls, "book", "--train.steps", "20")
        cls.opt_ml = cls.path("ml")
        os.makedirs(cls.path("ml/model"))
        run_folder = os.path.join(cls.path("runs"), "book")
        shutil.copytree(os.path.join(run_folder, "checkpoints", "step-00000020"), cls.path("ml/model/checkpoints/step-00000020"))
        shutil.copy(os.path.join(run_folder, "tokenizer.h5"), cls.path("ml/model"))

    def generate(self, prompt, *options):
        return self.check(run("generate", self.path("ml/model"), "--prompt", prompt, "--temperature", "0", *options)).stdout[:-1]

    def test_a_container(self):
        server = Endpoint(self.opt_ml, TANDEM_SERVE_MAX_BODY_KB="2", TANDEM_SERVE_QUEUE="200")
        self.assertEqual(server.ask("GET", "/ping"), (200, ""))
        expected = self.generate("red ", "--tokens", "9")

        def invoke(number):
            body = {"inputs": "red ", "parameters": {"max_new_tokens": 9}, "stream": number % 2 == 1}
            status, text = server.ask("POST", "/invocations", body, {"Content-Type": "application/json"})
            self.assertEqual(status, 200, text)
            return json.loads(events(text)[-1] if number % 2 else text[1:-1])["generated_text"]
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            self.assertEqual(set(pool.map(invoke, range(200))), {expected})
        self.assertEqual(server.ask("POST", "/invocations", " " * 2049)[0], 413)
        self.assertEqual(server.end(), (0, ""))

    def test_an_exported_model_in_a_folder(self):
        exported = self.path("exported/model/my-model")
        self.check(run("export", self.path("ml/model"), "--output", exported))
        server = Endpoint(self.path("exported"))
        body = {"inputs": "red ", "parameters": {"max_new_tokens": 9}}
        self.assertEqual(json.loads(server.ask("POST", "/invocations", body)[1])[0]["generated_text"], self.generate("red ", "--tokens", "9"))
        self.assertEqual(server.end(), (0, ""))

    def test_an_option_that_is_none(self):
        with self.assertRaisesRegex(AssertionError, "^tandem: .*colour"):
            Endpoint(self.opt_ml, TANDEM_SERVE_COLOUR="red")


class Deploy(unittest.TestCase):
    def deploy(self, *options):
        return subprocess.run([sys.executable, os.path.join(LAUNCH, "sagemaker", "deploy.py"), "--dry-run", *DEPLOY, *options],
                              capture_output=True, text=True)

    def test_botocore_takes_the_requests(self):
        try:
            from botocore.loaders import Loader
        except ImportError:
            self.skipTest("not installed: python3-boto3 (launch/setup.sh --tests)")
        shapes = Loader().load_service_model("sagemaker", "service-2")["shapes"]
        made = json.loads(self.deploy("--option", "batch=32", "--option", "max-body-kb=64", "--tag", "team=vision").stdout)
        self.assertEqual(made["create_model"]["PrimaryContainer"]["Environment"], {"TANDEM_SERVE_BATCH": "32", "TANDEM_SERVE_MAX_BODY_KB": "64"})
        for name, shape in [("create_model", "CreateModelInput"), ("create_endpoint_config", "CreateEndpointConfigInput"),
                            ("create_endpoint", "CreateEndpointInput")]:
            self.assertEqual(list(faults(shapes, shape, made[name])), [])
        made["create_endpoint_config"]["ProductionVariants"][0]["InstanceType"] = "ml.p4d.99xlarge"
        self.assertEqual(len(list(faults(shapes, "CreateEndpointConfigInput", made["create_endpoint_config"]))), 1)

    def test_without_validation_the_newest_checkpoint_is_the_model(self):
        with tempfile.TemporaryDirectory(prefix="tandem-test-") as ml:
            for step in [4, 8, 6]:
                os.makedirs(f"{ml}/run/checkpoints/step-{step:08}")
                with open(f"{ml}/run/checkpoints/step-{step:08}/manifest.json", "w") as file:
                    json.dump({"step": step}, file)
            Container.export_model(SimpleNamespace(path=lambda *names: os.path.join(ml, *names)), f"{ml}/run")
            self.assertEqual(os.listdir(f"{ml}/model/checkpoints"), ["step-00000008"])

    def test_what_is_refused(self):
        for options, line in [(["--model", "s3://b/model"], "--model s3://b/model: SageMaker takes a model.tar.gz"),
                              (["--option", "port=80"], "--option port: launch/sagemaker/serve sets it"),
                              (["--option", "batch"], "argument --option: 'batch' must be like batch=32"),
                              (["--option", "batch=1", "--option", "batch=2"], "--option batch stands twice"),
                              (["--count", "0"], "argument --count: '0' is no whole number from 1 to 1000"),
                              (["--option", "nonsense=1"], "--option nonsense: `tandem serve` has no such option; it has base, "),
                              (["--option", "a-=1"], "argument --option: 'a-=1' must be like batch=32"),
                              (["--option", "timeout-s=60"], "--option timeout-s: '60' is no whole number from 1 to 59; SageMaker waits no longer"),
                              (["--option", "timeout-s=0"], "--option timeout-s: '0' "),
                              (["--option", "timeout-s=9.5"], "--option timeout-s: '9.5' "),
                              (["--option", "grace-s=30"], "--option grace-s: '30' is no whole number from 0 to 29; SageMaker waits no longer"),
                              (["--option", "device=gpu"], "--option device: 'gpu' must be like auto, cpu or cuda"),
                              (["--tag", "a=1", "--tag", "a=2"], "--tag: a key stands twice"),
                              ([word for number in range(51) for word in ("--tag", f"k{number}=v")],
                               "--tag stands 51 times: SageMaker takes 50"),
                              (["--instance", "g5.xlarge"], "argument --instance: .*ml.g5.xlarge")]:
            with self.subTest(line):
                done = self.deploy(*options)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, f"^deploy: {line}.*\n$")
        self.assertEqual(self.deploy("--option", "timeout-s=59", "--option", "grace-s=0").returncode, 0)

    def test_it_knows_the_options(self):
        shown = re.findall(r"(?m)^  --(\S+) ", run("serve", "--help").stdout)
        self.assertEqual(sorted([*deploy.GIVEN, *deploy.OPTIONS, "help"]), sorted(shown))

    def test_it_takes_the_values_that_the_program_takes(self):
        for name, taken, refused in [("batch", ["1", "1024"], ["0", "1025", "abc", "1.5"]), ("context", ["0", "16777216"], ["16777217"]),
                                     ("queue", ["1", "1048576"], ["0", "1048577"]), ("max-body-kb", ["1", "1048576"], ["0", "1048577"]),
                                     ("threads", ["0", "4096"], ["4097", "x"]), ("device", ["auto", "cpu", "cuda"], ["gpu"]),
                                     ("template", ["plain", "chatml", "llama3"], ["jinja"]), ("base", ["/a"], []), ("adapter", ["/a"], []),
                                     ("tokenizer", ["/a"], []), ("timeout-s", ["1", "59"], []), ("grace-s", ["0", "29"], [])]:
            for value in [*taken, *refused]:
                with self.subTest(name, value=value):
                    self.assertEqual(run("serve", "--help", f"--{name}={value}").returncode, 0 if value in taken else 2)
                    with contextlib.nullcontext() if value in taken else self.assertRaisesRegex(Failure, f"^--option {name}: '{value}' "):
                        self.assertEqual(list(deploy.environment([f"{name}={value}"]).values()), [value])

    def test_what_a_refusal_leaves(self):
        """By a stand-in for boto3, which refuses the request that REFUSED names."""
        stand_in = """
import os
class Service:
    def __getattr__(self, name):
        return lambda **body: {"EndpointArn": "arn:book"} if name != os.environ["REFUSED"] else refuse()
def refuse(): raise RuntimeError("no\\nquota")
def client(service): return Service()
"""
        with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
            with open(os.path.join(folder, "boto3.py"), "w") as file:
                file.write(stand_in)
            remove = "aws sagemaker delete-model --model-name book"
            for refused, left in [("", None), ("create_model", ""),
                                  ("create_endpoint_config", f"; already made: model book; remove with `{remove}`"),
                                  ("create_endpoint", "; already made: model and endpoint-config book; remove with `aws sagemaker "
                                                      f"delete-endpoint-config --endpoint-config-name book && {remove}`")]:
                done = subprocess.run([sys.executable, os.path.join(LAUNCH, "sagemaker", "deploy.py"), *DEPLOY], capture_output=True,
                                      text=True, env={**os.environ, "PYTHONPATH": folder, "REFUSED": refused})
                said = (0, "arn:book\n", "") if left is None else (2, "", f"deploy: {refused}: not sent: no quota{left}\n")
                self.assertEqual((done.returncode, done.stdout, done.stderr), said)


if __name__ == "__main__":
    tandem_program.main()
