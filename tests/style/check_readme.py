#!/usr/bin/env python3
"""Everything that README files and .github/CONTRIBUTING.md name exists: relative links and paths in backquotes. The README's block
of C++ is a block of tests/program/example.cpp. Skipped (77) outside a git checkout, because git lists the files.

A word in backquotes is a path if it ends like a source file, or begins with one of the repository's folders. It may leave out
the first folders (`test_linear.cpp`), begin with ../, and contain * and {one,other}. Words that contain foo, or a component in
capitals (FOLDER/gpu.sh), stand for names of the reader's own and are not looked up.
"""
import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "program" / "example.cpp"
BEGIN, END = "// The README's block begins.\n", "// The README's block ends.\n"
SOURCE = re.compile(r"[^/]\.(cpp|h|cu|cuh|py|sh|cfg|md)$")
PLACEHOLDER = re.compile(r"foo|(^|[/_])[A-Z]+(/|$)")
# Not in the repository: files of a run, and headers of libraries.
ELSEWHERE = {"config.cfg", "cuda.h", "mpi.h"}


def git_files():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True,
                            text=True)
    if listed.returncode:
        print("readme: skipped, not a git checkout")
        sys.exit(77)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def alternatives(path):
    """a.{h,cpp} is a.h and a.cpp."""
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    return [each for word in found[1].split(",") for each in alternatives(path[:found.start()] + word + path[found.end():])]


class Tree:
    """Files and folders, found by the ends of their paths."""

    def __init__(self, files):
        self.paths = set(files)
        for file in files:
            self.paths.update(str(folder) for folder in Path(file).parents)
        self.tops = {file.split("/")[0] for file in files if "/" in file}
        self.ends = set()
        for path in self.paths:
            parts = path.split("/")
            self.ends.update("/".join(parts[i:]) for i in range(len(parts)))

    def looks_like_path(self, word):
        ours = word.split("/")[0] in self.tops and "/" in word
        return (ours or SOURCE.search(word)) and not word.startswith("/") and not PLACEHOLDER.search(word) and word not in ELSEWHERE

    def has(self, path):
        return any(fnmatch.fnmatchcase(end, path) for end in self.ends) if "*" in path else path in self.ends


def words_in_backquotes(text):
    """Also the words of fenced blocks, except C++."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language != "cpp":
            yield from block.split()
    for quoted in re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        yield from quoted.split()


def problems_of_text(name, text, tree):
    problems = []
    for word in words_in_backquotes(text):
        word = word.strip("\"'(),;:").rstrip("./")
        for path in alternatives(word) if re.fullmatch(r"[\w.*{},/+-]+", word) else []:
            path = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path.startswith("../") else path.removeprefix("./")
            if tree.looks_like_path(path) and not tree.has(path):
                problems.append(f"{name}: no file {path}")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path = link.split("#")[0]
        if path and not re.match(r"\w+:", path) and not ((ROOT / name).parent / path).exists():
            problems.append(f"{name}: nothing at the link {link}")
    return problems


def problems_of_example():
    block = EXAMPLE.read_text().split(BEGIN)[1].split(END)[0]
    shown = re.findall(r"^```cpp\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [] if shown == [block] else [f"README.md: its block of C++ is not that of {EXAMPLE.relative_to(ROOT)}, which is\n{block}"]


def main():
    files = git_files()
    tree = Tree(files)
    problems = problems_of_example()
    texts = [name for name in files if os.path.basename(name) == "README.md"] + [".github/CONTRIBUTING.md"]
    for name in sorted(texts):
        problems += problems_of_text(name, (ROOT / name).read_text(), tree)
    print("\n".join(problems) or f"readme: {len(texts)} files, good")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
