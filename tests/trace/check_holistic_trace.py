#!/usr/bin/env python3
"""Holistic Trace Analysis finds in our traces the overlap of communication and computing that `tandem inspect --trace` says.

    check_holistic_trace.py TANDEM      Installs HolisticTraceAnalysis in a folder of its own.
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
import tandem_program  # noqa: E402
from tandem_program import TINY, run, words  # noqa: E402

RANKS = 3
ANALYSE = """
import sys
from hta.trace_analysis import TraceAnalysis
overlap = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True).get_comm_comp_overlap(visualize=False)
print("overlap", overlap.set_index("rank")["comp_comm_overlap_pctg"].to_json())
"""


def main():
    tandem_program.TANDEM = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "python", "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", os.path.join(folder, "python")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis"], check=True)
        text, data = os.path.join(folder, "words.txt"), os.path.join(folder, "words.h5")
        with open(text, "w") as out:
            out.write(words(3000))
        settings = ["--data.path", data, "--run.dir", folder, "--run.name", "run", *TINY, "--model.layers", "6", "--model.width", "256",
                    "--dist.bucket_mb", "1", "--train.steps", "12", "--log.trace", "4-11"]
        for result in (run("prepare", "text", "--input", text, "--output", data, "--tokenizer", "char"),
                       run("train", *settings, ranks=RANKS)):
            assert result.returncode == 0, result.stderr
        ours = json.loads(run("inspect", os.path.join(folder, "run"), "--trace", "--json").stdout)
        result = subprocess.run([python, "-c", ANALYSE, os.path.join(folder, "run", "trace")], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        found = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("overlap ")).split(" ", 1)[1])
    for rank in range(RANKS):
        all_steps = [step["ranks"][rank] for step in ours["steps"]]
        hidden = 100 * sum(each["hidden_ms"] for each in all_steps) / sum(each["collectives_ms"] for each in all_steps)
        print(f"rank {rank}: {hidden:.2f} % of communication is hidden; Holistic Trace Analysis says {found[str(rank)]:.2f} %")
        assert abs(hidden - found[str(rank)]) < 1
    assert any(share > 1 for share in found.values()), "nothing was hidden, so this compares nothing"


if __name__ == "__main__":
    main()
