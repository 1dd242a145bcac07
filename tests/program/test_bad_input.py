#!/usr/bin/env python3
"""Every kind of bad input ends with its exit code and one line; also jobs that are interrupted or lose a rank.

    test_bad_input.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time

import tandem_program
from tandem_program import CONFIG, DATA, MPI_ENV, NUMERICAL, OUT_OF_MEMORY, STOPPED, TINY, Workspace, metrics, run, saves, words


class BadInput(Workspace):
    def test_missing_dataset(self):
        self.assert_one_line(self.train("x", data=self.path("no.h5"), code=DATA), "no.h5")

    def test_truncated_dataset(self):
        with open(self.text, "rb") as whole, open(self.path("cut.h5"), "wb") as cut:
            cut.write(whole.read()[:-4000])
        self.assert_one_line(self.train("x", data=self.path("cut.h5"), code=DATA), "cut.h5.*(cut short|truncated|shorter)")

    def test_wrong_kind_of_dataset(self):
        self.assert_one_line(self.train("x", data=self.images, code=DATA), "text.*images")
        self.assert_one_line(self.train("x", "--model.kind", "resnet", data=self.text, code=DATA), "image.*text")

    def corrupt_tokens(self, target):
        """Writes a copy of the dataset in which tokens are outside the vocabulary, one in each window of 16."""
        with open(self.text_file) as text, open(self.text, "rb") as dataset:
            characters, content = text.read(), bytearray(dataset.read())
        ids = {c: i for i, c in enumerate(sorted(set(characters)))}
        start = content.find(struct.pack("<40H", *(ids[c] for c in characters[:40])))
        self.assertGreater(start, 0)
        for place in range(0, 12000, 16):
            content[start + 2 * place:start + 2 * place + 2] = struct.pack("<H", 60000)
        with open(target, "wb") as out:
            out.write(content)

    def test_token_outside_the_vocabulary(self):
        self.corrupt_tokens(self.path("bad.h5"))
        self.assert_one_line(self.train("hash", data=self.path("bad.h5"), code=DATA), "bad.h5: the content does not have the hash")
        os.truncate(self.path("bad.h5"), 2**29 + 1)  # as large as a file that is not verified
        self.assert_one_line(self.train("tokens", data=self.path("bad.h5"), code=DATA), "bad.h5.*60000")

    def test_context_longer_than_the_data(self):
        result = self.train("x", "--model.context", "1000000", code=DATA)
        self.assert_one_line(result, "context|window")

    def test_names_that_nobody_sees(self):
        for setting, text, shown in [("run.name", "a\tb", r"a\\x09b"), ("run.name", "a ", "a "), ("run.dir", "", ""),
                                     ("run.dir", "runs\x7f", r"runs\\x7F"), ("data.path", "a\nb", r"a\\x0Ab")]:
            result = self.check(run("train", *(["--data.path", self.text] if setting != "data.path" else []), f"--{setting}={text}", *TINY), CONFIG)
            self.assert_one_line(result, f'{setting} (= "{shown}" must not hold # or a control character|is empty; name a folder)')

    def test_a_batch_that_cannot_fit(self):
        for ranks in [1, 2]:
            result = self.train("huge", "--train.global_batch", "1048576", "--model.context", "256", ranks=ranks, code=OUT_OF_MEMORY)
            self.assert_one_line(result, r"a step needs \S+ [GT]iB, .*there are \S+ [GM]iB for this rank; train.micro_batch = \d+ fits")

    def test_empty_validation_set(self):
        self.check(run("prepare", "text", "--input", self.text_file, "--output", self.path("noval.h5"), "--tokenizer", "char",
                       "--val-fraction", "0"))
        result = self.train("x", "--train.eval_every", "5", data=self.path("noval.h5"), code=DATA)
        self.assert_one_line(result, "noval.h5.*val")
        self.train("noval", data=self.path("noval.h5"))
        self.assert_one_line(self.check(run("eval", "--checkpoint", self.run_folder("noval")), DATA), "noval.h5.*val")

    def test_indivisible_batch_ends_all_ranks_with_one_message(self):
        started = time.monotonic()
        result = self.train("x", "--train.global_batch", "10", ranks=3, code=CONFIG)
        self.assert_one_line(result, "train.global_batch = 10 is not divisible by 3 ranks")
        print(f"indivisible batch: {time.monotonic() - started:.2f} s", file=sys.stderr)

    def test_unknown_keys_are_reported_together(self):
        result = run("train", "--data.path", self.text, "--train.step", "3", "--optim.lr", "fast")
        self.check(result, CONFIG)
        self.assertIn("unknown setting train.step; did you mean train.steps?", result.stderr)
        self.assertIn("optim.lr = fast must be a number", result.stderr)

    def test_ways_to_distribute_that_do_not_exist(self):
        for settings, pattern in [(["--dist.zero", "4"], "dist.zero = 4 must be a whole number in"),
                                  (["--dist.reduce", "tree"], "dist.reduce = tree must be one of ring, exact"),
                                  (["--dist.node_size", "3"], "dist.node_size = 3 must be auto, or a number that divides the 2 ranks"),
                                  (["--dist.node_size", "two"], "dist.node_size = two must be auto"),
                                  (["--dist.reduce", "exact", "--dist.wire_dtype", "bf16"],
                                   "dist.wire_dtype = bf16 has no meaning with dist.reduce = exact")]:
            self.assert_one_line(self.train("x", *settings, ranks=2, code=CONFIG), pattern)

    def test_a_missing_gpu_is_named(self):
        hidden = dict(tandem_program.MPI_ENV, CUDA_VISIBLE_DEVICES="")
        command = [tandem_program.TANDEM, "train", "--data.path", self.text, "--run.device", "cuda"]
        result = subprocess.run(command, env=hidden, capture_output=True, text=True)
        self.assert_one_line(self.check(result, CONFIG), "run.device = cuda")

    def test_missing_config_file(self):
        self.assert_one_line(self.train("x", "--config", self.path("no.cfg"), code=CONFIG), "no.cfg")

    def test_two_ranks_reading_different_files(self):
        for name, seed in [("a", 1), ("b", 2)]:
            os.makedirs(self.path(name))
            with open(self.path(name + "/t.txt"), "w") as out:
                out.write(words(2000, seed))
            self.check(run("prepare", "text", "--input", self.path(name + "/t.txt"), "--output", self.path(name + "/t.h5"),
                           "--tokenizer", "bytes"))
        arguments = [tandem_program.TANDEM, "train", "--data.path", "t.h5", "--run.dir", self.path("runs"), "--run.name", "different", *TINY]
        command = ["timeout", "-k", "5", "60", "mpirun", "-np", "1", "-wdir", self.path("a"), *arguments, ":", "-np", "1",
                   "-wdir", self.path("b"), *arguments]
        result = subprocess.run(command, env=MPI_ENV, capture_output=True, text=True)
        self.assert_one_line(self.check(result, DATA), "t.h5.*not the same on all ranks: rank 1")

    def test_unwritable_output(self):
        with open(self.path("file"), "w") as out:
            out.write("in the way")
        self.assert_one_line(self.train("x", "--run.dir", self.path("file"), code=DATA), "file/x")

    def test_disk_full_while_saving_keeps_the_older_checkpoint(self):
        self.train("full", "--train.steps", "20", "--checkpoint.every_steps", "10", "--checkpoint.keep", "5")
        shutil.rmtree(os.path.join(self.run_folder("full"), "checkpoints/step-00000020"))

        def limit_file_size():  # a write beyond the limit fails as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))
        result = self.train("full", "--train.steps", "20", code=DATA, preexec_fn=limit_file_size, restore_signals=False)
        self.assert_one_line(result, "rank-0000.h5|manifest")
        left = sorted(os.listdir(os.path.join(self.run_folder("full"), "checkpoints")))
        self.assertIn("step-00000010", left)
        self.assertNotIn("step-00000020", left)
        self.train("full", "--train.steps", "20")  # goes on from step 10 when there is room again

    def test_checkpoint_of_another_model(self):
        self.train("narrow")
        result = self.train("wide", "--model.width", "64", "--checkpoint.init_from", self.run_folder("narrow"), code=DATA)
        self.assert_one_line(result, r"step-00000020.*param/.*\[")

    def test_run_name_used_before_with_another_model(self):
        self.train("taken")
        result = self.train("taken", "--model.width", "64", code=CONFIG)
        self.assertIn("was model.width = 32, now 64", result.stderr)

    def test_resuming_with_another_batch_or_other_data(self):
        self.train("samples", "--checkpoint.every_steps", "10", "--checkpoint.keep", "5")
        shutil.rmtree(os.path.join(self.run_folder("samples"), "checkpoints/step-00000020"))
        result = self.train("samples", "--train.global_batch", "24", code=CONFIG)
        self.assertIn("was train.global_batch = 12, now 24", result.stderr)
        shutil.copy(self.text, self.path("kept.h5"))
        with open(self.path("other.txt"), "w") as out:
            out.write(words(3000, 9))
        self.check(run("prepare", "text", "--input", self.path("other.txt"), "--output", self.text, "--tokenizer", "char",
                       "--force"))
        try:
            self.assert_one_line(self.train("samples", code=DATA), "words.h5 is not the dataset that .*step-00000010")
        finally:
            shutil.move(self.path("kept.h5"), self.text)
        self.train("samples")

    def test_a_gradient_that_is_not_finite_ends_all_ranks_in_order(self):
        # By then the next step has begun, also on the communication thread.
        for ranks, zero, nodes in [(2, 1, "auto"), (4, 3, "2")]:
            result = self.train(f"infinite{ranks}", "--optim.lr", "1e30", "--optim.warmup_steps", "0", "--optim.clip_norm", "0",
                                "--dist.zero", zero, "--dist.node_size", nodes, ranks=ranks, code=NUMERICAL)
            self.assert_one_line(result, fr"step 2: the gradient is not finite: rank 0 \(and {ranks - 1} others?\), micro-batch 0, first in "
                                         r"the output of block \S+, then in the gradient of \S+; again when the step was run once "
                                         "more, so data or numerics; last checkpoint: none; lower optim.lr, set optim.clip_norm, or")

    def test_skipped_steps_leave_batch_statistics_alone(self):
        # A huge first update makes later forward passes overflow; their updates are skipped, and the statistics that
        # BatchNorm took in them must be dropped too. Nothing in the checkpoint may be infinite or NaN.
        self.train("skips", "--model.kind", "resnet", "--model.depth", "8", "--optim.kind", "sgd", "--optim.lr", "1e25",
                   "--optim.warmup_steps", "0", "--train.steps", "4", "--train.on_nonfinite", "skip", data=self.images)
        norms = [line["grad_norm"] for line in metrics(self.run_folder("skips")) if "grad_norm" in line]
        self.assertIsNotNone(norms[0])
        self.assertIn(None, norms[1:])  # not finite: null
        with open(os.path.join(self.newest("skips"), "rank-0000.h5"), "rb") as file:
            content = file.read()
        values = struct.unpack(f"<{len(content) // 4}I", content[:len(content) // 4 * 4])
        for pattern in [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000]:  # infinities and the usual NaNs as f32
            self.assertEqual(values.count(pattern), 0, hex(pattern))

    def test_a_model_that_cannot_fit(self):
        result = self.train("x", "--model.width", "1000000", "--model.heads", "1", code=OUT_OF_MEMORY)
        self.assert_one_line(result, r"out of cpu memory: a step needs \S+ TiB, .*; no micro-batch fits: use more ranks")

    def test_a_rank_that_throws_ends_the_job(self):
        for name in ["good", "bad"]:
            os.makedirs(self.path(name))
        shutil.copy(self.text, self.path("good/t.h5"))
        self.corrupt_tokens(self.path("bad/t.h5"))  # the header is the same, so the error shows only when tokens are read
        arguments = [tandem_program.TANDEM, "train", "--data.path", "t.h5", "--run.dir", self.path("runs"), "--run.name", "throws", *TINY]
        command = ["timeout", "-k", "5", "60", "mpirun", "-np", "1", "-wdir", self.path("good"), *arguments, ":", "-np", "1",
                   "-wdir", self.path("bad"), *arguments]
        result = self.check(subprocess.run(command, env=MPI_ENV, capture_output=True, text=True), DATA)
        self.assert_one_line(result, "rank 1.*60000")
        self.assertEqual(self.processes_of("throws"), [])

    @staticmethod
    def rank_of(process):
        with open(f"/proc/{process}/environ") as file:
            return int(re.search(r"\0OMPI_COMM_WORLD_RANK=(\d+)\0", file.read())[1])

    def start_endless(self, name, ranks):
        command = [tandem_program.TANDEM, "train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", name, *TINY,
                   "--train.steps", "1000000", "--checkpoint.every_steps", "20"]
        if ranks > 1:
            command = ["timeout", "-k", "5", "120", "mpirun", "-np", str(ranks), *command]
        job = subprocess.Popen(command, env=MPI_ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not self.has_saved(name):  # the line that a signal causes names the last checkpoint
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        return job

    def has_saved(self, name):
        return os.path.exists(os.path.join(self.run_folder(name), "metrics.jsonl")) and saves(self.run_folder(name))

    def assert_stopped_with_checkpoint(self, name, job, code):
        output, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, code, output + errors)
        self.assertEqual(self.processes_of(name), [])
        with open(os.path.join(self.newest(name), "manifest.json")) as file:
            manifest = json.load(file)
        self.assertEqual(manifest["step"], metrics(self.run_folder(name))[-1]["step"])
        self.assertIn(f"stopped on request after step {manifest['step']};", output)
        return errors

    def newest(self, name):
        folder = os.path.join(self.run_folder(name), "checkpoints")
        return os.path.join(folder, max(entry for entry in os.listdir(folder) if re.fullmatch(r"step-\d+", entry)))

    def test_interrupt_saves_and_says_so(self):
        job = self.start_endless("interrupted", 1)
        job.send_signal(signal.SIGINT)
        errors = self.assert_stopped_with_checkpoint("interrupted", job, STOPPED)
        self.assertRegex(errors, r"stop requested; saving after this step \(last checkpoint: \S+step-\d+\)\n")

    def test_termination_of_one_rank_stops_all(self):
        for rank, said in [(0, [r"step-\d+\); mpirun kills the ranks about 2 s after .* lets them save after `kill -USR1`\n"]),
                           (1, [])]:
            job = self.start_endless(f"terminated{rank}", 2)
            [process] = [process for process in self.processes_of(f"terminated{rank}") if self.rank_of(process) == rank]
            os.kill(process, signal.SIGTERM)
            errors = self.assert_stopped_with_checkpoint(f"terminated{rank}", job, STOPPED)
            self.assertEqual(len(re.findall("stop requested", errors)), len(said))
            for pattern in said:
                self.assertRegex(errors, pattern)

    def test_usr1_to_mpirun_stops_all(self):
        """mpirun passes SIGUSR1 on and waits for the ranks; after SIGTERM it does not wait."""
        job = self.start_endless("usr1", 2)
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as children:  # the child of `timeout` is mpirun
            mpirun = int(children.read().split()[0])
        os.kill(mpirun, signal.SIGUSR1)
        errors = self.assert_stopped_with_checkpoint("usr1", job, STOPPED)
        self.assertRegex(errors, r"stop requested; saving after this step \(last checkpoint: \S+step-\d+\)\n")

    def test_usr1_before_the_first_step(self):
        """Also before the training loop exists: here while the rank is held for a debugger."""
        command = [tandem_program.TANDEM, "train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", "early", *TINY,
                   "--train.steps", "1000000"]
        job = subprocess.Popen(command, env=dict(MPI_ENV, TANDEM_WAIT_RANK="0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("tandem: rank 0 waits", job.stderr.readline())
        job.send_signal(signal.SIGUSR1)
        job.send_signal(signal.SIGCONT)
        _, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, STOPPED, errors)
        self.check(run("inspect", self.newest("early"), "--verify"))

    def test_usr1_and_termination_may_come_twice(self):
        """Job schedulers may send these signals twice."""
        for name, number in [("usr1-twice", signal.SIGUSR1), ("terminated-twice", signal.SIGTERM)]:
            job = self.start_endless(name, 1)
            job.send_signal(number)
            next(line for line in job.stderr if "stop requested" in line)
            job.send_signal(number)  # while it saves
            self.assert_stopped_with_checkpoint(name, job, STOPPED)

    def test_a_reader_that_goes_away_ends_nothing(self):
        command = [tandem_program.TANDEM, "train", "--data.path", self.text, "--run.dir", self.path("runs"), "--run.name", "unread",
                   *TINY, "--train.steps", "20", "--log.progress", "plain"]
        job = subprocess.Popen(command, env=MPI_ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("unread", job.stdout.readline())
        job.stdout.close()
        errors = job.stderr.read()
        job.stderr.close()
        self.assertEqual((job.wait(timeout=60), errors), (0, ""))
        self.assertEqual(metrics(self.run_folder("unread"))[-1]["step"], 20)

    def test_damaged_checkpoints_are_passed_over_or_refused(self):
        self.train("damaged", "--checkpoint.every_steps", "10", "--checkpoint.keep", "5")
        newest = os.path.join(self.run_folder("damaged"), "checkpoints/step-00000020")
        with open(newest + "/manifest.json") as manifest, open(newest + "/rank-0000.h5", "r+b") as file:
            file.seek(json.load(manifest)["files"][0]["pieces"][0][0])  # the first piece belongs to a parameter
            file.write(b"\xff" * 64)
        self.assert_one_line(self.check(run("eval", "--checkpoint", self.run_folder("damaged")), DATA), "damaged")
        result = self.train("damaged", "--checkpoint.every_steps", "10", "--checkpoint.keep", "5", "--log.progress", "plain")
        self.assertRegex(result.stderr, "passed over .*step-00000020/rank-0000.h5: damaged: param/")
        self.assertRegex(result.stdout, r"resuming +\S+step-00000010")
        for step in ["10", "20"]:
            os.truncate(os.path.join(self.run_folder("damaged"), f"checkpoints/step-000000{step}/rank-0000.h5"), 3000)
        result = self.train("damaged", code=DATA)
        self.assertIn("none of its checkpoints can be used", result.stderr)
        result = self.check(run("eval", "--checkpoint", self.run_folder("damaged")), DATA)
        self.assertIn("passed over", result.stderr)
        self.train("damaged", "--checkpoint.resume", "none")

    def test_data_of_another_tokenizer_of_the_same_size(self):
        """The ids fit the model, but stand for other characters."""
        self.train("lower")
        upper = self.path("upper.txt")
        with open(self.text_file) as text, open(upper, "w") as out:
            out.write(text.read().upper())
        self.check(run("prepare", "text", "--input", upper, "--output", self.path("upper.h5"), "--tokenizer", "char"))
        for result in [run("eval", "--checkpoint", self.run_folder("lower"), "--data", self.path("upper.h5")),
                       run("generate", self.run_folder("lower"), "--tokenizer", self.path("upper.h5")),
                       run("export", self.run_folder("lower"), "--output", self.path("x"), "--tokenizer", self.path("upper.h5")),
                       self.train("upper", "--checkpoint.init_from", self.run_folder("lower"), data=self.path("upper.h5"), code=DATA)]:
            self.assert_one_line(self.check(result, DATA), "upper.h5 has another tokenizer, or other classes, than the data that .*lower")

    def test_checkpoint_of_a_model_with_the_same_shapes(self):
        self.train("two-heads")
        for setting in ["--checkpoint.resume", "--checkpoint.init_from"]:
            result = self.train("four-heads", setting, self.run_folder("two-heads"), "--model.heads", "4", code=CONFIG)
            self.assertIn("was model.heads = 2, now 4", result.stderr)
        result = self.train("shallow", "--checkpoint.init_from", self.run_folder("two-heads"), "--model.layers", "1",
                            code=CONFIG)
        self.assertIn("was model.layers = 2, now 1", result.stderr)

    def test_names_that_do_not_read_back(self):
        for name in ["a#b", "a\nb", " a", "a ", ".", "..", os.fsdecode(b"caf\xe9")]:
            self.train(name, code=CONFIG, errors="replace")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "checkpoints")))

    def test_names_that_no_file_can_have(self):
        name = "x" * 5000
        for command in [["inspect", name], ["eval", name], ["generate", name], ["compare", name, name], ["export", name, "--output", "y"],
                        ["prepare", "images", "--input", name, "--output", self.path("y.h5")], ["estimate", "--data.path", name]]:
            with self.subTest(command=command[0]):
                self.assert_one_line(self.check(run(*command), DATA), "File name too long")

    def test_words_that_belong_to_nothing(self):
        self.train("words")
        for command in [["eval"], ["generate", "--prompt", "red"]]:
            result = run(*command, "--checkpoint", self.run_folder("words"), "green")
            self.assert_one_line(self.check(result, CONFIG), "unexpected word green")
        self.assert_one_line(self.train("x", "--run.name", code=CONFIG), "run.name has no value")

    def test_one_message_from_all_ranks(self):
        self.assert_one_line(self.check(run("prepare", "text", ranks=2), CONFIG), "without mpirun")
        result = self.train("x", "--optim.kind", "sgd", "--optim.nesterov", "true", "--optim.momentum", "0", ranks=2,
                            code=CONFIG)
        self.assert_one_line(result, "optim.momentum above 0")

    def test_numbers_without_end(self):
        most = str(2**63 - 1)
        for setting in ["--train.steps", "--train.global_batch"]:
            self.assert_one_line(self.train("x", setting, most, code=CONFIG), most + " must be a whole number in")
        self.train("batch")
        self.check(run("eval", "--checkpoint", self.run_folder("batch"), "--batch", most), CONFIG)

    def test_output_that_is_no_place_for_a_dataset(self):
        prepare = ["prepare", "text", "--tokenizer", "char", "--input", self.text_file, "--output"]
        pipe = self.path("pipe")  # in place of /dev/null, which a wrong program would replace by a file
        os.mkfifo(pipe)
        self.assert_one_line(self.check(run(*prepare, pipe), DATA), "pipe: cannot write: not a file")
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
        self.assert_one_line(self.check(run(*prepare, self.folder), DATA), "not a file, but a directory")
        self.assert_one_line(self.check(run(*prepare, self.text_file), CONFIG), "is an input too")
        with open(self.text_file) as text:
            self.assertTrue(text.read().startswith(words(3000)[:100]))

    def test_unknown_command(self):
        self.assert_one_line(self.check(run("trian"), CONFIG), r"no command trian; did you mean train\?$")
        self.assert_one_line(self.check(run("frobnicate"), CONFIG), "no command frobnicate; there are .*, train, --version$")


if __name__ == "__main__":
    tandem_program.main()
