#!/usr/bin/env python3
"""Says what to rent for a run: which machine type, how many, how long, and what it costs.

    launch/recommend.py --config configs/gpt2_124m.cfg --tokens 10e9 --deadline-hours 24 --budget 500
    launch/recommend.py --help

Times are those of `tandem estimate`, prices those of launch/instances.json.
"""
from scaling.recommend import main
from command_line import run_script

if __name__ == "__main__":
    run_script("recommend", main)
