"""The command line of launch/scaling.py."""
import argparse
import os
import re

from command_line import Parser, filled, like, settings_in, whole
from errors import CONFIG, Failure
from instances import MARKETS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Settings that a study decides for every launch.
RESERVED = {
    "run.name": "each launch is a run with a name of its own",
    "run.dir": "use --dir",
    "train.steps": "use --warmup and --keep",
    "train.log_every": "every step is logged",
    "checkpoint.resume": "every launch starts anew; checkpoint.init_from starts with given weights",
}


class Request(argparse.Namespace):
    """What was asked for: the options, `sweep` (setting -> values, as text), and `settings`, which `tandem train` gets."""

    @property
    def folder(self):
        return os.path.join(self.dir, self.name)

    @property
    def steps(self):
        return self.warmup + self.keep

    @property
    def config_words(self):
        return [word for path in self.configs for word in ("--config", path)]


def assignments(settings):
    """{"dist.zero": "2"} -> ["--dist.zero=2"]. This form also takes values that begin with dashes."""
    return [f"--{key}={value}" for key, value in settings.items()]


def dollars(text):
    if not re.fullmatch(r"\d{1,9}(\.\d*)?", text):
        raise argparse.ArgumentTypeError(f"'{text}' must be a number of dollars")
    return float(text)


def parser():
    p = Parser(prog="launch/scaling.py", allow_abbrev=False, description="Measures how a training job scales, and writes a report.",
               epilog="Other --section.key VALUE are settings of `tandem train`. `launch/scaling.py report FOLDER` writes the "
                      "report of a study again.")
    p.add_argument("--name", required=True, help="name of the study; the same command again does what is missing")
    p.add_argument("--dir", default=os.path.join("runs", "scaling"), help="folder of all studies (%(default)s)")
    p.add_argument("--config", dest="configs", action="append", default=[], metavar="FILE", help="settings; may repeat")
    p.add_argument("--ranks", type=whole(1), nargs="+", required=True, metavar="N", help="sizes of the job")
    p.add_argument("--node-size", type=whole(1), default=0, metavar="N", help="ranks on a full node (GPUs of --instance)")
    p.add_argument("--mode", dest="modes", nargs="+", choices=["weak", "strong"], default=["weak"],
                   help="weak: the samples of a rank stay the same; strong: the global batch does (weak)")
    p.add_argument("--sweep", type=like(r"[^=]*\.[^=]*=[^,]+(,[^,]+)*", "dist.zero=0,2", 10000), nargs="+", default=[], metavar="KEY=A,B", help="every combination is measured")
    p.add_argument("--launches", type=whole(1), default=6, metavar="N", help="of each case (%(default)s)")
    p.add_argument("--warmup", type=whole(1), default=10, metavar="N", help="steps dropped from each launch (%(default)s)")
    p.add_argument("--keep", type=whole(1), default=50, metavar="N", help="steps measured after them (%(default)s)")
    p.add_argument("--seed", type=whole(0), default=1, help="of the order of launches (%(default)s)")
    p.add_argument("--tandem", default=os.path.join(ROOT, "build", "tandem"), metavar="PATH", help="the program (build/tandem)")
    p.add_argument("--launch", default="", metavar="TEMPLATE",
                   help="command in place of launch/run.sh, such as 'mpirun -np {ranks} {command}'; {nodes} may occur too")
    p.add_argument("--platform", default="", help="for launch/run.sh")
    p.add_argument("--hostfile", type=filled, metavar="FILE", help="for launch/run.sh; a case takes the first nodes")
    p.add_argument("--hosts", type=filled, metavar="A,B", help="the same as a list")
    p.add_argument("--instance", default="", metavar="TYPE", help="machine type in launch/instances.json")
    p.add_argument("--gpu", default="", metavar="NAME", help="for `tandem estimate --gpu` (that of --instance, otherwise none)")
    p.add_argument("--price", default="on_demand", choices=MARKETS,
                   help="which price of --instance (%(default)s)")
    p.add_argument("--usd-per-node-hour", type=dollars, metavar="USD", help="price of a node")
    p.add_argument("--max-dollars", type=dollars, metavar="USD", help="refuse to start when more is expected")
    p.add_argument("--plan", action="store_true", help="print commands, duration and dollars, and start nothing")
    return p


def settings_of(words):
    """The settings among the words that the parser did not know."""
    settings = {}
    for key, value in settings_in(words):
        if "." not in key:
            raise Failure(CONFIG, f"unknown argument '{'--' * bool(key)}{key or value}'; --help shows all options")
        if value is None:
            raise Failure(CONFIG, f"--{key} has no value; one that begins with -- is given as --{key}=VALUE")
        settings[key] = value
    return settings


def parse(words):
    request, rest = parser().parse_known_args(words, Request())
    request.hosts, request.hostfile = request.hosts or "", request.hostfile or ""
    sweep = {key: values.split(",") for key, _, values in (text.partition("=") for text in request.sweep)}
    if len(sweep) != len(request.sweep):
        raise Failure(CONFIG, "--sweep: a setting stands twice; list all of its values once")
    request.sweep, request.settings = sweep, settings_of(rest)
    request.ranks = sorted(set(request.ranks))
    request.modes = list(dict.fromkeys(request.modes))
    check(request)
    return request


def check(request):
    of_run = request.hosts or request.hostfile or request.platform
    for is_wrong, line in [
        (not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", request.name),
         f"--name '{request.name}' must be letters, digits, '.', '_' and '-', and begin with a letter or digit"),
        *((key in RESERVED, f"--{key} cannot be set: {RESERVED.get(key)}") for key in [*request.settings, *request.sweep]),
        *((not os.path.isfile(path), f"--config {path}: no such file") for path in request.configs),
        *((key in request.settings, f"{key} stands in --sweep and alone; remove one") for key in request.sweep),
        *((len(set(values)) != len(values), f"--sweep {key}: a value stands twice") for key, values in request.sweep.items()),
        (request.hosts and request.hostfile, "--hosts and --hostfile cannot be given together"),
        (request.launch and of_run, "--launch replaces launch/run.sh, so --platform, --hostfile and --hosts mean nothing with it; "
                                    "write them into the template"),
        (not os.access(request.tandem, os.X_OK), f"no program {request.tandem}; build it with launch/build.sh, or name it with --tandem"),
    ]:
        if is_wrong:
            raise Failure(CONFIG, line)
