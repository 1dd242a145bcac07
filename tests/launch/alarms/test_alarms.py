#!/usr/bin/env python3
"""launch/alarms/cloudwatch.yaml: what each alarm watches, when it tells, and whom. check_alarms.py holds it against
CloudFormation's schema.

    test_alarms.py [unittest arguments]
"""
import os
import re
import unittest

import yaml

FILE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "launch", "alarms", "cloudwatch.yaml"))
DAY = 86400
RUN = {"StepTime", "Loss", "UnitsPerSecond", "Usd"}  # what log.emf writes for a run
HOST = {"GpuUse", "GpuLeastUse", "GpuPower", "GpuTemperature", "GpuThrottled", "Xid"}  # and for each of its hosts
THE_RUN = [{"Name": "Run", "Value": {"Ref": "Run"}}]
QUERY = re.compile(r"SELECT (AVG|MAX|MIN)\((\w+)\) FROM SCHEMA\(Tandem, Run, Host\) WHERE Run = '\${Run}' "
                   r"GROUP BY Host ORDER BY \1\(\) (ASC|DESC)")
# Alarm: what is watched, when it tells, for how many periods of how many seconds, and what missing data means.
ALARMS = {
    "Silent": ({"SampleCount StepTime"}, "FILL(steps, 0)", "<", 1, ({"Ref": "SilentMinutes"}, 60), "breaching"),
    "Idle": ({"AVG GpuLeastUse"}, None, "<", 20, (3, 300), "notBreaching"),
    "Slow": ({"p95 StepTime", "p50 StepTime", "SampleCount StepTime"}, "IF(steps >= 200, slow / typical)", ">",
             {"Ref": "StepTimeFactor"}, (1, DAY), "notBreaching"),
    "Xid": ({"MAX Xid"}, None, ">", 0, (1, 60), "notBreaching"),
    "Throttled": ({"MIN GpuThrottled"}, None, ">", 0, (2, 300), "notBreaching"),
    "RunCost": ({"Maximum Usd"}, None, ">", {"Ref": "RunUsd"}, (1, 300), "ignore"),
    "Bill": ({"Maximum EstimatedCharges"}, None, ">", {"Ref": "BillUsd"}, (1, 21600), "ignore"),
}
SIGNS = {"GreaterThanThreshold": ">", "LessThanThreshold": "<"}


class Template(yaml.SafeLoader):
    """!Ref x becomes {"Ref": x}, and !F x {"Fn::F": x}."""

    def function(self, name, node):
        read = {yaml.ScalarNode: self.construct_scalar, yaml.SequenceNode: lambda part: self.construct_sequence(part, deep=True)}
        return {name if name == "Ref" else f"Fn::{name}": read[type(node)](node)}


Template.add_multi_constructor("!", Template.function)


def watched(alarm):
    """(statistic and metric of each series, the expression over them, the one period of all)."""
    if "Metrics" not in alarm:
        dimensions = THE_RUN if alarm["Namespace"] == "Tandem" else [{"Name": "Currency", "Value": "USD"}]
        assert alarm["Dimensions"] == dimensions
        assert alarm["Namespace"] == "AWS/Billing" or alarm["MetricName"] in RUN
        return {f"{alarm['Statistic']} {alarm['MetricName']}"}, None, alarm["Period"]
    series, periods, ids = set(), set(), set()
    (result,) = (each for each in alarm["Metrics"] if each.get("ReturnData", True))
    for each in alarm["Metrics"]:
        ids.add(each["Id"])
        if "MetricStat" in each:
            metric = each["MetricStat"]["Metric"]
            assert metric["MetricName"] in RUN
            assert metric == {"Namespace": "Tandem", "MetricName": metric["MetricName"], "Dimensions": THE_RUN}
            series.add(f"{each['MetricStat']['Stat']} {metric['MetricName']}")
            periods.add(each["MetricStat"]["Period"])
    expression = result["Expression"]
    if isinstance(expression, dict):
        function, metric, _ = QUERY.fullmatch(expression["Fn::Sub"]).groups()
        assert metric in HOST
        series.add(f"{function} {metric}")
        periods.add(result["Period"])
        expression = None
    else:  # IDs are in small letters, functions in capital ones
        assert set(re.findall(r"[a-z]\w*", expression)) == ids - {result["Id"]}
    (period,) = periods
    return series, expression, period


class Alarms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(FILE) as file:
            cls.template = yaml.load(file, Template)
        cls.resources = cls.template["Resources"]

    def test_what_each_watches_and_when_it_tells(self):
        found = {name: each["Properties"] for name, each in self.resources.items() if each["Type"] == "AWS::CloudWatch::Alarm"}
        self.assertEqual(set(found), set(ALARMS))
        for name, alarm in found.items():
            with self.subTest(name):
                series, expression, period = watched(alarm)
                self.assertEqual((series, expression, SIGNS[alarm["ComparisonOperator"]], alarm["Threshold"],
                                  (alarm["EvaluationPeriods"], period), alarm["TreatMissingData"]), ALARMS[name])
                self.assertNotIn("DatapointsToAlarm", alarm, "all periods must breach")

    def test_all_tell_the_address(self):
        topic = self.resources["Topic"]
        self.assertEqual(topic["Type"], "AWS::SNS::Topic")
        self.assertEqual(topic["Properties"]["Subscription"], [{"Protocol": "email", "Endpoint": {"Ref": "Mail"}}])
        names = set()
        for name in ALARMS:
            alarm = self.resources[name]["Properties"]
            self.assertEqual(alarm["AlarmActions"], [{"Ref": "Topic"}])
            self.assertIn("${Run}", alarm["AlarmName"]["Fn::Sub"])
            names.add(alarm["AlarmName"]["Fn::Sub"])
            self.assertTrue(alarm["AlarmDescription"])
        self.assertEqual(len(names), len(ALARMS), "an alarm replaces another one of its name")

    def test_the_bill_is_asked_for_and_in_us_east_1(self):
        nothing, here = {"Fn::Equals": [{"Ref": "BillUsd"}, "0"]}, {"Fn::Equals": [{"Ref": "AWS::Region"}, "us-east-1"]}
        (rule,) = self.template["Rules"]["BillIsInUsEast1"]["Assertions"]
        self.assertEqual(rule["Assert"], {"Fn::Or": [nothing, here]})
        self.assertEqual(self.template["Conditions"], {"WatchesBill": {"Fn::Not": [nothing]}})
        conditions = {name: each["Condition"] for name, each in self.resources.items() if "Condition" in each}
        self.assertEqual(conditions, {"Bill": "WatchesBill"})

    def test_a_name_cannot_leave_its_query(self):
        pattern = self.template["Parameters"]["Run"]["AllowedPattern"]
        self.assertRegex("gpt2_124m-a.1", f"^{pattern}$")
        for name in ["", "a'b", "a b", "a\\", "a\n"]:
            self.assertIsNone(re.fullmatch(pattern, name))


if __name__ == "__main__":
    unittest.main(verbosity=2)
