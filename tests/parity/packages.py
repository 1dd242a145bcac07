"""Skips or fails the tests against PyTorch if a package that they need is missing."""
import importlib.util
import os
import sys


def require(tests, *packages):
    """Ends the process with code 77, which means skipped, or with 1 if TANDEM_REQUIRE_PARITY=1."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            if os.environ.get("TANDEM_REQUIRE_PARITY") == "1":
                sys.exit(f"{tests} FAILED: TANDEM_REQUIRE_PARITY=1, but there is no {package}")
            print(f"{tests} SKIPPED: no {package}")
            sys.exit(77)
