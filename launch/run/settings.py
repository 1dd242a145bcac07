"""The settings of `tandem train` that the launcher must know, as the program itself will read them."""
import os
import re
import subprocess

from errors import CONFIG, Failure


def read_defaults(program):
    done = subprocess.run([program, "train", "--help"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(CONFIG, f"{program} does not start: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]}")
    return {key: value or "" for key, value in re.findall(r"^  --(\w+\.\w+)(?: (\S+))?(?=\s|$)", done.stdout, re.MULTILINE)}


def read_file(path):
    """The settings of a file: `[section]` and `key = value` lines."""
    section, found = "", {}
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                line = line.partition("#")[0].strip()
                if line.startswith("["):
                    section = line.strip("[]").strip()
                elif "=" in line:
                    key, _, value = line.partition("=")
                    found[f"{section}.{key.strip()}" if section else key.strip()] = value.strip()
    except OSError as error:
        raise Failure(CONFIG, f"--config {path}: {error.strerror}")
    return found


def read_settings(program, arguments):
    """arguments: those of `tandem train`. The program itself refuses what is wrong with them."""
    settings, line, files = read_defaults(program), {}, []
    words = iter(arguments)
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            value = value if equals else next(words, "")
            if key == "config":
                files.append(value)
            else:
                line[key] = value
    for path in files:
        settings.update(read_file(path))
    settings.update(line)
    settings["run"] = os.path.join(settings["run.dir"], settings["run.name"])
    return settings
