#!/usr/bin/env python3
"""Some 300 inputs that are damaged, contradict themselves or ask for all memory. Each ends with its exit code, one line that
names the input, and less than 1 GiB of memory. Prints a table of them: exit code, peak memory, message.

    test_hostile_inputs.py PATH_TO_TANDEM [unittest arguments]
"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading

import tandem_program
from hostile_files import idx, jpeg, png, segment, tar, tar_header, zeros
from tandem_program import CONFIG, DATA, MPI_ENV, OK, OUT_OF_MEMORY, QUICK, SHAPES, Workspace

MOST_MIB = 1024
MOST_SECONDS = 30


class HostileInputs(Workspace):
    """Each test makes inputs of one kind. Their names say what is wrong."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.count, cls.worst = 0, 0

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.count} hostile inputs, at most {cls.worst} MiB", file=sys.stderr)
        super().tearDownClass()

    def one(self, what, command, code, names):
        """Runs the command and checks how it ends. `names`: what its line must name."""
        with tempfile.TemporaryFile("w+") as errors:
            job = subprocess.Popen([tandem_program.TANDEM, *command], env=MPI_ENV, stdout=subprocess.DEVNULL, stderr=errors)
            timer = threading.Timer(MOST_SECONDS, job.kill)
            timer.start()
            _, status, usage = os.wait4(job.pid, 0)
            timer.cancel()
            job.returncode = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            said = errors.read().splitlines()
        peak = usage.ru_maxrss >> 10
        type(self).count, type(self).worst = self.count + 1, max(self.worst, peak)
        final = said[-1] if said else ""
        print(f"{what:<44} {job.returncode:>4} {peak:>5} MiB  {final[:160].replace(self.folder, '')}", file=sys.stderr)
        with self.subTest(what):
            codes = code if isinstance(code, tuple) else (code,)
            self.assertIn(job.returncode, codes, said)
            self.assertLess(peak, MOST_MIB)
            if job.returncode != OK:
                ours = [line.startswith("tandem: ") for line in said if not line.startswith("bad record")]
                self.assertEqual(ours.count(True), 1, said)
                self.assertLess(len(ours), 25 if job.returncode == CONFIG else 2, said)  # a line for each wrong setting
                self.assertTrue(any(names in line for line in said), said)
                self.assertTrue(all(line.isprintable() for line in said), said)

    def place(self, name, content):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(content)
        return path

    def folder_of(self, what, files, code=DATA, names=None, *options):
        """Prepares a folder of these files: name -> content."""
        shutil.rmtree(self.path("set"), ignore_errors=True)
        for name, content in files.items():
            self.place("set/" + name, content)
        self.one(what, ["prepare", "images", "--input", self.path("set"), "--output", self.path("out.h5"), "--force", *options], code,
                 names or next(iter(files)))

    def archive(self, what, content, code=DATA, name="a.tar", names=None):
        self.one(what, ["prepare", "images", "--input", self.place(name, content), "--output", self.path("out.h5"), "--force"], code,
                 names or name)

    def text_of(self, what, name, content, code=DATA, names=None, *options):
        options = options or (["--column", "text"] if ".csv" in name else [])
        self.one(what, ["prepare", "text", "--input", self.place(name, content), "--output", self.path("out.h5"), "--force", "--tokenizer",
                        "bytes", *options], code, names or name)

    def test_png(self):
        good = png(8, 8)
        self.folder_of("png", {"cat/a.png": good}, OK)
        for width, height in [(0, 8), (8, 0), (30000, 30000), (2**31 - 1, 1), (1, 2**31 - 1), (2**31, 2**31), (2**32 - 1, 2), (999999, 34)]:
            self.folder_of(f"png of {width} x {height}", {"cat/a.png": png(width, height, rows=b"0")})
        for depth, colour in [(8, 1), (8, 5), (8, 7), (3, 0), (0, 0), (1, 2), (4, 6), (16, 3), (255, 255)]:
            self.folder_of(f"png, depth {depth}, colour {colour}", {"cat/a.png": png(8, 8, depth, colour)})
        self.folder_of("png without its palette", {"cat/a.png": png(8, 8, 8, 3)})
        self.folder_of("png, index outside the palette", {"cat/a.png": png(8, 8, 8, 3, bytes([0] + [9] * 8) * 8, [(b"PLTE", b"abc")])}, (OK, DATA))
        self.folder_of("png, wrong checksums", {"cat/a.png": png(8, 8, right_sums=False)})
        self.folder_of("png, unknown compression", {"cat/a.png": png(8, 8, compression=9)})
        self.folder_of("png, unknown interlace", {"cat/a.png": png(8, 8, interlace=9)})
        self.folder_of("png, too few rows", {"cat/a.png": png(8, 8, rows=bytes(9))})
        self.folder_of("png, 300 MiB of rows too many", {"cat/a.png": png(8, 8, rows=bytes(300 << 20))}, (OK, DATA))
        self.folder_of("png, 300 MiB of text", {"cat/a.png": png(8, 8, chunks=[(b"zTXt", b"a\0\0" + zeros(300)[10:])])}, (OK, DATA))
        self.folder_of("png, 20 MiB of comment", {"cat/a.png": png(8, 8, chunks=[(b"tEXt", b"a\0" + b"b" * (20 << 20))])}, (OK, DATA))
        self.folder_of("png, 10,000 chunks", {"cat/a.png": png(8, 8, chunks=[(b"abCd", b"")] * 10000)}, (OK, DATA))
        self.folder_of("png, second header", {"cat/a.png": png(8, 8, chunks=[(b"IHDR", good[16:29])])}, (OK, DATA))
        for length in [0, 8, 20, 33, 40, len(good) - 1]:
            self.folder_of(f"png cut at {length}", {"cat/a.png": good[:length]})
        self.folder_of("png of the largest size", {"cat/a.png": png(4096, 8192)}, OK)
        self.folder_of("png of the largest size, colour", {"cat/a.png": png(4096, 8192, 8, 2)}, OK, None, "--max-record-mb", "1")
        self.folder_of("png and a smaller one", {"cat/a.png": good, "cat/b.png": png(7, 8)}, DATA, "cat/b.png")

    def test_jpeg(self):
        good = jpeg(16, 16)
        self.folder_of("jpeg", {"cat/a.jpg": good}, OK)
        self.folder_of("progressive jpeg", {"cat/a.jpg": jpeg(16, 16, True, scans=8)}, OK)
        for width, height in [(0, 16), (16, 0), (30000, 30000), (65500, 65500), (65535, 65535), (65500, 600)]:
            for progressive in [False, True]:
                self.folder_of(f"{'progressive ' * progressive}jpeg of {width} x {height}",
                            {"cat/a.jpg": jpeg(width, height, progressive, 3, b"\0" * 1000)})
        self.folder_of("progressive jpeg, 1000 scans", {"cat/a.jpg": jpeg(64, 64, True, scans=1000)})
        self.folder_of("progressive jpeg, 4096 x 8192, 63 scans", {"cat/a.jpg": jpeg(4096, 8192, True, scans=63)}, (OK, DATA))
        self.folder_of("progressive jpeg, 4096 x 8192", {"cat/a.jpg": jpeg(4096, 8192, True, scans=2)}, OK)
        self.folder_of("jpeg, 12 bits", {"cat/a.jpg": jpeg(16, 16, precision=12)})
        for components in [0, 2, 3, 4, 5, 255]:
            self.folder_of(f"jpeg, {components} components", {"cat/a.jpg": jpeg(16, 16, components=components)}, (OK, DATA))
        self.folder_of("jpeg, quantised by 0", {"cat/a.jpg": jpeg(16, 16, table=0)}, (OK, DATA))
        self.folder_of("jpeg without code tables", {"cat/a.jpg": good.replace(b"\xFF\xC4", b"\xFF\xE4")})
        self.folder_of("jpeg, arithmetic coding", {"cat/a.jpg": good.replace(b"\xFF\xC0", b"\xFF\xC9")}, (OK, DATA))
        self.folder_of("jpeg, lossless", {"cat/a.jpg": good.replace(b"\xFF\xC0", b"\xFF\xC3")})
        self.folder_of("jpeg, 3000 comments", {"cat/a.jpg": good[:2] + segment(0xFE, b"c" * 60000) * 300 + good[2:]}, OK)
        self.folder_of("jpeg, two frames", {"cat/a.jpg": good[:-2] + good[2:]}, (OK, DATA))
        self.folder_of("jpeg, restart every 0", {"cat/a.jpg": good[:2] + segment(0xDD, b"\0\0") + good[2:]}, OK)
        self.folder_of("jpeg, bytes after its end", {"cat/a.jpg": good + b"PK\3\4" * 1000}, OK)
        for length in [2, 3, 20, 90, 120, len(good) - 3]:
            self.folder_of(f"jpeg cut at {length}", {"cat/a.jpg": good[:length]})
        pick = random.Random(1)
        for number in range(20):
            damaged = bytearray(good)
            damaged[pick.randrange(2, len(good))] = pick.randrange(256)
            self.folder_of(f"jpeg, damage {number}", {"cat/a.jpg": bytes(damaged)}, (OK, DATA))

    def test_archives(self):
        entry = ("cat/a.png", png(8, 8))
        good = tar(entry)
        self.archive("tar", good, OK)
        for size in [b"77777777777\0", b"-0000000001\0", b"zzzzzzzzzzz\0", b"\x80" + b"\xFF" * 11, b"\xFF" * 12, b"\x80" + b"\0" * 6 + b"\xFF" * 5]:
            self.archive(f"tar, size {size!r}"[:44], tar_header(size=size) + bytes(2048))
        for kind in b"1234567DKLMNSVXgx\0\xFF":
            self.archive(f"tar, entry of type {kind}", tar_header(kind=bytes([kind])) + b"content".ljust(512, b"\0") + bytes(1024), (OK, DATA))
        self.archive("tar, wrong checksum", bytes([good[0] ^ 1]) + good[1:])
        self.archive("tar, unknown magic", tar_header(magic=b"nottar\0\0") + bytes(1536), (OK, DATA))
        for name in ["../../a.png", "/cat/a.png", "cat/../../a.png", "cat\n/a.png", "./././cat/a.png", ".cat/a.png", "c" * 90 + "/a.png"]:
            self.archive(f"tar, name {name!r}"[:44], tar((name, entry[1])), (OK, DATA), names="tandem")
        for length in [1, 511, 512, 600, 1024, len(good) - 1025]:
            self.archive(f"tar cut at {length}", good[:length], (OK, DATA))
        self.archive("tar, links alone", tar(("cat/a.png", b"", tarfile.SYMTYPE), ("cat/b.png", b"", tarfile.LNKTYPE)), names="cat/a.png")
        self.archive("tar, a device", tar(("cat/a.png", b"", tarfile.CHRTYPE)))
        self.archive("tar, the same name twice", tar(entry, entry), names="cat/a.png")
        self.archive("tar of nothing", bytes(10240))
        self.archive("tar, 2,000 empty images", tar(*((f"cat/{i}.png", b"") for i in range(2000))), names="cat/0.png")
        self.archive("tar, 2,000 classes", tar(*((f"class{i}/a.png", entry[1]) for i in range(2000))), OK)
        self.archive("gzip, 2 GiB in no tar", zeros(2048), name="a.tar.gz")
        self.archive("tar.gz, 1 GiB in an image", gzipped_entry(1024), name="a.tar.gz", names="cat/a.png")
        self.archive("tar.gz cut", zeros(1)[:-8], name="a.tar.gz")
        self.archive("zip", b"PK\3\4" + bytes(2000), name="a.zip")
        self.archive("xz", b"\xFD7zXZ\0" + bytes(2000), name="a.tar.xz")
        self.archive("empty file", b"")

    def test_idx(self):
        def pair(what, images, labels=idx([2], b"\0\1"), code=DATA, names="train-"):
            self.folder_of(what, {"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": labels}, code, names)
        good = idx([2, 4, 4], bytes(32))
        pair("idx", good, code=OK)
        for dimensions in [[2**32 - 1] * 3, [2**31, 2**31, 2], [2, 0, 4], [2, 4, 0], [0, 4, 4], [3, 4, 4], [1, 4, 4], [2**32 - 1, 1, 1], [2, 2**16, 2**16]]:
            pair(f"idx of {dimensions}"[:44], idx(dimensions, bytes(32)), idx([dimensions[0] % 2**32], b"\0\1"))
        for magic in [0, 0x802, 0x804, 0x903, 0xD03, 0xFFFFFFFF]:
            pair(f"idx, magic {magic:x}", idx([2, 4, 4], bytes(32), magic))
        for count in [0, 1, 3, 2**32 - 1]:
            pair(f"idx, {count} labels announced", good, idx([count], b"\0\1"))
        pair("idx, labels of three dimensions", good, good)
        pair("idx, gzip of 1 GiB", zeros(1024))
        pair("idx, gzip cut", zeros(1)[:-4])
        pair("idx, empty", b"")
        self.folder_of("idx without labels", {"train-images-idx3-ubyte": good})
        self.folder_of("idx of another name", {"ubyte-ubyte": good}, DATA, "ubyte")
        self.folder_of("idx and class folders", {"cat/a.png": png(4, 4), "train-images-idx3-ubyte": good}, DATA, "in one input")

    def test_cifar(self):
        record = bytes(3073)
        self.folder_of("cifar", {"data_batch_1.bin": record}, OK)
        for length in [0, 1, 3072, 3074, 5000]:
            self.folder_of(f"cifar of {length} bytes", {"data_batch_1.bin": bytes(length)})
        for label in [10, 128, 255]:
            self.folder_of(f"cifar, label {label}", {"data_batch_1.bin": bytes([label]) + record[1:]})
        self.folder_of("cifar, long class name", {"batches.meta.txt": b"c" * (1 << 20), "data_batch_1.bin": record}, OK)
        self.folder_of("cifar, two lists of classes", {"batches.meta.txt": b"a b", "x/batches.meta.txt": b"a", "data_batch_1.bin": record},
                    DATA, "x/batches.meta.txt")
        self.folder_of("cifar without training images", {"test_batch.bin": record}, DATA, "set")
        with_hole = self.place("set/data_batch_1.bin", b"")
        os.truncate(with_hole, 20 << 30)
        self.one("cifar of 20 GiB of holes", ["prepare", "images", "--input", self.path("set"), "--output", self.path("out.h5"), "--force"], DATA,
                 "data_batch_1.bin")

    def test_json_lines(self):
        def lines(what, *content, code=DATA):
            self.text_of("jsonl, " + what, "a.jsonl", b"\n".join(content), code)
        good = b'{"text": "good"}'
        lines("good", good, code=OK)
        for what, bad in [("number", b'{"text": 5}'), ("null", b'{"text": null}'), ("list", b'["text"]'), ("scalar", b'"text"'),
                          ("other field", b'{"Text": "a"}'), ("open string", b'{"text": "a'), ("open object", b'{"text": "a"'),
                          ("two objects", good + good), ("comment", b"// comment"), ("NaN", b'{"text": NaN}'), ("binary", bytes(range(256))),
                          ("lone surrogate", rb'{"text": "\ud800"}'), ("bad escape", rb'{"text": "\x41"}'), ("control character", b'{"text": "a\tb"}'),
                          ("UTF-16", good.decode().encode("utf-16")), ("nested", b'{"text": {"text": "a"}}')]:
            lines(what, good, bad)
        lines("1,000,000 brackets", good, b"[" * 1000000)
        lines("30,000,000 brackets in a member", good, b'{"x": ' + b"[" * 30000000)
        lines("20,000,000 numbers", good, b'{"text": "a", "x": [' + b"0," * 20000000 + b"0]}", code=OK)
        lines("1,000,000 members", b'{"text": "a"' + b"".join(b', "%d": 0' % i for i in range(1000000)) + b"}", code=OK)
        lines("line of 100 MB", good, b'{"text": "' + b"a" * 100000000 + b'"}')
        lines("large exponent", b'{"text": "a", "x": 1e999999999}', code=(OK, DATA))
        lines("broken UTF-8", b'{"text": "' + b"\xFF" * 1000 + b'"}', code=OK)
        self.text_of("jsonl, gzip of 1 GiB", "a.jsonl.gz", zeros(1024))
        self.text_of("jsonl, field of another name", "a.jsonl", good, DATA, None, "--field", "\n")

    def test_csv(self):
        def rows(what, content, code=DATA):
            self.text_of("csv, " + what, "a.csv", content, code)
        rows("good", b"id,text\n1,good\n", OK)
        for what, bad in [("open quote", b'"never'), ("text after quote", b'1,"a"b'), ("too few", b"1"), ("too many", b"1,2,3")]:
            rows(what, b"id,text\n1,good\n" + bad + b"\n")
        rows("no column", b"id,body\n1,x\n")
        rows("empty", b"")
        rows("header alone", b"id,text\n")
        rows("header with open quote", b'"id,text\n1,a\n')
        rows("40,000,000 commas", b"id,text\n1,good\n" + b"," * 40000000)
        rows("header of 40,000,000 commas", b"," * 40000000)
        rows("row of 100 MB", b"id,text\n1," + b"a" * 100000000)
        rows("quoted field of 100 MB", b'id,text\n1,"' + b"a\n" * 50000000 + b'"\n')
        rows("zeros", b"id,text\n1," + bytes(1000) + b"\n", OK)
        rows("CR alone", b"id,text\r1,a\r")
        self.text_of("csv, gzip of 1 GiB", "a.csv.gz", zeros(1024))

    def test_text(self):
        self.text_of("text, zeros", "a.txt", bytes(1000))
        self.text_of("text, empty", "a.txt", b"")
        self.text_of("text, gzip of 1 GiB", "a.txt.gz", zeros(1024))
        self.text_of("text, gzip of gzip", "a.txt.gz", zeros(100)[:10] + zeros(1))
        self.text_of("text, gzip header alone", "a.txt.gz", b"\x1F\x8B")
        self.text_of("text, 100,000 empty gzip members", "a.txt.gz", zeros(0) * 100000)
        self.text_of("text of surrogates", "a.txt", b"\xED\xA0\x80" * 100000)
        for vocabulary in [b"", b"{}", b'{"a": 1}', b"[" * 100000, b'{"a": 99999999999}', b'{"a": -1}', b'{"a": 0, "a": 1}', bytes(100)]:
            self.place("vocab/encoder.json", vocabulary)
            self.place("vocab/vocab.bpe", b"#version: 0.2\na b\n")
            self.text_of(f"gpt2 vocabulary {vocabulary!r}"[:44], "a.txt", b"text", DATA, "vocab/", "--tokenizer", "gpt2", "--vocab", self.path("vocab"))

    def test_tokenizers(self):
        nested = b'{"type": "Sequence", "pretokenizers": [' * 100000 + b"]}" * 100000
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop", "tokenizers.json"), "rb") as file:
            good = json.dumps(json.load(file)["cases"][0]["tokenizer"]).encode()
        pre_tokenizer = good[good.index(b'{"type": "ByteLevel"'):good.index(b', "post_processor"')]
        huge = b'{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "' + b"(" * 100000 + b'"}}'
        repeats = b'{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(((a{999}){999}){999}){999}"}}'
        for name, content in [("empty", b""), ("object", b"{}"), ("brackets", b"[" * 1000000), ("zeros", bytes(100)),
                              ("gzip of 1 GiB", zeros(1024)), ("model of brackets", b'{"model": ' + b"[" * 1000000),
                              ("nested sequences", good.replace(pre_tokenizer, nested)),
                              ("nested groups", good.replace(pre_tokenizer, huge)),
                              ("huge repeats", good.replace(pre_tokenizer, repeats)),
                              ("cut short", good[:-1]), ("huge id", good.replace(b'"a": ', b'"a": 99999999999'))]:
            self.place("hf/tokenizer.json", content)
            self.text_of(f"tokenizer.json, {name}", "a.txt", b"text", DATA, "hf/", "--tokenizer", self.path("hf"))

    def test_datasets(self):
        for kind, source in [("text", self.text), ("images", self.images)]:
            with open(source, "rb") as file:
                good = file.read()
            model = [*SHAPES["gpt" if kind == "text" else "mlp"], "--model.kind", "gpt" if kind == "text" else "mlp", *QUICK]
            def train(what, content, codes=DATA):
                self.one(f"{kind} dataset, {what}", ["train", "--data.path", self.place("d.h5", content), "--run.dir", self.path("runs"),
                                                     "--run.name", "hostile", "--train.steps", "1", *model],
                         codes, "d.h5")
            for length in [0, 8, 100, 2048, len(good) // 2, len(good) - 1]:
                train(f"cut at {length}", good[:length])
            for name in [b"kind", b"content_hash", b"format", b"tokens" if kind == "text" else b"images", b"train"]:
                train(f"without {name.decode()}", good.replace(name, name[:-1] + b"_"))
            pick = random.Random(2)
            for number in range(8):
                at = pick.randrange(len(good))
                train(f"damage {number} at {at}", good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1:], (OK, DATA))  # there is padding

    def test_settings(self):
        def train(what, *words, code=CONFIG, names=""):
            self.one("settings, " + what, ["train", *words], code, names)
        def file(what, content, names="a.cfg"):
            train(what, "--config", self.place("a.cfg", content), names=names)
        data = ["--data.path", self.path("words.h5"), "--run.dir", self.path("runs")]
        for value in ["-1", "1e99", "99999999999999999999", "nan", "inf", "0x10", "1,000", " 5", "", "9223372036854775808"]:
            train(f"{value!r} steps", *data, f"--train.steps={value}", names="train.steps")
        for key in ["model.width", "model.layers", "model.context", "train.global_batch", "model.heads"]:
            train(f"{key} of 2^62", *data, f"--{key}={2**62}", names=key)
        train("a width of a million", *data, "--model.layers", "100", "--model.width", "1048576", "--run.name", "hostile1")
        train("a width of 2^17", *data, "--model.layers", "100", "--model.width", "131072", "--run.name", "hostile1", code=OUT_OF_MEMORY)
        train("a batch of 2^22", *data, "--train.global_batch", "4194304", "--run.name", "hostile2", code=OUT_OF_MEMORY)
        train("unknown key of 100 kB", *data, "--" + "k" * 100000, "1", names="kkk")
        train("value of 100 kB", *data, "--run.name", "n" * 100000, code=(CONFIG, DATA))
        train("name with a slash", *data, "--run.name", "../../x", names="run.name")
        train("control characters", *data, "--run.name", "a\x1b[31m", names="run.name")
        train("no value", *data, "--run.name", names="run.name")
        train("two dashes", *data, "--", names="--")
        file("binary", bytes(range(256)))
        file("open section", b"[train\nsteps = 5\n")
        file("no equals sign", b"[train]\nsteps 5\n")
        file("unknown key", b"[train]\nstep = 5\n")
        file("100,000 lines", b"[train]\n" + b"step = 5\n" * 100000)
        file("line of 10 MB", b"[train]\nsteps = " + b"5" * 10000000 + b"\n")
        train("a folder as config", "--config", self.folder, names=self.folder)
        train("no config", "--config", self.path("none.cfg"), names="none.cfg")


def gzipped_entry(mib):
    """A tar.gz with one image of so many MiB of zeros."""
    import gzip
    import io
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        file.write(tar_header(size=b"%011o\0" % (mib << 20)))
        for _ in range(mib):
            file.write(bytes(1 << 20))
        file.write(bytes(1024))
    return out.getvalue()


if __name__ == "__main__":
    tandem_program.main()
