"""Finds or installs the packages that the checks against Hugging Face's programs need."""
import importlib.util
import os
import subprocess
import sys

PACKAGES = ["transformers>=5", "torch", "safetensors", "tokenizers", "numpy", "h5py", "jinja2", "peft", "openai", "lm-eval[api]"]


def require(checks, *packages):
    """Ends the process with code 77, which means skipped, where a package is missing. With TANDEM_REQUIRE_INTEROP=1 all are
    installed beside the program, whose path is the first argument, and the script starts again there."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if not missing:
        return
    if os.environ.get("TANDEM_REQUIRE_INTEROP") != "1":
        print(f"{checks} SKIPPED: no {', '.join(missing)}; TANDEM_REQUIRE_INTEROP=1 installs them")
        sys.exit(77)
    folder = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "interop-venv")
    python = os.path.join(folder, "bin", "python")
    if sys.executable == python:
        sys.exit(f"{checks} FAILED: {folder} has no {', '.join(missing)}")
    subprocess.run(["/usr/bin/python3", "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    os.execv(python, [python, *sys.argv])
