#!/usr/bin/env python3
"""launch/slurm/pcluster.yaml, read by the schema of aws-parallelcluster itself, which is installed for the moment.

    check_pcluster.py [unittest arguments]

Part of tests/nightly.sh, because it needs a network. It reaches nothing of AWS.
"""
import json
import os
import subprocess
import tempfile
import unittest

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch", "slurm", "pcluster.yaml")
# Its dependencies, but for those that only make clusters (a hundred packages).
PACKAGES = ["boto3", "jinja2~=3.0", "jmespath~=1.0", "marshmallow~=3.10", "packaging~=25.0", "PyYAML", "setuptools",
            "tabulate<=0.9.0"]
# Prints the settings as JSON, or what the schema has against them.
READ = """
import json, sys, yaml
from marshmallow import ValidationError
from pcluster.schemas.cluster_schema import ClusterSchema
try:
    settings = yaml.safe_load(sys.stdin)
    ClusterSchema(cluster_name="tandem").load(settings)
    print(json.dumps(settings))
except ValidationError as error:
    sys.exit(f"refused: {error.messages}")
"""


class Pcluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tandem-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.python = os.path.join(folder.name, "bin", "python")
        subprocess.run(["/usr/bin/python3", "-m", "venv", folder.name], check=True)
        pip = [cls.python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES], check=True)
        subprocess.run([*pip, "--no-deps", "aws-parallelcluster==3.16.1"], check=True)
        with open(FILE) as file:
            cls.text = file.read()

    def read(self, text):
        return subprocess.run([self.python, "-c", READ], input=text, capture_output=True, text=True,
                              env={**os.environ, "AWS_DEFAULT_REGION": "us-east-1"})

    def test_the_schema_takes_it(self):
        done = self.read(self.text)
        self.assertEqual(done.returncode, 0, done.stderr)
        settings = json.loads(done.stdout)
        queues = settings["Scheduling"]["SlurmQueues"]
        self.assertEqual([queue["CapacityType"] for queue in queues], ["ONDEMAND", "SPOT"])
        for queue in queues:
            self.assertTrue(queue["Networking"]["PlacementGroup"]["Enabled"])
            for resource in queue["ComputeResources"]:
                self.assertTrue(resource["Efa"]["Enabled"])
                self.assertEqual(resource["Instances"], [{"InstanceType": "p4d.24xlarge"}])
        self.assertEqual([storage["MountDir"] for storage in settings["SharedStorage"]], ["/fsx"])

    def test_the_schema_refuses_mistakes(self):
        for right, wrong, said in [
                ("PlacementGroup:", "PlacmentGroup:", "PlacmentGroup.*Unknown field"),
                ("CapacityType: SPOT", "CapacityType: CHEAP", "CapacityType.*Must be one of"),
                ("Efa:\n            Enabled: true", "Efa:\n            Enabled: perhaps", "Efa.*Enabled.*Not a valid boolean"),
                ("DeploymentType: PERSISTENT_2", "DeploymentType: PERSISTENT_9", "DeploymentType.*Must be one of"),
                ("MountDir: /fsx", "MountPoint: /fsx", "MountPoint.*Unknown field"),
                ("subnet-00000000000000002", "subnet-2", "SubnetIds.*does not match")]:
            self.assertIn(right, self.text)
            done = self.read(self.text.replace(right, wrong))
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"refused: .*{said}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
