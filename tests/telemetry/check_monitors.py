#!/usr/bin/env python3
"""What a run writes for Prometheus and CloudWatch, read by prometheus_client and by the validator of aws-embedded-metrics, and
held against the schema of CloudWatch's lines. These come from PyPI for the moment.

    check_monitors.py PATH_TO_TANDEM PATH_TO_STAND_IN [unittest arguments]

Part of tests/nightly.sh, because it needs a network.
"""
import json
import os
import subprocess
import sys

import test_gpu_figures
import tandem_program

READ = """
import json, sys
from datetime import datetime
import jsonschema
from aws_embedded_metrics import validator
from aws_embedded_metrics.storage_resolution import StorageResolution
from prometheus_client.parser import text_string_to_metric_families
files, lines, schema = json.load(sys.stdin)
for line in map(json.loads, lines):
    jsonschema.validate(line, schema)
    validator.validate_timestamp(datetime.fromtimestamp(line["_aws"]["Timestamp"] / 1000))
    for directive in line["_aws"]["CloudWatchMetrics"]:
        validator.validate_namespace(directive["Namespace"])
        for names in directive["Dimensions"]:
            validator.validate_dimension_set({name: line[name] for name in names})
        for metric in directive["Metrics"]:
            validator.validate_metric(metric["Name"], line[metric["Name"]], metric["Unit"], StorageResolution.STANDARD, {})
print(json.dumps({name: {sample.name: [sample.labels, sample.value, sample.timestamp] for family in text_string_to_metric_families(text)
                         for sample in family.samples} for name, text in files.items()}))
"""


class Monitors(test_gpu_figures.Watched):
    def test_readers_take_all(self):
        python = self.path("venv/bin/python")
        subprocess.run(["/usr/bin/python3", "-m", "venv", self.path("venv")], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "aws-embedded-metrics==3.5.0", "prometheus_client", "jsonschema"], check=True)
        files, lines = self.monitored_run()
        with open(os.path.join(test_gpu_figures.TESTS, "telemetry", "emf_schema.json")) as file:
            schema = json.load(file)
        done = subprocess.run([python, "-c", READ], input=json.dumps([files, lines, schema]), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        read = json.loads(done.stdout)
        for name, text in files.items():
            self.assertEqual(len(read[name]), sum(not line.startswith("#") for line in text.splitlines()))
        labels, watts, time = read["tandem_monitored_1.prom"]["tandem_gpu_power_watts"]
        self.assertEqual((labels["rank"], labels["gpu"], watts, time), ("1", "1", 101.5, None))
        self.assertGreater(len(lines), 2)


if __name__ == "__main__":
    test_gpu_figures.STAND_IN = sys.argv.pop(2)
    tandem_program.main()
