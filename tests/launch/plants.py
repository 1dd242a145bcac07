"""`tandem` with studies/plant.c preloaded: its kernels take a given time without a processor, and steps are slow for a known cause."""
import os
import shlex
import subprocess

PLANT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "studies", "plant.c")


def build_shim(folder):
    """Compiles plant.c into this folder."""
    shim = os.path.join(folder, "plant.so")
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", shim, PLANT], check=True)
    return shim


def planted(path, shim, tandem, **plants):
    """Writes a program to `path`: `tandem` with these plants, each of which is a variable PLANT_... of plant.c."""
    with open(path, "w") as out:
        out.write(f"#!/bin/sh\nexec env LD_PRELOAD={shlex.quote(shim)} "
                  f'{shlex.join(f"PLANT_{name}={value}" for name, value in plants.items())} {shlex.quote(tandem)} "$@"\n')
    os.chmod(path, 0o755)
    return path
