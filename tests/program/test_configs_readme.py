#!/usr/bin/env python3
"""The tables of settings in configs/README.md, and its list of those that may not change, say what `tandem train --help` says.

    test_configs_readme.py PATH_TO_TANDEM [unittest arguments]
    test_configs_readme.py PATH_TO_TANDEM --write      brings the file up to date
"""
import re
import sys
import textwrap
import unittest
from pathlib import Path

import tandem_program
from tandem_program import OK, Workspace, run

README = Path(__file__).resolve().parents[2] / "configs" / "README.md"
BEGIN = "<!-- Begin: from `tandem train --help`, by tests/program/test_configs_readme.py PATH_TO_TANDEM --write -->\n"
END = "<!-- End -->\n"
BEGIN_FIXED, END_FIXED = "<!-- Begin: fixed settings, written likewise -->\n", "<!-- End of fixed settings -->\n"
SETTING = re.compile(r"  --(\w+\.\w+)(?: (\S+))? {2,}(.*)")


def shown_help():
    """The help of `tandem train`, with each setting in one line."""
    return re.sub(r"\n {36}", " ", Workspace.check(run("train", "--help"), OK).stdout)


def fixed():
    """The settings that must be what they were when a run goes on."""
    [keys] = re.findall(r"These settings must then be what they were, all others may change:\n((?:  \w+\.\w+(?: \w+\.\w+)*\n)+)\n",
                        shown_help())
    return textwrap.fill(", ".join(f"`{key}`" for key in keys.split()), width=120, break_on_hyphens=False) + "\n"


def settings():
    """Key, default and meaning, in the program's order."""
    shown = shown_help().splitlines()
    found = [match.groups(default="") for match in map(SETTING.fullmatch, shown) if match]
    sections = [line for line in shown if re.match(r"  --\w+\.", line)]
    assert len(found) == len(sections) > 0, "lines of --help that this script does not understand"
    return found


def tables():
    text, section = "", ""
    for key, default, meaning in settings():
        if key.split(".")[0] != section:
            section = key.split(".")[0]
            text += f"\n### `{section}`\n\n| setting | default | meaning |\n| --- | --- | --- |\n"
        meaning = meaning.replace("|", r"\|").replace("*", r"\*")
        text += f"| `{key}` | {f'`{default}`' if default else ''} | {meaning} |\n"
    return text + "\n"


BLOCKS = [(BEGIN, END, tables), (BEGIN_FIXED, END_FIXED, fixed)]


def parts(text, begin, end):
    """The texts before, between and after the two marks."""
    before, rest = text.split(begin)
    between, after = rest.split(end)
    return before, between, after


def write():
    for begin, end, made in BLOCKS:
        before, _, after = parts(README.read_text(), begin, end)
        README.write_text(before + begin + made() + end + after)


class ConfigsReadme(unittest.TestCase):
    maxDiff = None

    def test_the_settings_are_those_of_help(self):
        for begin, end, made in BLOCKS:
            self.assertEqual(parts(README.read_text(), begin, end)[1], made(), f"bring it up to date with --write, an option of {__file__}")


if __name__ == "__main__":
    if sys.argv[2:] == ["--write"]:
        tandem_program.TANDEM = sys.argv[1]
        write()
    else:
        tandem_program.main()
