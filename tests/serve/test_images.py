#!/usr/bin/env python3
"""`tandem serve` of models that read images: their classes, whole requests alone or among others, sizes and colours as Pillow has
them, and what is refused. Argument: the program."""
import concurrent.futures
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "program"), os.path.join(TESTS, "interop")]
import tandem_program
from hostile_files import png
from server import Served, Server
from tandem_program import CONFIG, DATA, events, metrics, run

PNG = {"Content-Type": "image/png"}


def grey_png(pixels, width=8):
    rows = b"".join(b"\0" + bytes(pixels[i:i + width]) for i in range(0, len(pixels), width))
    return png(width, len(pixels) // width, rows=rows)


class Images(Served):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        pick = random.Random(3)
        labels = {split: [pick.randrange(4) for _ in range(count)] for split, count in [("train", 48), ("t10k", 12)]}
        pixels = {split: [[(60 * label + pick.randrange(90)) % 256 for _ in range(64)] for label in chosen] for split, chosen in labels.items()}
        cls.data = cls.prepare_images("digits", {split: (labels[split], sum(pixels[split], [])) for split in labels})
        cls.validation = list(zip(labels["t10k"], pixels["t10k"]))
        cls.train(cls, "digits", "--model.kind", "mlp", "--train.steps", "15", "--optim.lr", "0.003", "--train.eval_every", "15",
                  "--log.sample_every", "1", "--log.tensorboard", "true", data=cls.data)
        cls.model = os.path.join(cls.path("runs"), "digits")
        cls.server = Server(cls.model)

    def predictions(self, image, server=None, headers=PNG):
        status, text = (server or self.server).ask("POST", "/invocations", image, headers)
        self.assertEqual(status, 200, text)
        return json.loads(text)["predictions"]

    def test_probabilities_are_those_of_validation(self):
        """The mean of 12 losses, each a sum in f32 of four terms of order one: 1e-6 is ten times what that rounds."""
        loss, right = 0, 0
        for label, pixels in self.validation:
            found = self.predictions(grey_png(pixels))
            self.assertEqual(sorted(each["label"] for each in found), list("0123"))
            self.assertEqual(found, sorted(found, key=lambda each: -each["probability"]))
            loss -= math.log(next(each["probability"] for each in found if each["label"] == str(label)))
            right += found[0]["label"] == str(label)
        line, = [line for line in metrics(self.model) if "val_loss" in line]
        self.assertAlmostEqual(loss / 12, line["val_loss"], delta=1e-6)
        self.assertEqual(right / 12, line["val_accuracy"])

    def test_tensorboard_shows_what_is_predicted(self):
        rows = re.findall(rb"\| \d+ \| \d+ \| (\d) \| (\d) \|", events(self.model))
        for (label, pixels), (predicted, truth) in zip(self.validation, rows, strict=True):
            self.assertEqual([predicted.decode(), truth.decode()], [self.predictions(grey_png(pixels))[0]["label"], str(label)])
        self.assertGreater(len({predicted for predicted, _ in rows}), 1)

    def test_an_answer_depends_on_its_image_alone(self):
        self.train("resnet", "--model.kind", "resnet", "--train.steps", "2", "--train.global_batch", "4", data=self.images)
        pick = random.Random(8)
        files = [png(32, 32, colour=2, rows=b"".join(b"\0" + pick.randbytes(96) for _ in range(32))) for _ in range(24)]
        alone, together = Server(self.run_folder("resnet"), "--batch", "1"), Server(self.run_folder("resnet"), "--batch", "7", "--threads", "2")
        answers = [self.predictions(file, alone) for file in files]
        self.assertEqual([len(found) for found in answers], [5] * 24)
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            self.assertEqual(list(pool.map(lambda file: self.predictions(file, together), files)), answers)
        self.assertEqual(together.metric("tandem_image_seconds_count"), 24)
        for server in [alone, together]:
            self.assertEqual(server.end(), (0, ""))

    def test_sizes_and_colours(self):
        """Pillow computes with 22 bits after the point where we have more, so a level may be rounded to its neighbour; twice, because
        it scales rows and columns one after the other."""
        try:
            from PIL import Image
        except ImportError:
            self.skipTest("not installed: python3-matplotlib (launch/setup.sh --tests)")
        pick = random.Random(9)
        program = os.path.join(os.path.dirname(tandem_program.TANDEM), "tandem_interop")
        for mode, (width, height), (channels, rows, columns) in [
                ("RGB", (8, 8), (3, 8, 8)), ("RGB", (53, 20), (3, 8, 8)), ("L", (20, 53), (1, 8, 8)), ("RGB", (5, 3), (3, 16, 16)),
                ("RGB", (31, 17), (1, 9, 14)), ("L", (10, 200), (3, 8, 3)), ("RGB", (1, 1), (3, 8, 8)), ("L", (640, 480), (1, 32, 32))]:
            image = Image.frombytes(mode, (width, height), pick.randbytes(width * height * len(mode)))
            image.save(self.path("image.png"))
            shrink = min(width / columns, height / rows)
            left, top = (width - shrink * columns) / 2, (height - shrink * rows) / 2
            expected = image.convert("L" if channels == 1 else "RGB").resize(
                (columns, rows), Image.BILINEAR, box=(left, top, left + shrink * columns, top + shrink * rows))
            planes = b"".join(plane.tobytes() for plane in expected.split())
            fitted = subprocess.run([program, "fitted", self.path("image.png"), *map(str, [channels, rows, columns])],
                                    check=True, stdout=subprocess.PIPE).stdout
            self.assertEqual(len(fitted), len(planes))
            largest = max(abs(a - b) for a, b in zip(fitted, planes))
            self.assertLessEqual(largest, 0 if (width, height) == (columns, rows) else 2, f"{mode} {width} x {height}")

    def test_other_images(self):
        """Three equal colours, colours of a palette, 16 bits, another kind in the header and borders: all look like the first."""
        pixels = self.validation[0][1]
        first = self.predictions(grey_png(pixels))
        colours = png(8, 8, colour=2, rows=b"".join(b"\0" + bytes(v for p in pixels[i:i + 8] for v in [p] * 3) for i in range(0, 64, 8)))
        rows = [pixels[i:i + 8] for i in range(0, 64, 8)]
        deep = png(8, 8, depth=16, rows=b"".join(b"\0" + bytes(v for p in row for v in [p, 77]) for row in rows))
        palette = bytes(255 - i for i in range(256) for _ in range(3))
        indexed = png(8, 8, colour=3, rows=b"".join(b"\0" + bytes(255 - p for p in row) for row in rows), chunks=[(b"PLTE", palette)])
        for other in [colours, deep, indexed]:
            self.assertEqual(self.predictions(other), first)
        self.assertEqual(self.predictions(grey_png(pixels), headers={"Content-Type": "application/x-image"}), first)
        wide = [p for i in range(0, 64, 8) for p in [0, *pixels[i:i + 8], 255]]  # its middle is the first one
        self.assertEqual(self.predictions(grey_png(wide, 10)), first)

    def test_what_is_refused(self):
        for status, pattern, path, body, headers in [
                (415, "this model reads images", "/invocations", {"inputs": "red"}, {}),
                (400, "neither JPEG nor PNG", "/invocations", b"GIF89a", {"Content-Type": "image/gif"}),
                (400, "unusable PNG: the file is cut short", "/invocations", grey_png([1] * 64)[:-30], PNG),
                (400, "empty file", "/invocations", b"", PNG),
                (413, "too large", "/invocations", bytes((1 << 20) + 1), PNG),
                (404, "nothing at this path", "/v1/completions", {"prompt": "red"}, {})]:
            got, text = self.server.ask("POST", path, body, headers)
            self.assertEqual(got, status, text)
            self.assertRegex(json.loads(text)["error"]["message"], pattern)
        self.assertEqual(self.server.ask("GET", "/ping")[0], 200)
        self.assert_one_line(self.check(run("serve", self.model, "--context", "9"), CONFIG), "--context.*reads images: leave them out")

    def test_a_model_that_fails(self):
        self.train("wild", "--model.kind", "mlp", "--train.steps", "1", "--optim.lr", "1e30", "--optim.warmup_steps", "0", data=self.data)
        server = Server(self.run_folder("wild"))
        self.assertEqual(server.ask("POST", "/invocations", grey_png(self.validation[0][1]), PNG)[0], 500)
        output, errors = server.process.communicate(timeout=60)
        self.assertEqual(server.process.returncode, 70)
        self.assertRegex(errors, "^tandem: a step of the model failed: .*not finite.*\n$")

    def test_the_run_is_all_it_needs(self):
        """A run's folder without its dataset; and, of a run from before there was classes.h5, with it."""
        expected = self.predictions(grey_png(self.validation[0][1]))
        moved, elsewhere = self.path("moved"), self.path("elsewhere.h5")
        shutil.copytree(self.model, moved)
        classes = os.path.join(moved, "classes.h5")

        def answer():
            server = Server(moved)
            found = self.predictions(grey_png(self.validation[0][1]), server)
            self.assertEqual(server.end(), (0, ""))
            return found
        os.rename(self.data, elsewhere)
        try:
            self.assertEqual(answer(), expected)
            with open(classes, "r+b") as file:
                file.truncate(100)
            self.assert_one_line(self.check(run("serve", moved), DATA), classes)
            os.remove(classes)
            self.assert_one_line(self.check(run("serve", moved), DATA), self.data)
        finally:
            os.rename(elsewhere, self.data)
        self.assertEqual(answer(), expected)


if __name__ == "__main__":
    tandem_program.main()
