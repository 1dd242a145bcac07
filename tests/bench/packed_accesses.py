#!/usr/bin/env python3
"""Looks in the machine code of kernels for 16-byte accesses that the compiler has split. Needs no GPU.

packed_accesses.py [--cuobjdump PATH] OBJECT...
    ends with 1 if a kernel splits packs, if one that is compiled for packs has no 16-byte access, or if one has a stack.
packed_accesses.py --launches FILE --kernels PATTERN [--cuobjdump PATH] OBJECT...
    prints what these kernels take of a GPU, and the instructions of their main loops by kind, as a table.

OBJECT are object files or libraries of a release build with CUDA. FILE is that of kernel_resources.py.
Packs are seen as split where a block of instructions that are executed one after the other has a 16-byte load (or store) and,
from one base register, narrower stores (or loads) of neighbouring addresses that are 16 bytes together. A kernel is compiled for
packs if a template argument is the number of elements in one: swiglu_forward_kernel<8, Bf16>.
"""
import argparse
import collections
import re
import sys

from kernel_resources import blocks_of, demangled, functions, launch_of, launches_of, plain, usage

NOT_ROWS = {"end_micro_step_kernel"}  # one thread copies a struct of doubles
ACCESSES = {"LDG": "load", "LDGSTS": "load", "LD": "load", "LDS": "load", "STG": "store", "ST": "store", "STS": "store"}
SKIPPED = 77
KINDS = {  # of the table: what the opcode begins with
    "LDG.128": None, "other LDG": None, "STG.128": None, "other STG": None, "shared": r"LDS|STS", "MUFU": "MUFU", "PRMT": "PRMT",
    "floats": r"F(?!LO|2I)|I2F|HFMA2|HADD2", "others": ""}


def width(opcode):
    """Bytes of a memory access by one thread."""
    sizes = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
    return next((sizes[part] for part in opcode.split(".") if part in sizes), 4)


def global_access(opcode):
    """load, store, or None for other instructions and shared memory"""
    return ACCESSES.get(opcode.split(".")[0]) if opcode[:3] not in ("LDS", "STS") else None


def jump_target(opcode, operands):
    found = re.search(r"0x([0-9a-f]+)$", operands) if opcode.startswith("BRA") else None
    return int(found[1], 16) if found else None


def basic_blocks(code):
    targets = {jump_target(opcode, operands) for _, opcode, operands in code}
    block = []
    for instruction in code:
        if instruction[0] in targets and block:
            yield block
            block = []
        block.append(instruction)
        if instruction[1].split(".")[0] in ("BRA", "EXIT", "RET"):
            yield block
            block = []
    yield block


def longest_run(pieces):
    """Bytes of the longest range that (offset, bytes) cover without a gap."""
    longest = run = end = 0
    for offset, size in sorted(pieces):
        run = run + size if offset == end else size
        end = offset + size
        longest = max(longest, run)
    return longest


def split_packs(code):
    """What narrow accesses the kernel has instead of one of 16 bytes, in words; empty if none."""
    for block in basic_blocks(code):
        wide, narrow = set(), collections.defaultdict(set)
        for _, opcode, operands in block:
            access = ACCESSES.get(opcode.split(".")[0])
            if access and width(opcode) == 16:
                wide.add(access)
            elif global_access(opcode):
                base, offset = re.search(r"\[([^\]]*?)(?:\+(-?0x[0-9a-f]+))?\]", re.sub(r"desc\[\w+\]", "", operands)).groups()
                narrow[access, base].add((int(offset or "0", 16), width(opcode)))
        for (access, base), pieces in narrow.items():
            other = "store" if access == "load" else "load"
            if other in wide and longest_run(pieces) >= 16:
                sizes = ", ".join(map(str, sorted({size for _, size in pieces})))
                return f"{len(pieces)} {access}s of {sizes} bytes from [{base}] on, beside a {other} of 16 bytes"
    return ""


def is_packed(name):
    """Whether a template argument is the number of elements in a pack: the first one, or the last one beside a type."""
    return bool(re.search(r"<[248], |(?:Bf16|Fp16), 8>|float, 4>", name))


def main_loop(code):
    """The instructions of the innermost loop that moves most bytes of global memory; of two such loops, the longer one."""
    loops = [[i for i in code if target <= i[0] <= address] for address, opcode, operands in code
             if (target := jump_target(opcode, operands)) is not None and target < address]
    inner = [loop for loop in loops if not any(set(other) < set(loop) for other in loops)]
    moved = lambda loop: (sum(width(opcode) for _, opcode, _ in loop if global_access(opcode)), len(loop))
    return max(inner, key=moved, default=code)


def kind(opcode):
    if access := global_access(opcode):
        name = "LDG" if access == "load" else "STG"
        return f"{name}.128" if width(opcode) == 16 else f"other {name}"
    return next(name for name, pattern in KINDS.items() if pattern is not None and re.match(pattern, opcode))


def check(kernels, stacks):
    """Prints each finding; returns how many there are."""
    findings = 0
    for arch, name, code in kernels:
        wrong = [] if name.split("<")[0] in NOT_ROWS else [split_packs(code)]
        if is_packed(name) and not any(global_access(opcode) and width(opcode) == 16 for _, opcode, _ in code):
            wrong.append("compiled for packs, and has no access of 16 bytes")
        if stack := stacks[arch, name]:
            wrong.append(f"a stack of {stack} bytes")
        for text in filter(None, wrong):
            print(f"{name}, {arch}: {text}")
            findings += 1
    return findings


def table(kernels, registers, launches, pattern):
    columns = ["kernel", "arch", "threads", "registers", "blocks an SM", "loop", *KINDS]
    print("| " + " | ".join(columns) + " |\n| --- | --- |" + " ---: |" * (len(columns) - 2))
    for arch, name, code in sorted(kernels, key=lambda kernel: (kernel[1], kernel[0])):
        if not re.search(pattern, name):
            continue
        threads, dynamic = launch_of(launches, name)
        used, static = registers[arch, name]
        loop = main_loop(code)
        counts = collections.Counter(kind(opcode) for _, opcode, _ in loop)
        blocks = blocks_of(arch, threads, used, static + dynamic)
        cells = [f"`{name}`", arch, threads, used, blocks, len(loop), *(counts[name] for name in KINDS)]
        print("| " + " | ".join(map(str, cells)) + " |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--launches")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("objects", nargs="+")
    options = parser.parse_args()
    if options.cuobjdump.endswith("NOTFOUND"):
        print("skipped: there is no nvcc or no cuobjdump (launch/setup.sh --tests)")
        sys.exit(SKIPPED)
    found = [entry for path in options.objects for entry in functions(options.cuobjdump, path)]
    used = [entry for path in options.objects for entry in usage(options.cuobjdump, path)]
    if not found:
        sys.exit("packed_accesses: no kernels in these objects")
    names = {mangled: plain(name) for mangled, name in demangled(sorted({mangled for _, mangled, _ in found})).items()}
    kernels = [(arch, names[mangled], code) for arch, mangled, code in found]
    if options.launches:
        registers = {(arch, names[mangled]): (count, static) for arch, mangled, count, static, _ in used}
        return table(kernels, registers, launches_of(options.launches), options.kernels)
    findings = check(kernels, {(arch, names[mangled]): stack for arch, mangled, _, _, stack in used})
    print(f"{len(kernels)} kernels, {sum(is_packed(name) for _, name, _ in kernels)} of them compiled for packs: {findings} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
