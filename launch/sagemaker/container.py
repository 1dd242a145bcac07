"""What the service gives to a container of a training job, in files below /opt/ml, and what it collects there."""
import glob
import json
import os
import re
import shutil

from errors import CONFIG, DATA, Failure
from main import option_parser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = "fsx"  # the channel that all hosts write to
LONGEST_REASON = 1024  # letters; the service takes no more of a reason
REFUSED = {**dict.fromkeys(["help", "check", "launch.help", "launch.print"], "it would train nothing"),
           **dict.fromkeys(["launch.hosts", "launch.hostfile", "launch.platform"], "SageMaker says which hosts there are")}


def plain(value):
    """The text of a hyperparameter. SDKs quote strings as JSON, other clients do not."""
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
    return decoded if isinstance(decoded, str) else value if isinstance(value, str) else json.dumps(value)


def chosen_by(hyperparameters, folder, channels):
    """(options of run.sh, settings of `tandem train`) in hyperparameters. Failure if no container takes them whose /opt/ml is
    `folder`."""
    given = {key: plain(value) for key, value in hyperparameters.items()
             if not key.startswith("sagemaker_")}  # the SDK has these keys for its own entry points
    for key, value in given.items():
        if re.search("[\0\ud800-\udfff]", key + value):
            raise Failure(CONFIG, f"hyperparameter {key!a}: it has a character that no command line takes: leave that out")
        if key in REFUSED:
            raise Failure(CONFIG, f"hyperparameter {key}: {REFUSED[key]}: leave it out")
    options = {"market": "sagemaker", **{key.removeprefix("launch."): value for key, value in given.items() if key.startswith("launch.")}}
    try:
        option_parser().parse_args([f"--{name}={value}" for name, value in options.items()])
    except Failure as failure:
        raise Failure(CONFIG, f"hyperparameters launch.NAME are options of launch/run.sh: {str(failure)[:300]}")
    settings = {key: value for key, value in given.items() if not key.startswith("launch.")}
    kept = os.path.join(folder, *["input", "data", SHARED] if SHARED in channels else ["checkpoints"])
    run_dir = settings.setdefault("run.dir", os.path.join(kept, *["runs"] * (SHARED in channels)))
    if os.path.commonpath([kept, os.path.abspath(run_dir)]) != kept:
        raise Failure(CONFIG, f"run.dir = {run_dir} is lost with the container: leave it out, or choose a folder in {kept}")
    return options, settings


def write_failure(folder, reason):
    os.makedirs(os.path.join(folder, "output"), exist_ok=True)
    with open(os.path.join(folder, "output", "failure"), "w", encoding="utf-8") as file:
        half = LONGEST_REASON // 2 - 2  # a long value stands in the middle of a reason
        file.write(reason if len(reason) <= LONGEST_REASON else f"{reason[:half]}...{reason[-half:]}")


class Container:
    """`folder` is /opt/ml. `options` are those of run.sh (hyperparameters launch.NAME), `settings` those of `tandem train`."""

    def __init__(self, folder):
        self.folder = folder
        resources = self.read("resourceconfig", {"current_host": str, "hosts": list})
        self.name, self.hosts = resources["current_host"], sorted(map(str, resources["hosts"]))
        self.channels = sorted(self.read("inputdataconfig"))
        if len(self.hosts) > 1 and SHARED not in self.channels:
            raise Failure(CONFIG, f"{len(self.hosts)} instances share no storage: add a channel {SHARED} (FSx for Lustre, rw)")
        self.options, self.settings = chosen_by(self.read("hyperparameters"), folder, self.channels)
        if "config" in self.settings:
            self.settings["config"] = self.config()
        if "data.path" not in self.settings and self.dataset():
            self.settings["data.path"] = self.dataset()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def read(self, name, needed={}):
        """An object with the keys of `needed`, which have these types. A file of which nothing is needed may be missing."""
        path = self.path("input", "config", name + ".json")
        if not needed and not os.path.exists(path):
            return {}
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError, RecursionError) as error:
            raise Failure(CONFIG, f"{path}: {error}: it is SageMaker that writes this file")
        if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in needed.items()):
            raise Failure(CONFIG, f"{path}: must be an object{' with ' * bool(needed)}{' and '.join(needed)}: it is SageMaker that writes this file")
        return found

    def is_leader(self):
        return self.name == self.hosts[0]

    def config(self):
        """A file of a channel, or of the clone in the image."""
        places = [*(self.path("input", "data", channel) for channel in self.channels), ROOT]
        for place in places:
            if os.path.isfile(os.path.join(place, self.settings["config"])):
                return os.path.join(place, self.settings["config"])
        raise Failure(CONFIG, f"config = {self.settings['config']} is in none of {', '.join(places)}")

    def dataset(self):
        """The one dataset in the channels; empty if there is none."""
        found = [path for channel in self.channels for path in sorted(glob.glob(self.path("input", "data", channel, "*.h5")))]
        if len(found) > 1:
            raise Failure(CONFIG, f"there are several datasets ({', '.join(found)}): say which with data.path")
        return "".join(found)

    def collect_events(self, run):
        """Copies what is new in the TensorBoard files of a run to the folder that the service uploads."""
        target = self.path("output", "tensorboard")
        os.makedirs(target, exist_ok=True)
        for path in glob.glob(os.path.join(glob.escape(run), "events.out.tfevents.*")):
            copy = os.path.join(target, os.path.basename(path))
            if not os.path.exists(copy) or os.path.getsize(copy) != os.path.getsize(path):
                shutil.copyfile(path, copy)

    def export_model(self, run):
        """The run's best checkpoint, or its newest if none was validated, and its tokenizer or classes: a folder for `tandem serve`."""
        checkpoints = os.path.join(run, "checkpoints")
        names = os.listdir(checkpoints) if os.path.isdir(checkpoints) else []
        saved = sorted(name for name in names if re.fullmatch(r"step-\d+", name)) + ["best"] * ("best" in names)
        if not saved:
            raise Failure(DATA, f"{checkpoints} has no checkpoint, and so there is no model: leave out checkpoint.at_end = false, or let it save")
        source = os.path.join(checkpoints, saved[-1])
        with open(os.path.join(source, "manifest.json"), encoding="utf-8") as file:
            name = f"step-{json.load(file)['step']:08d}"
        shutil.copytree(source, self.path("model", "checkpoints", name), dirs_exist_ok=True)
        for name in ["tokenizer.h5", "classes.h5"]:  # of a run on text, on images
            if os.path.exists(os.path.join(run, name)):
                shutil.copy(os.path.join(run, name), self.path("model"))
