#!/usr/bin/env python3
"""Measures how a training job scales: launches it several times at each size, and writes a report.

    launch/scaling.py --name gpt2 --config configs/gpt2_124m.cfg --data.path data/docs.h5 --ranks 1 8 16 32 \\
        --mode weak strong --sweep dist.zero=0,2 --hostfile hosts --instance p4d.24xlarge
    launch/scaling.py report runs/scaling/gpt2
    launch/scaling.py --help

README.md tells about it. The modules are in the folder scaling.
"""
from scaling.main import main
from command_line import run_script

if __name__ == "__main__":
    run_script("scaling", main)
