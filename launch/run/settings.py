"""Settings of `tandem`, as the program itself reads them, and files that it wrote."""
import json
import subprocess
import sys
import tempfile

from errors import CONFIG, Failure
from files import regular
from job import MEANING


def read_file(path):
    """The settings of a file: `[section]` and `key = value` lines."""
    section, found = "", {}
    try:
        with open(path, encoding="utf-8", opener=regular) as file:
            for line in file:
                key, equals, value = map(str.strip, line.partition("#")[0].partition("="))
                if equals:
                    found[section + key] = value
                elif key:
                    section = key.strip("[] ") + "."
    except OSError as error:
        raise Failure(CONFIG, f"--config {path}: {error.strerror}")
    return found


def read_settings(program, arguments):
    """All settings of `tandem train` with these arguments. What the program says of wrong ones, and its exit code, are passed on."""
    try:
        done = subprocess.run([program, "train", "--check", *arguments], capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise Failure(CONFIG, f"{program} does not start: {error.strerror}")
    if done.returncode == 0 and {"--help", "-h"} & set(arguments):
        print(done.stdout, end="")
        sys.exit(0)
    lines = [line.removeprefix("tandem: ") for line in done.stderr.splitlines()]
    if done.returncode not in MEANING:
        raise Failure(CONFIG, f"{program} does not start: {' '.join(lines[-1:])}")
    if done.returncode != 0:
        raise Failure(done.returncode, *lines)
    said = [line for line in done.stdout.split("\n") if line.startswith("{")]  # a script around it may say more
    try:
        return json.loads("".join(said[-1:]))
    except ValueError:
        raise Failure(CONFIG, f"{program} says no settings; build it with launch/build.sh")


def read_with_defaults(program, arguments, defaults):
    """All settings if these were the defaults: what the arguments or their files name stays."""
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.writelines("[{}]\n{} = {}\n".format(*key.split("."), value) for key, value in defaults.items())
        file.flush()
        return read_settings(program, [file.name, *arguments])
