#!/usr/bin/env python3
"""launch/sagemaker/submit.py sends a job to moto, a stand-in for AWS, and the newest boto3 takes its requests. Both are
installed for the moment.

    check_moto.py [unittest arguments]

Part of tests/nightly.sh, because it needs a network. It reaches nothing of AWS.
"""
import json
import os
import subprocess
import tempfile
import unittest

import test_submit
from test_submit import ONE, SETTINGS, SUBMIT, TWO, faults, request

# Submits jobs as submit.py does, and prints what the service then says about the last of them, and its model of requests.
SEND = """
import gzip, json, runpy, sys
import boto3
from botocore.loaders import Loader
from moto import mock_aws
with mock_aws():
    for arguments in json.loads(sys.stdin.read()):
        sys.argv = ["submit.py", *arguments]
        try:
            runpy.run_path({submit!r}, run_name="__main__")
        except SystemExit as end:
            assert not end.code, end
    client = boto3.client("sagemaker")
    names = [job["TrainingJobName"] for job in client.list_training_jobs()["TrainingJobSummaries"]]
    jobs = [client.describe_training_job(TrainingJobName=name) for name in names]
    print(json.dumps({{"jobs": jobs, "shapes": Loader().load_service_model("sagemaker", "service-2")["shapes"]}}, default=str))
"""


class Moto(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tandem-test-")
        cls.addClassCleanup(folder.cleanup)
        python = os.path.join(folder.name, "bin", "python")
        subprocess.run(["/usr/bin/python3", "-m", "venv", folder.name], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "boto3", "moto[sagemaker]==5.2.1"], check=True)
        spot = {**TWO, "--name": "spot", "--spot": True}
        cls.requests = {"book": request(ONE), "spot": request(spot)}
        words = [[word for pair in options.items() for word in pair if word is not True] + ["--", "train", *SETTINGS]
                 for options in [ONE, spot]]
        done = subprocess.run([python, "-c", SEND.format(submit=SUBMIT)], input=json.dumps(words), capture_output=True,
                              text=True, env={**os.environ, "AWS_DEFAULT_REGION": "us-east-1"})
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        *cls.printed, said = done.stdout.splitlines()
        cls.said = json.loads(said)

    def test_the_service_has_what_was_sent(self):
        arn = "arn:aws:sagemaker:us-east-1:123456789012:training-job/"
        self.assertEqual(self.printed, [arn + name for name in self.requests])
        self.assertEqual(sorted(job["TrainingJobName"] for job in self.said["jobs"]), sorted(self.requests))
        for job in self.said["jobs"]:
            for key, value in self.requests[job["TrainingJobName"]].items():
                if key != "AlgorithmSpecification":
                    self.assertEqual(job[key], value)
                else:  # moto has metrics of its own
                    self.assertEqual(job[key]["TrainingImage"], value["TrainingImage"])

    def test_the_newest_model_takes_the_requests(self):
        for body in self.requests.values():
            self.assertEqual(list(faults(self.said["shapes"], "CreateTrainingJobRequest", body)), [])

    def test_the_newest_model_finds_the_planted_faults(self):
        model = test_submit.Model("test_planted_faults")
        model.shapes = self.said["shapes"]
        model.test_planted_faults()


if __name__ == "__main__":
    unittest.main(verbosity=2)
