#!/usr/bin/env python3
"""Prints what kernels take of a GPU, as a table: registers, shared memory, occupancy, tensor-core instructions.

kernel_resources.py --launches FILE [--kernels PATTERN] [--cuobjdump PATH] OBJECT...

OBJECT are object files of a release build with CUDA. FILE is written by tests on the emulated GPU:
  TANDEM_SIMT_LAUNCHES=FILE build-simt/tests/test_flash
It has the threads of a block and the dynamic shared memory, which objects do not know. cuobjdump is part of the CUDA
Toolkit, or of pip's nvidia-cuda-cuobjdump (with nvidia-cuda-nvdisasm beside it). Occupancy is computed from the limits of
the CUDA Programming Guide, "Technical Specifications per Compute Capability".
"""
import argparse
import re
import subprocess
import sys

SHARED_KIB = {"sm_80": 164, "sm_90": 228}  # of a multiprocessor
RESERVED = 1024  # bytes of shared memory that each block takes beside its own; objects for sm_90 add them where a kernel has any
REGISTERS, MAX_WARPS, MAX_BLOCKS = 65536, 64, 32


def plain(name):
    """tandem::f::(anonymous namespace)::g_kernel<tandem::Bf16, (int)64>(...) -> g_kernel<Bf16, 64>"""
    name = re.sub(r"tandem::|\(anonymous namespace\)::|\{anonymous\}::|\((?:int|bool|long|unsigned int)\)", "", name)
    name = re.sub(r"^void ", "", name).split("(")[0]
    head, angle, arguments = name.partition("<")
    return head.split("::")[-1] + angle + arguments.replace(" >", ">")


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"kernel_resources: {' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def demangled(names):
    return dict(zip(names, run("c++filt", *names).splitlines()))


def usage(cuobjdump, path):
    """Yields architecture, mangled name, registers, static shared bytes, and bytes of the stack."""
    arch = None
    name = None
    for line in run(cuobjdump, "-res-usage", path).splitlines():
        if found := re.search(r"arch = (sm_\d+)", line):
            arch = found[1]
        elif found := re.search(r"Function (\S+):", line):
            name = found[1]
        elif found := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            yield arch, name, int(found[1]), max(0, int(found[3]) - (RESERVED if arch == "sm_90" else 0)), int(found[2])


def functions(cuobjdump, path):
    """Yields architecture, mangled name, and the instructions: address, opcode with its suffixes, operands."""
    arch, name, code = None, None, []
    for line in run(cuobjdump, "-sass", path).splitlines():
        if found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*) ?(.*?)\s*;", line):
            code.append((int(found[1], 16), found[2], found[3]))
        elif found := re.search(r"arch = (sm_\d+)|Function : (\S+)", line):
            if code:
                yield arch, name, code
            arch, name, code = found[1] or arch, found[2] or name, []
    if code:
        yield arch, name, code


def launches_of(path):
    """Threads of a block and bytes of dynamic shared memory, by the plain name of the kernel."""
    launches = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, threads, dynamic = line.rstrip("\n").split("\t")
            launches[plain(name)] = int(threads), int(dynamic)
    return launches


def launch_of(launches, name):
    """A launch is known without the default arguments of a template."""
    for launched in launches:
        if name == launched or name.startswith(launched.removesuffix(">") + ", "):
            return launches[launched]
    sys.exit(f"{name} is not among the launches: run a test that launches it")


def blocks_of(arch, threads, registers, shared):
    """Blocks that fit on a multiprocessor."""
    warps = -(-threads // 32)
    warp_registers = -(-registers // 8) * 8 * 32
    by_registers = REGISTERS // warp_registers // 4 * 4 // warps
    by_shared = SHARED_KIB[arch] * 1024 // (-(-(shared + RESERVED) // 128) * 128)
    return min(by_registers, by_shared, MAX_WARPS // warps, MAX_BLOCKS)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--launches", required=True)
    parser.add_argument("--kernels", default="")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("objects", nargs="+")
    options = parser.parse_args()
    launches = launches_of(options.launches)
    rows = []
    for path in options.objects:
        products = {(arch, mangled): sum(opcode.startswith("HMMA.") for _, opcode, _ in code)
                    for arch, mangled, code in functions(options.cuobjdump, path)}
        for arch, mangled, registers, static, stack in usage(options.cuobjdump, path):
            rows.append((mangled, arch, registers, static, stack, products[arch, mangled]))
    if not rows:
        sys.exit("kernel_resources: no kernels in these objects")
    names = demangled(sorted({row[0] for row in rows}))
    print("| kernel | arch | threads | registers | stack, bytes | shared, KiB | blocks an SM | occupancy | HMMA |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for mangled, arch, registers, static, stack, hmma in sorted(rows, key=lambda row: (plain(names[row[0]]), row[1])):
        name = plain(names[mangled])
        if not re.search(options.kernels, name):
            continue
        threads, dynamic = launch_of(launches, name)
        blocks = blocks_of(arch, threads, registers, static + dynamic)
        print(f"| `{name}` | {arch} | {threads} | {registers} | {stack} | {(static + dynamic) / 1024:.1f} | {blocks} | "
              f"{blocks * threads / 32 / MAX_WARPS:.0%} | {hmma} |")


if __name__ == "__main__":
    main()
