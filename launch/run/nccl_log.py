"""What NCCL says in its log about the network it took. NCCL writes a file for each rank: HOST.PROCESS.log."""
import contextlib
import glob
import os
import re
import time

from errors import CONFIG, say

PATTERN = "%h.%p.log"  # the value of NCCL_DEBUG_FILE
WATCH_S = 300  # NCCL may connect at the first collectives only
ADVICE = "see `NCCL INFO NET` in its log; is aws-ofi-nccl in LD_LIBRARY_PATH on this host, and EFA allowed by the security group?"


class NcclLog:
    """Reads the logs in a folder until each rank there has told its network, and some minutes longer."""

    def __init__(self, folder, ranks, known):
        """known: the hosts' machine type in launch/instances.json, or {}."""
        self.folder, self.ranks, self.known = folder, ranks, known
        self.told_at = None

    def problems(self):
        """A line for each rank's log that shows another network than EFA, too few devices, or no GPUDirect RDMA where the type has it."""
        texts = {}
        if self.told_at is not None and time.monotonic() - self.told_at > WATCH_S:
            return []
        for path in glob.glob(os.path.join(glob.escape(self.folder), "*.log")):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:  # the next look comes soon
                texts[path] = file.read().rpartition("\n")[0] + "\n"  # the last line may not be whole yet
        found = {}
        for path, text in sorted(texts.items()):
            host = os.path.basename(path).rsplit(".", 2)[0]
            if wrong := self.problem(text):
                found.setdefault(host, f"{host}: {wrong}: {ADVICE}")
        ready = [text for text in texts.values() if "Init COMPLETE" in text]
        if not found and self.told_at is None and len(ready) == self.ranks:
            self.told_at = time.monotonic()
            say(summary(ready[0]))
        return list(found.values())

    def problem(self, text):
        if missing := re.search(r"network (.+?) not found", text):
            return f"NCCL has no network '{missing[1]}'"
        if (network := re.search(r"Using network (.+)", text)) and not re.search("Libfabric|OFI", network[1]):
            return f"NCCL uses the network '{network[1].strip()}', not EFA"
        provider = re.search(r"Selected [Pp]rovider is (\w+).*?\(found (\d+) nics\)", text)
        if provider and provider[1] != "efa":
            return f"libfabric uses the provider '{provider[1]}', not efa"
        if provider and int(provider[2]) < self.known.get("efa", 0):
            return f"NCCL found {provider[2]} EFA devices of {self.known['efa']}"
        channel = re.search(r"via NET/\S+( Libfabric)?/\d+(?!\S*GDRDMA)\S*", text)
        if channel and self.known.get("gpudirect_rdma"):
            return f"no GPUDirect RDMA ('{channel[0]}')"
        return ""

    def watch(self):
        """The exit code for a job with a wrong network, after lines that say what is wrong; None if there is nothing to say."""
        lines = self.problems()
        for line in lines:
            say(line)
        return CONFIG if lines else None


def summary(text):
    """ "NCCL 2.27.7+cuda12.9, aws-ofi-nccl 1.16.3: network AWS Libfabric, 4 EFA devices" """
    def first(pattern):
        match = re.search(pattern, text)
        return match[1].strip() if match else "unknown"
    nccl, plugin, network, devices = map(first, [r"NCCL version (\S+)", r"aws-ofi-nccl (\S+)", r"Using network (.+)", r"found (\d+) nics"])
    return f"NCCL {nccl}, aws-ofi-nccl {plugin}: network {network}, {devices} EFA devices"
