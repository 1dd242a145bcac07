#!/usr/bin/env python3
"""launch/alarms/cloudwatch.yaml, read by cfn-lint, which knows CloudFormation's schemas and is installed for the moment.

    check_alarms.py [unittest arguments]

Part of tests/nightly.sh, because it needs a network. It reaches nothing of AWS.
"""
import os
import subprocess
import tempfile
import unittest

from test_alarms import FILE


class CfnLint(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tandem-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.lint = os.path.join(folder.name, "bin", "cfn-lint")
        subprocess.run(["/usr/bin/python3", "-m", "venv", folder.name], check=True)
        subprocess.run([os.path.join(folder.name, "bin", "python"), "-m", "pip", "install", "--quiet", "cfn-lint==1.58.0"], check=True)
        with open(FILE) as file:
            cls.text = file.read()

    def read(self, text):
        return subprocess.run([self.lint, "--regions", "us-east-1", "eu-central-1"], input=text, capture_output=True, text=True)

    def test_the_schema_takes_it(self):
        done = self.read(self.text)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_the_schema_refuses_mistakes(self):
        for right, wrong, said in [
                ("TreatMissingData: breaching", "TreatMissingData: alarming", "'alarming' is not one of"),
                ("LessThanThreshold", "Below", "'Below' is not one of"),
                ("AlarmActions: [!Ref Topic]", "AlarmActions: [!Ref Topik]", "'Topik' is not one of"),
                ("EvaluationPeriods: 3", "EvaluationPeriod: 3", "'EvaluationPeriod' was unexpected"),
                ("Condition: WatchesBill", "Condition: WatchesBills", "'WatchesBills' is not one of"),
                ("Protocol: email", "Protocoll: email", "'Protocoll' was unexpected")]:
            with self.subTest(wrong):
                self.assertIn(right, self.text)
                done = self.read(self.text.replace(right, wrong))
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(said, done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
