"""The command line of launch/scaling.py."""
import argparse
import os
import re
from dataclasses import dataclass, field

from errors import CONFIG, Failure

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Settings that a study decides for every launch.
RESERVED = {
    "run.name": "each launch is a run with a name of its own",
    "run.dir": "use --dir",
    "train.steps": "use --warmup and --keep",
    "train.log_every": "every step is logged",
    "checkpoint.resume": "every launch starts anew; checkpoint.init_from starts with given weights",
}


@dataclass
class Request:
    """What was asked for."""
    name: str
    dir: str
    ranks: list
    node_size: int  # 0: not said
    modes: list
    sweep: dict  # setting -> values, as text
    configs: list
    settings: dict = field(default_factory=dict)  # passed on to `tandem train`
    launches: int = 6
    warmup: int = 10
    keep: int = 50
    seed: int = 1
    tandem: str = ""
    launch: str = ""  # a template; empty: launch/run.sh
    platform: str = ""
    hostfile: str = ""
    hosts: str = ""
    instance: str = ""
    gpu: str = ""
    price: str = "on_demand"
    usd_per_node_hour: float = None
    max_dollars: float = None
    plan: bool = False

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


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Failure(CONFIG, f"{message}; --help lists all options")


def whole(low):
    def convert(text):
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < low:
            raise argparse.ArgumentTypeError(f"'{text}' must be a whole number of {low} or more")
        return int(text)
    return convert


def dollars(text):
    if not re.fullmatch(r"\d{1,9}(\.\d*)?", text):
        raise argparse.ArgumentTypeError(f"'{text}' must be a number of dollars")
    return float(text)


def sweep_of(text):
    key, equals, values = text.partition("=")
    if not equals or "." not in key or not all(values.split(",")):
        raise argparse.ArgumentTypeError(f"'{text}' must be SECTION.KEY=VALUE,VALUE such as dist.zero=0,2")
    return key, values.split(",")


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
    p.add_argument("--sweep", type=sweep_of, nargs="+", default=[], metavar="KEY=A,B", help="every combination is measured")
    p.add_argument("--launches", type=whole(1), default=6, metavar="N", help="of each case (%(default)s)")
    p.add_argument("--warmup", type=whole(1), default=10, metavar="N", help="steps dropped from each launch (%(default)s)")
    p.add_argument("--keep", type=whole(1), default=50, metavar="N", help="steps measured after them (%(default)s)")
    p.add_argument("--seed", type=whole(0), default=1, help="of the order of launches (%(default)s)")
    p.add_argument("--tandem", default=os.path.join(ROOT, "build", "tandem"), metavar="PATH", help="the program (build/tandem)")
    p.add_argument("--launch", default="", metavar="TEMPLATE",
                   help="command in place of launch/run.sh, such as 'mpirun -np {ranks} {command}'; {nodes} may occur too")
    p.add_argument("--platform", default="", help="for launch/run.sh")
    p.add_argument("--hostfile", default="", metavar="FILE", help="for launch/run.sh; a case takes the first nodes")
    p.add_argument("--hosts", default="", metavar="A,B", help="the same as a list")
    p.add_argument("--instance", default="", metavar="TYPE", help="machine type in launch/instances.json")
    p.add_argument("--gpu", default="", metavar="NAME", help="for `tandem estimate --gpu` (that of --instance, otherwise none)")
    p.add_argument("--price", default="on_demand", choices=["on_demand", "spot", "capacity_block", "sagemaker"],
                   help="which price of --instance (%(default)s)")
    p.add_argument("--usd-per-node-hour", type=dollars, metavar="USD", help="price of a node")
    p.add_argument("--max-dollars", type=dollars, metavar="USD", help="refuse to start when more is expected")
    p.add_argument("--plan", action="store_true", help="print commands, duration and dollars, and start nothing")
    return p


def settings_of(words):
    """The words that the parser did not know: --section.key VALUE or --section.key=VALUE."""
    settings, rest = {}, list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word[2:].partition("=")
        if not word.startswith("--") or "." not in key:
            raise Failure(CONFIG, f"unknown argument '{word}'; --help lists all options")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise Failure(CONFIG, f"{word} has no value; one that begins with -- is given as {word}=VALUE")
            value = rest.pop(0)
        settings[key] = value
    return settings


def parse(words):
    known, rest = parser().parse_known_args(words)
    sweep = dict(known.sweep)
    if len(sweep) != len(known.sweep):
        raise Failure(CONFIG, "--sweep: a setting stands twice; list all of its values once")
    request = Request(**dict(vars(known), sweep=sweep, settings=settings_of(rest)))
    request.ranks = sorted(set(request.ranks))
    request.modes = list(dict.fromkeys(request.modes))
    check(request)
    return request


def check(request):
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", request.name):
        raise Failure(CONFIG, f"--name '{request.name}' must be letters, digits, '.', '_' and '-', and begin with a letter or digit")
    for key in [*request.settings, *request.sweep]:
        if key in RESERVED:
            raise Failure(CONFIG, f"--{key} cannot be set: {RESERVED[key]}")
    for path in request.configs:
        if not os.path.isfile(path):
            raise Failure(CONFIG, f"--config {path}: no such file")
    both = sorted(request.settings.keys() & request.sweep.keys())
    if both:
        raise Failure(CONFIG, f"{both[0]} stands in --sweep and alone; remove one")
    repeated = [key for key, values in request.sweep.items() if len(set(values)) != len(values)]
    if repeated:
        raise Failure(CONFIG, f"--sweep {repeated[0]}: a value stands twice")
    if request.hosts and request.hostfile:
        raise Failure(CONFIG, "--hosts and --hostfile cannot be given together")
    if request.launch and (request.hosts or request.hostfile or request.platform):
        raise Failure(CONFIG, "--launch replaces launch/run.sh, so --platform, --hostfile and --hosts mean nothing with it; "
                              "write them into the template")
    if not os.access(request.tandem, os.X_OK):
        raise Failure(CONFIG, f"no program {request.tandem}; build it with launch/build.sh, or name it with --tandem")
