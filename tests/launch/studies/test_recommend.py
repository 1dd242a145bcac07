#!/usr/bin/env python3
"""launch/recommend.py: its figures by hand, what limits do to its choice, and what it refuses.

    test_recommend.py PATH_TO_TANDEM [unittest arguments]
"""
import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(FOLDER, "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "program"))
import tandem_program
from tandem_program import CONFIG, OK, Workspace

GPT2 = ["--config", os.path.join(ROOT, "configs", "gpt2_124m.cfg")]
P4D = "p4d.24xlarge"


class Recommend(Workspace):
    launch = os.path.join(ROOT, "launch")

    def recommend(self, *words, code=OK):
        done = subprocess.run([os.path.join(self.launch, "recommend.py"), "--tandem", tandem_program.TANDEM, *map(str, words)],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def answer(self, *words, code=OK):
        return json.loads(self.recommend("--json", *words, code=code).stdout)

    def price(self, instance, market="on_demand"):
        with open(os.path.join(self.launch, "instances.json")) as file:
            return json.load(file)["types"][instance]["usd_per_hour"][market]

    def test_one_row_by_hand(self):
        answer = self.answer(*GPT2, "--tokens", "1e9", "--instances", P4D, "--nodes", 2)
        [row] = answer["rows"]
        chosen = [f"--{key}={value}" for key, value in row["settings"].items()]
        estimate = self.check(tandem_program.run("estimate", *GPT2, "--ranks", "16", "--gpu", "a100-40", "--json", *chosen))
        step = next(each for each in json.loads(estimate.stdout)["rows"] if each["given"])
        self.assertTrue(step["fits"])
        tokens_per_s = 512 * 1024 / step["step_ms"] * 1000
        hours = 1e9 / tokens_per_s / 3600
        usd = hours * 2 * self.price(P4D)["usd"]
        for key, value in [("tokens_per_s", tokens_per_s), ("hours", hours), ("usd", usd), ("usd_per_1e9_tokens", usd)]:
            self.assertAlmostEqual(row[key], value, delta=1e-9 * value, msg=key)
        self.assertEqual(row["settings"]["train.steps"], -(-10**9 // (512 * 1024)))
        self.assertEqual((answer["best"], row["marks"]), (row, ["front", "cheapest", "fastest"]))
        shown = self.recommend(*GPT2, "--tokens", "1e9", "--instances", P4D, "--nodes", 2).stdout
        price = self.price(P4D)
        self.assertTrue(shown.startswith(f"Rent 2 x {P4D} for {hours:.4g} hours: {usd:.2f} dollars, at {price['usd']} a node and hour "
                                         f"(on demand, {price['date']}: {price['source']}).\n"), shown)
        self.assertIn(f"    launch/run.sh --hostfile hosts -- train --config {shlex.quote(GPT2[1])} {' '.join(chosen)}\n", shown)

    def test_a_command_of_sagemaker_is_taken(self):
        submit = os.path.join(self.launch, "sagemaker", "submit.py")
        for nodes in [1, 2]:
            local = ["--data.path", "/home/me/docs.h5", "--run.dir", "/home/me/runs"]
            command = self.answer(*GPT2, *local, "--tokens", "1e9", "--instances", P4D, "--nodes", nodes, "--market", "sagemaker")["command"]
            self.assertNotIn("/home/me", command)
            for word, value in [("URI", "123456789012.dkr.ecr.us-east-1.amazonaws.com/tandem:1"), ("ARN", "arn:aws:iam::123456789012:role/tandem"),
                                ("S3", "s3://b/c"), ("FSX", "fs-0123456789abcdef0:/mount"), ("SUBNET", "subnet-0"), ("GROUP", "sg-0")]:
                command = re.sub(rf" {word}\b", f" {value}", command)
            program, *words = shlex.split(command)
            self.assertEqual(program, "launch/sagemaker/submit.py")
            self.check(subprocess.run([submit, "--dry-run", *words], capture_output=True, text=True))

    def test_no_other_settings_are_faster(self):
        [row] = self.answer(*GPT2, "--tokens", "1e9", "--instances", P4D, "--nodes", 1)["rows"]
        for zero in range(4):
            for micro_batch in [16, 32, 64]:
                estimate = self.check(tandem_program.run("estimate", *GPT2, "--ranks", "8", "--gpu", "a100-40", "--json",
                                                         "--dist.zero", str(zero), "--train.micro_batch", str(micro_batch)))
                for each in json.loads(estimate.stdout)["rows"]:
                    if each["fits"]:
                        self.assertLessEqual(each["tokens_per_s"], row["tokens_per_s"] * (1 + 1e-9))

    def test_limits_move_the_choice(self):
        words = [*GPT2, "--tokens", "1e9", "--instances", P4D, "--nodes", 1, 2, 4, 8]
        def nodes(*limits):
            return self.answer(*words, *limits)["best"]["nodes"]
        rows = {row["nodes"]: row for row in self.answer(*words)["rows"]}
        self.assertEqual(nodes(), 1)
        self.assertEqual(nodes("--deadline-hours", rows[4]["hours"]), 4)
        self.assertEqual(nodes("--deadline-hours", rows[4]["hours"], "--budget", rows[4]["usd"] + 1e-6), 4)
        self.assertEqual(nodes("--budget", rows[8]["usd"] + 1e-6), 8, "a budget alone buys the fastest run")
        self.assertEqual(nodes("--budget", rows[2]["usd"] + 1e-6), 2)
        tight = self.recommend(*words, "--deadline-hours", rows[4]["hours"], "--budget", rows[2]["usd"], code=CONFIG)
        self.assertRegex(tight.stderr, r"^recommend: nothing is within \S+ hours and \S+ dollars; the nearest is [24] x p4d.24xlarge, ")
        cheap = self.recommend(*words, "--budget", 1, code=CONFIG)
        self.assertEqual(cheap.stderr, f"recommend: nothing is within 1.00 dollars; the nearest is 1 x {P4D}, which takes "
                                       f"{rows[1]['hours']:.4g} hours and {rows[1]['usd']:.2f} dollars\n")
        self.assertIn("cheapest", cheap.stdout)

    def test_interruptions(self):
        """They lengthen the run; up to the rate that a row names, spot costs less than a run on demand that nothing interrupts."""
        words = [*GPT2, "--tokens", "100e9", "--instances", P4D, "--nodes", 2]
        def best(market, rate):
            return self.answer(*words, "--market", market, "--interruptions-a-day", rate)["best"]
        plain, undisturbed, interrupted = self.answer(*words)["best"], best("on_demand", 0), best("on_demand", 3)
        self.assertAlmostEqual(undisturbed["hours"], plain["hours"] + 60 / 3600, delta=1e-9 * plain["hours"], msg="one save, at the end")
        self.assertAlmostEqual(interrupted["hours"], plain["hours"] / interrupted["goodput"], delta=1e-9 * interrupted["hours"])
        self.assertLess(interrupted["goodput"], undisturbed["goodput"])
        most = interrupted["spot_pays_up_to"]
        self.assertLess(best("spot", 0.999 * most)["usd"], undisturbed["usd"])
        self.assertGreater(best("spot", 1.001 * most)["usd"], undisturbed["usd"])
        self.assertAlmostEqual(best("spot", most)["usd"], undisturbed["usd"], delta=1e-6 * undisturbed["usd"])
        shown = self.recommend(*words, "--market", "spot", "--interruptions-a-day", 3).stdout
        self.assertRegex(shown, r"^Rent 2 x p4d.24xlarge for \S+ hours, of which \S+ % go to interruptions and saves: ")
        self.assertIn(f" Spot costs less than on demand up to {most:.3g} interruptions of a node a day.\n", shown)
        self.assertRegex(shown, r"--market spot -- train .*--checkpoint.every_minutes=[1-9]")

    def test_a_run_that_never_ends(self):
        """Many nodes are interrupted too often, few are not; no row has an hour or a dollar that is no number."""
        def no_number(text):
            raise AssertionError(f"{text} is no JSON")
        words = [*GPT2, "--tokens", "10e9", "--instances", P4D, "--nodes", 1, 64, "--interruptions-a-day"]
        shown = self.recommend("--json", *words, 900).stdout
        one, many = json.loads(shown, parse_constant=no_number)["rows"]
        self.assertEqual(one["marks"], ["front", "cheapest", "fastest"])
        why = "never ends: it is interrupted faster than it saves"
        self.assertEqual((many["why"], "hours" in many, "usd" in many), (why, False, False))
        self.assertRegex(self.recommend(*words, 900).stdout, rf"(?m)^ 64 x {P4D} +{why}$")
        self.assertIn("usd", self.answer(*words, 3, "--tokens", 1)["best"], "a short run is mostly a save, and ends")
        self.assertEqual(self.recommend(*words, "1e5", code=CONFIG).stderr, f"recommend: nothing to recommend: {why}\n")

    def test_marks(self):
        rows = self.answer(*GPT2, "--tokens", "10e9", "--nodes", 1, 16)["rows"]
        ranked = [row for row in rows if "usd" in row]
        self.assertGreater(len(ranked), 20)
        for row in ranked:
            better = [each for each in ranked if each["usd"] <= row["usd"] and each["hours"] <= row["hours"] and each is not row]
            self.assertEqual("front" in row["marks"], not better)
            self.assertEqual("cheapest" in row["marks"], row["usd"] == min(each["usd"] for each in ranked))
            self.assertEqual("fastest" in row["marks"], row["hours"] == min(each["hours"] for each in ranked))
        why = {row["instance"]: row["why"] for row in rows if "why" in row}
        self.assertEqual(why, {"p5e.48xlarge": "launch/instances.json has no on demand price",
                               "p6-b200.48xlarge": "`tandem estimate` does not know B200"})
        shown = self.recommend(*GPT2, "--tokens", "10e9", "--nodes", 1, "--market", "capacity_block", "--instances", "g5.xlarge", "p5.48xlarge").stdout
        self.assertRegex(shown, r"(?m)^ +1 x p5.48xlarge .* cheapest")
        self.assertRegex(shown, r"(?m)^any x g5.xlarge +launch/instances.json has no capacity block price$")

    def test_what_does_not_fit(self):
        answer = self.answer("--config", os.path.join(ROOT, "configs", "gpt2_1558m.cfg"), "--tokens", "1e9", "--nodes", 1, "--instances",
                             "g5.xlarge", P4D)
        small, large = answer["rows"]
        self.assertIn("does not fit", small["why"])
        self.assertEqual(answer["best"], large)
        odd = self.answer(*GPT2, "--train.global_batch", 24, "--tokens", "1e9", "--instances", P4D, "--nodes", 1, 2)
        self.assertEqual(odd["best"]["nodes"], 1)
        self.assertRegex(odd["rows"][1]["why"], "global_batch.*16 ranks|24.*16")

    def test_memory_of_hosts(self):
        """What is offloaded and the copy of a checkpoint, 18.7 GB each, are beyond one host of 16 GiB, but not beyond four."""
        answer = self.answer("--config", os.path.join(ROOT, "configs", "gpt2_1558m.cfg"), "--train.offload", "optimizer", "--tokens", "1e9",
                             "--nodes", 1, 4, "--instances", "g5.xlarge")
        one, four = answer["rows"]
        self.assertEqual(one["why"], "does not fit: needs 37.4 GB of a host's memory, for saves and train.offload, and it has 17.2 GB")
        self.assertEqual(answer["best"], four)

    def test_epochs(self):
        small = ["--epochs", 2, "--instances", P4D, "--nodes", 1]
        text = self.answer("--data.path", self.text, "--train.global_batch", 8, *small)["best"]
        inspected = self.check(tandem_program.run("inspect", self.text)).stdout
        self.assertEqual(text["units"], 2 * int(re.search(r"(?m)^train +(\d+) tokens$", inspected)[1]))
        images = self.answer("--data.path", self.images, "--model.kind", "resnet", "--train.global_batch", 8, *small)["best"]
        self.assertEqual(images["units"], 2 * 80)
        self.assertAlmostEqual(images["usd_per_1e6_images"], images["usd"] / 160 * 1e6, delta=1e-9 * images["usd_per_1e6_images"])
        for words, line in [(["--model.kind", "resnet", "--tokens", "1e9"], "--tokens: the model trains on images; give --epochs"),
                            (["--epochs", "2", "--data.path", "none.h5"], "--epochs needs the dataset: no none.h5: assuming ")]:
            self.assertIn(line, self.recommend("--train.global_batch", 8, "--instances", P4D, "--nodes", 1, *words, code=CONFIG).stderr)

    def test_an_old_price_warns(self):
        old = (datetime.date.today() - datetime.timedelta(days=400)).isoformat()
        shutil.copytree(self.launch, self.path("other/launch"))
        self.launch = self.path("other/launch")
        table = os.path.join(self.launch, "instances.json")
        with open(table) as file:
            known = json.load(file)
        known["types"][P4D]["usd_per_hour"]["on_demand"]["date"] = old
        with open(table, "w") as file:
            json.dump(known, file)
        words = [*GPT2, "--tokens", "1e9", "--nodes", 1, "--instances", P4D, "g5.xlarge"]
        warning = f"{P4D}: the price of {old} is 400 days old: look at AWS's, and mend launch/instances.json"
        self.assertEqual(self.recommend(*words).stdout.splitlines()[-1], f"warning: {warning}")
        self.assertEqual(self.answer(*words)["warnings"], [warning])

    def test_what_is_refused(self):
        for words, line in [
            (GPT2, "how long is the run? Give --tokens or --epochs, one of them"),
            ([*GPT2, "--tokens", 1, "--epochs", 1], "how long is the run? Give --tokens or --epochs, one of them"),
            ([*GPT2, "--tokens", "nan"], "argument --tokens: 'nan' must be a number such as 10e9; --help shows all options"),
            ([*GPT2, "--tokens", 0], "argument --tokens: '0' must be more than 0; --help shows all options"),
            ([*GPT2, "--tokens", "1e-5"], "recommend: --tokens: the run has 1e-05 tokens; give it 1 to 1e+18\n"),
            ([*GPT2, "--tokens", "1.1e18"], "recommend: --tokens: the run has 1.1e+18 tokens; give it 1 to 1e+18\n"),
            (["--data.path", self.text, "--epochs", "1e20"], "; give it 1 to 1e+18\n"),
            ([*GPT2, "--tokens", "1e9", "--budget", -1], "argument --budget: '-1' must be a number such as 10e9; --help shows all options"),
            ([*GPT2, "--tokens", "1e9", "--instances", "p9"], "--instances p9 is not in launch/instances.json, which has p4d.24xlarge, "),
            ([*GPT2, "--tokens", "1e9", "--market", "spot"], "--market spot needs --interruptions-a-day: "),
            (["--config", "none.cfg", "--tokens", "1e9"], "nothing to recommend: no configuration file none.cfg; settings are --section.key value"),
            ([*GPT2, "--tokens", "1e9", "--modle.width", 3], "nothing to recommend: command line: unknown setting modle.width; did you mean model.width?\n"),
        ]:
            with self.subTest(words):
                self.assertIn(line, self.recommend(*words, code=CONFIG).stderr)

    def test_a_wrong_program(self):
        """One line and 2, also from launch/scaling.py, which asks for settings first."""
        study = [os.path.join(self.launch, "scaling.py"), "--plan", "--name", "s", "--dir", self.path("studies"), "--ranks", "1"]
        with open(self.path("text"), "w") as file:
            file.write("text\n")
        os.chmod(self.path("text"), 0o755)
        for program, said in [("/bin/true", r"gives no estimate \(no JSON\); build it with launch/build.sh"),
                              ("/bin/cat", r"gives no estimate \(/bin/cat: .*\); build it with launch/build.sh"),
                              (self.folder, "does not start: Permission denied"), (self.path("text"), "does not start: Exec format error")]:
            with self.subTest(program):
                done = self.recommend(*GPT2, "--tokens", "1e9", "--instances", P4D, "--nodes", 1, "--tandem", program, code=CONFIG)
                self.assertRegex(done.stderr, f"^recommend: {program} {said}\n$")
                done = subprocess.run([*study, "--tandem", program], capture_output=True, text=True)
                self.assertEqual(done.returncode, CONFIG, done.stderr)
                self.assertRegex(done.stderr, f"^scaling: {program} (does not start: |says no settings; build it with ).*\n$")


if __name__ == "__main__":
    tandem_program.main()
