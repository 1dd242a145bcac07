#!/usr/bin/env python3
"""A scaling study on a pretend cluster: hosts of one rank in network namespaces (tests/launch/pretend_hosts.py), with real
messages over links of a given rate. Kernels take a given time without a processor (tests/launch/studies/plant.c), as on a
device of their own, so that the hosts hardly slow each other on this machine's cores. Needs root; takes half an hour.

    pretend_cluster.py PATH_TO_TANDEM FOLDER [--ranks 4 8 16] [--rate 200mbit] [--kernel-us 300] [--launches 6]

FOLDER, below /tmp or on a disk that all namespaces see, gets what launch/scaling.py writes. In the weak mode each of 4, 8 or
16 hosts has 4 samples a step, in the strong mode all together have 16.
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launch"))
from plants import build_shim, planted
from pretend_hosts import Hosts
import gpt_run

SCALING = os.path.join(HERE, "..", "..", "launch", "scaling.py")
MODEL = {"model.layers": 4, "model.heads": 4, "model.width": 64, "model.context": 64, "train.micro_batch": 1, "run.threads": 1,
         "run.watch_spot": "off"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem")
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rate", default="200mbit", help="of each host's link, in each direction")
    parser.add_argument("--kernel-us", type=int, default=300)
    parser.add_argument("--launches", type=int, default=6)
    options = parser.parse_args()
    folder = os.path.abspath(options.folder)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as shared:
        tandem = os.path.abspath(options.tandem)
        gpt_run.prepare(tandem, shared)
        program = planted(os.path.join(shared, "tandem"), build_shim(shared), tandem, KERNEL_US=options.kernel_us)
        with Hosts(max(options.ranks), shared=[shared, *([folder] if folder.startswith("/tmp/") else [])]) as hosts:
            hosts.start_sshd()
            for name in hosts.names:
                hosts.shape(name, options.rate)
            settings = [word for key, value in MODEL.items() for word in (f"--{key}", value)]
            command = [SCALING, "--name", "pretend", "--dir", folder, "--tandem", program, "--hosts", ",".join(hosts.names),
                       "--node-size", 1, "--ranks", *options.ranks, "--mode", "weak", "strong", "--sweep", "dist.zero=0,2,3",
                       "--launches", options.launches, "--warmup", 3, "--keep", 20, "--data.path", os.path.join(shared, "text.h5"),
                       "--train.global_batch", 16, *settings]
            sys.exit(hosts.start(hosts.names[0], command).wait())


if __name__ == "__main__":
    main()
