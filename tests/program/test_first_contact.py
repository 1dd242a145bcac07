#!/usr/bin/env python3
"""What a new user types first: words without keys, paths from other folders, names of other programs, a dataset that was not
made yet.

    test_first_contact.py PATH_TO_TANDEM [unittest arguments]
"""
import os
import re
import shutil

import tandem_program
from tandem_program import CONFIG, DATA, TINY, Workspace, losses, run, words, write_idx


class FirstContact(Workspace):
    def test_version(self):
        shown = self.check(run("--version")).stdout
        with open(os.path.join(os.path.dirname(__file__), "../../CMakeLists.txt")) as file:
            version = re.search(r"project\(tandem VERSION (\S+)", file.read())[1]
        self.assertRegex(shown, fr"^tandem {re.escape(version)} \((commit [0-9a-f]{{12}}|no git commit)\)\n")
        self.assertEqual([line.split()[0] for line in shown.splitlines()], ["tandem", "compiler", "GPU", "MPI", "HDF5"])
        self.assertNotRegex(shown, r"(?m)^\w+ *$")  # nothing is left empty

    def test_words_without_keys(self):
        for name, text in [("first", "[train]\nsteps = 9\n"), ("second", "[train]\nsteps = 3\n")]:
            with open(self.path(name + ".cfg"), "w") as out:
                out.write(text)
        files = [self.path("first.cfg"), "--config", self.path("second.cfg")]
        place = ["--data.path", self.text, "--run.dir", self.path("runs"), "--run.name"]
        self.check(run("train", *files, *place, "words", *TINY))
        self.assertEqual(max(losses(self.run_folder("words"))), 3)
        self.check(run("train", *reversed(files[::2]), *place, "other", *TINY))
        self.assertEqual(max(losses(self.run_folder("other"))), 9)
        model = self.run_folder("words")
        for command in [["eval"], ["generate", "--prompt", "red", "--tokens", "9"]]:
            self.assertEqual(self.check(run(*command, model)).stdout, self.check(run(*command, "--checkpoint", model)).stdout)
        for settings in [[self.path("first.cfg")], ["--config", self.path("first.cfg")]]:
            self.assertIn("0-3  none", self.check(run("estimate", *settings, "--data.path", self.text)).stdout)
        for word, hint in [("train.steps=9", "settings are --section.key value: write --train.steps=9"),
                           (self.path("frist.cfg"), "did you mean " + self.path("first.cfg")),
                           (self.path("unlike.cfg"), "settings are --section.key value"),
                           (self.path("none/a.cfg"), "settings are --section.key value")]:
            for words in [word], [self.path("first.cfg"), word, "--data.path", self.text]:
                self.assert_one_line(self.check(run("train", *words), CONFIG), f"no configuration file {word}; {hint}")
        with open(self.path("nested.cfg"), "w") as out:
            out.write(f"config = {files[0]}\n[train]\nsteps = 9\n")
        self.assert_one_line(self.check(run("train", self.path("nested.cfg")), CONFIG), "nested.cfg.*: config = .*: a file names no other; write --config")
        for bare in ["--config", "--train.steps", "--model.kind"]:
            self.assertIn(f"{bare[2:]} has no value", self.check(run("train", bare), CONFIG).stderr)
        self.assert_one_line(self.check(run("inspect", self.path("none"), "--flight"), DATA), "/none: cannot open")
        self.assert_one_line(self.check(run("eval", self.text), DATA), "words.h5: a file; name the folder of a run")
        for word, meant in [("sample", "generate"), ("--verison", "--version"), ("trian", "train")]:
            self.assert_one_line(self.check(run(word), CONFIG), f"no command {word}; did you mean {meant}")

    def test_a_text_of_one_line_needs_no_prompt(self):
        with open(self.path("line.txt"), "w") as out:
            out.write("red green blue " * 100)
        self.check(run("prepare", "text", "--input", self.path("line.txt"), "--output", self.path("line.h5"), "--tokenizer", "char"))
        self.train("line", "--train.steps", "1", data=self.path("line.h5"))
        self.assertEqual(len(self.check(run("generate", self.run_folder("line"), "--tokens", "7")).stdout), 7 + 1)

    def test_a_relative_path_is_found_from_elsewhere(self):
        project = self.path("project")
        os.makedirs(project + "/data")
        shutil.copy(self.text, project + "/data/words.h5")
        train = ["train", "--data.path", "data/words.h5", *TINY]
        self.check(run(*train, "--run.name", "near", "--train.steps", "3", cwd=project))
        expected = self.check(run("eval", project + "/runs/near", "--data", self.text)).stdout
        self.assertEqual(self.check(run("eval", project + "/runs/near")).stdout, expected)
        os.remove(project + "/runs/near/tokenizer.h5")
        self.check(run("generate", "../project/runs/near", "--prompt", "red", "--tokens", "3", cwd=project))
        # The same run goes on from another working directory, and a file there comes before one beside the run.
        here = self.path("here")
        os.makedirs(here + "/data")
        self.check(run(*train, "--run.name", "near", "--run.dir", project + "/runs", "--train.steps", "5", cwd=here))
        self.assertEqual(max(losses(project + "/runs/near")), 5)
        with open(here + "/data/words.h5", "w") as out:
            out.write("not a dataset")
        self.assert_one_line(self.check(run("eval", project + "/runs/near", cwd=here), DATA), "data/words.h5: not an HDF5 file")

    def test_a_dataset_that_was_not_made_yet(self):
        text, dataset = self.path("new book.txt"), self.path("new book.h5")
        with open(text, "w") as out:
            out.write(words(300))
        line = f"tandem prepare text --input '{text}' --output '{dataset}' --tokenizer char"
        for path in [dataset, text]:
            self.assert_one_line(self.train("x", data=path, code=DATA), re.escape(f"; make a dataset of {text}: `{line}`"))
        here = self.path("it's here")
        os.makedirs(here + "/data")
        shutil.copy(text, here + "/book.txt")
        result = run("train", "--data.path", "data/book.h5", *TINY, cwd=here)
        self.assert_one_line(self.check(result, DATA), "`tandem prepare text --input book.txt --output data/book.h5 --tokenizer char`")
        result = self.check(run("inspect", here + "/data/book.h5"), DATA)
        self.assertNotIn("tandem prepare text", result.stderr)
        self.assert_one_line(result, "a shipped configuration says in its first lines how to make its dataset")
        shutil.copy(text, here + "/data/book.txt")
        line = re.escape(self.folder + "/it'\\''s here/data/book")
        self.assert_one_line(self.check(run("inspect", here + "/data/book.h5"), DATA), f"--input '{line}.txt' --output '{line}.h5'")
        os.makedirs(self.path("photos"))
        self.assert_one_line(self.train("x", data=self.path("photos.h5"), code=DATA),
                             f"`tandem prepare images --input {self.path('photos')} --output {self.path('photos.h5')}`")
        self.assertNotIn("tandem prepare", self.train("x", data=self.path("nothing.h5"), code=DATA).stderr)

    def test_the_output_folder_is_made(self):
        for kind, source, options in [("text", self.text_file, ["--tokenizer", "char"]), ("images", self.path("cifar"), [])]:
            output = self.path(f"new-{kind}/deep/set.h5")
            self.check(run("prepare", kind, "--input", source, "--output", output, *options))
            self.assertTrue(os.path.exists(output))

    def test_a_dataset_is_replaced_only_with_force(self):
        for kind, source in [("text", self.text_file), ("images", self.path("cifar"))]:
            prepare = ["prepare", kind, "--input", source, "--output", self.path(f"kept-{kind}.h5")]
            self.check(run(*prepare))
            with open(prepare[-1], "r+b") as file:
                file.write(b"kept")
            self.assert_one_line(self.check(run(*prepare), CONFIG), f"kept-{kind}.h5 exists; --force replaces it")
            with open(prepare[-1], "rb") as file:
                self.assertEqual(file.read(4), b"kept")
            self.check(run(*prepare, "--force"))
            self.check(run("inspect", prepare[-1], "--verify"))

    def test_what_prepare_says(self):
        with open(self.path("names.txt"), "w") as out:
            out.write("".join(f"name{number:03}\n" for number in range(300)) + "\n")
        prepare = ["prepare", "text", "--input", self.path("names.txt"), "--force", "--output", self.path("names.h5")]
        said = self.check(run(*prepare)).stdout
        self.assertIn("names.h5: 1 document, 2401 characters\n", said)
        self.assertIn('\n  begins with  14 "n"  11 "a"  13 "m"  ', said)
        shuffled = self.check(run(*prepare, "--shuffle-records")).stdout
        self.assertIn("names.h5: 300 documents, 2399 characters\n", shuffled)
        self.assertIn("\n  left out: 1 record without text\n", shuffled)
        hashes = [re.search(r"hash +(\S+)", run("inspect", self.path("names.h5")).stdout)[1]]
        for options in [["--shuffle-records"], ["--shuffle-records", "--seed", "2"]]:
            self.check(run(*prepare, *options))
            hashes.append(re.search(r"hash +(\S+)", run("inspect", self.path("names.h5")).stdout)[1])
        self.assert_one_line(self.check(run(*prepare, "--seed", "2"), CONFIG), "--seed has no meaning without --shuffle-records")
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[0], hashes[2])

    def test_images_under_other_names(self):
        os.makedirs(self.path("mnist"))
        labels, pixels = [n % 4 for n in range(40)], [n % 251 for n in range(40 * 64)]
        write_idx(self.path("mnist/train-images.idx3"), [40, 8, 8], pixels)
        write_idx(self.path("mnist/train_labels.idx1-ubyte"), [40], labels)
        prepare = ["prepare", "images", "--input", self.path("mnist"), "--output", self.path("mnist.h5"), "--val-fraction", "0.3"]
        self.assert_one_line(self.check(run(*prepare, "--width", "4"), CONFIG), "--height is missing")
        refused = self.check(run(*prepare, "--width", "-1", "--height", "4"), CONFIG)
        self.assertRegex(refused.stderr, "^tandem: command line: width = -1 must be [^\n]*\n$")
        self.assertIn(": 28 training images and 12 validation images, ", self.check(run(*prepare)).stdout)
        os.makedirs(self.path("unknown"))
        with open(self.path("unknown/train-pictures"), "w") as out:
            out.write("x")
        prepare[3] = self.path("mnist/train-images.idx3")
        self.assert_one_line(self.check(run(*prepare, "--force"), DATA), "name the folder that holds them")
        prepare[3] = self.path("unknown")
        self.assert_one_line(self.check(run(*prepare, "--force"), DATA),
                             "no images found among 1 file: train-pictures; looked for .*train-images-idx3-ubyte and train-labels-idx1-ubyte")

    def test_names_of_other_programs(self):
        result = self.check(run("train", "--data.path", self.text, "--batch_size", "4", "--train.steps", "1e4", "--train.precision",
                                "bfloat16"), CONFIG)
        for said in ["unknown setting batch_size; here it is train.global_batch: ", "train.steps = 1e4 must be a whole number",
                     "; write 10000", "; write bf16"]:
            self.assertIn(said, result.stderr)
        self.assert_one_line(self.check(run("generate", "r", "--max_new_tokens", "9"), CONFIG), "max_new_tokens; here it is tokens: ")


if __name__ == "__main__":
    tandem_program.main()
