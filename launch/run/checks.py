"""What must be true of the hosts before a job starts. A check looks at the facts of launch/node.sh and names what is wrong,
with its value and what to do."""
import os
import re
from dataclasses import dataclass

from errors import CONFIG, DATA

# The oldest driver for a major version of CUDA (its release notes, "minor version compatibility").
OLDEST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
OLDEST_LIBFABRIC = (1, 18)
# Versions of NCCL and of aws-ofi-nccl that hang together, as patterns, and where that is said.
HANGING = [
    (r"2\.28\.", r"1\.17\.", "aws-ofi-nccl issue 1055"),
    (r"", r"1\.18\.", "large broadcasts, which AWS mended with EFA 1.49.0"),
]
LEAST_SHARED_MEMORY = 1 << 20  # KiB; NCCL and Open MPI need it
LEAST_OPEN_FILES = 8192
LEAST_DISK = 1 << 20  # KiB
# Variables of old recipes that slow jobs down or break them: a pattern, and why.
HARMFUL = [
    (r"RDMAV_\w+", "it changes how memory is registered, and breaks newer kernels"),
    (r"NCCL_P2P_DISABLE", "it takes NVLink away"),
    (r"NCCL_SHM_DISABLE", "it takes shared memory away"),
    (r"NCCL_IB_DISABLE", "it has no use for EFA"),
    (r"NCCL_PROTO|NCCL_ALGO|NCCL_TREE_THRESHOLD", "it overrules NCCL's own choice"),
    (r"NCCL_MIN_NRINGS|NCCL_MIN_CHANNELS|NCCL_BUFFSIZE", "the network plugin sets a value for this machine"),
    (r"FI_EFA_FORK_SAFE|FI_EFA_USE_DEVICE_RDMA", "libfabric sets it where it is needed"),
]


@dataclass
class Problem:
    host: str
    text: str
    code: int


@dataclass
class Job:
    """What the checks compare the facts with."""
    instances: dict  # the types of launch/instances.json
    program: str
    dataset: str  # data.path
    run_dir: str
    uses_gpus: bool
    efa: bool  # NCCL is to use EFA
    allowed: list  # --allow


def version(text):
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def first(host, key, default=""):
    return host.facts.get(key, [default])[0]


def number(host, key):
    text = first(host, key)
    return int(text) if text.isdecimal() else None


def check_program(host, hosts, job):
    there, mine, first_one = "program" in host.facts, first(host, "program"), first(hosts[0], "program")
    yield not there and f"{job.program} is not there or cannot be run: put the clone at the same path on all hosts"
    if "missing_library" in host.facts:
        yield f"{job.program} does not find {first(host, 'missing_library')}: run launch/setup.sh on this host"
    elif "cannot_start" in host.facts:
        yield f"{job.program} does not start: {first(host, 'cannot_start')}"
    yield there and mine != first_one and (f"{job.program} or launch/rank.sh is {mine}, on {hosts[0].name} {first_one}: "
                                           "copy one build to all hosts")


def check_open_mpi(host, hosts, job):
    mine, first_one = first(host, "open_mpi"), first(hosts[0], "open_mpi")
    yield not mine and "mpirun is not Open MPI, or is not in PATH for a command over ssh: install it, or set PATH"
    yield mine and mine != first_one and f"Open MPI is {mine}, on {hosts[0].name} {first_one}: install one version on all hosts"


def check_name(host, hosts, job):
    name = first(host, "hostname")
    same = next(other.name for other in hosts if first(other, "hostname") == name)
    yield same != host.name and f"its hostname is {name}, like that of {same}: give each host a name of its own"
    yield re.search("[^A-Za-z0-9.-]", name) and not os.environ.get("SLURM_JOB_ID") and (
        f"its hostname is {name}, but Open MPI takes letters, digits, dots and hyphens only: give it such a name")


def check_gpus(host, hosts, job):
    gpus = len(host.facts.get("gpu", []))
    known = job.instances.get(first(host, "machine"))
    yield known and gpus != known["gpus"] and f"has {gpus} GPUs, a {first(host, 'machine')} has {known['gpus']}: replace the host"
    if not job.uses_gpus:
        return
    yield host.slots > max(gpus, known["gpus"] if known else 0) and f"{host.slots} ranks, but {gpus} GPUs: ask for {gpus} ranks"
    cuda = number(host, "cuda")
    if gpus and cuda in OLDEST_DRIVER:
        driver, oldest = first(host, "gpu").split()[1], ".".join(map(str, OLDEST_DRIVER[cuda]))
        yield version(driver) < OLDEST_DRIVER[cuda] and f"its driver is {driver}, this build needs {oldest} for CUDA {cuda}: update the driver"
    for process in host.facts.get("gpu_process", [])[:1]:
        yield f"a GPU is in use by process {process}: end it, or wait for it"
    for gpu in host.facts.get("gpu_remapping", []):
        yield f"GPU {gpu} has an ECC remapping that is pending: reset the GPU, or replace the host"
    manager = first(host, "fabric_manager", "active")
    yield known and known["nvswitch"] and manager != "active" and (f"nvidia-fabricmanager is {manager}: "
                                                                   "systemctl start nvidia-fabricmanager")


def check_efa(host, hosts, job):
    if not job.efa:
        return
    known, efa = job.instances.get(first(host, "machine")), number(host, "efa") or 0
    if known and efa != known["efa"]:
        yield (f"has {efa} EFA devices, a {first(host, 'machine')} has {known['efa']}: start it with {known['efa']} EFA interfaces, "
               "or take --net sockets")
    elif efa == 0:
        yield "has no EFA device: start it with EFA interfaces, or take --net sockets"
    if efa == 0:
        return
    memlock, libfabric = first(host, "memlock"), first(host, "libfabric", "missing")
    yield memlock != "unlimited" and (f"locked memory is limited to {memlock} KiB, which EFA reports as \"(-12) Cannot allocate memory\": "
                                      "set memlock to unlimited in /etc/security/limits.conf")
    yield "nccl_plugin" not in host.facts and "libnccl-net.so (aws-ofi-nccl) is not in LD_LIBRARY_PATH: install the EFA software"
    nccl, plugin = first(host, "nccl_version"), first(host, "nccl_plugin_version")
    for bad_nccl, bad_plugin, why in HANGING:
        yield nccl and re.match(bad_nccl, nccl) and re.match(bad_plugin, plugin) and (
            f"NCCL {nccl} with aws-ofi-nccl {plugin} hangs ({why}): install EFA 1.49.0 or newer")
    yield version(libfabric) < OLDEST_LIBFABRIC and (f"libfabric is {libfabric}, at least {'.'.join(map(str, OLDEST_LIBFABRIC))} is needed: "
                                                     "install newer EFA software")


def check_limits(host, hosts, job):
    shared_memory, files = number(host, "shared_memory"), number(host, "open_files")
    yield shared_memory is not None and shared_memory < LEAST_SHARED_MEMORY and (
        f"/dev/shm has {shared_memory // 1024} MiB, at least 1024 are needed: mount -o remount,size=8G /dev/shm, "
        "or start the container with --shm-size 8g")
    yield files is not None and files < LEAST_OPEN_FILES and (f"{files} open files are allowed, at least {LEAST_OPEN_FILES} are needed: "
                                                              "ulimit -n 65536")


def check_storage(host, hosts, job):
    disk, mine = number(host, "free_disk"), first(host, "dataset")
    yield disk is not None and disk < LEAST_DISK and (f"{job.run_dir} has {disk // 1024} MiB free, at least 1024 are needed: "
                                                      "make room, or choose another run.dir")
    yield not mine and f"cannot read {job.dataset}: copy it there, or put it on storage that all hosts share"
    yield mine and mine != first(hosts[0], "dataset") and f"{job.dataset} is not the file of {hosts[0].name}: copy that one there"
    yield "not_shared" in host.facts and (f"{job.run_dir} is not the folder of {hosts[0].name}: "
                                          "put run.dir on storage that all hosts share")


def check_variables(host, hosts, job):
    for name in sorted(set(host.facts.get("variable", []))):
        for pattern, why in HARMFUL:
            yield re.fullmatch(pattern, name) and name not in job.allowed and (f"{name} is set, and {why}: unset it, "
                                                                               f"or start with --allow {name}")


# A check yields a line for what is wrong, and something false for what is not. Its exit code says what wrong hosts are to the
# launcher.
CHECKS = {check_program: CONFIG, check_open_mpi: CONFIG, check_name: CONFIG, check_gpus: CONFIG, check_efa: CONFIG, check_limits: CONFIG,
          check_storage: DATA, check_variables: CONFIG}


def problems(hosts, job, checks=CHECKS):
    return [Problem(host.name, text, CHECKS[check]) for host in hosts for check in checks for text in check(host, hosts, job) if text]


def notes(hosts, job):
    """What is worth a line, but no reason not to start."""
    unknown = sorted({first(host, "machine") for host in hosts if first(host, "machine")} - set(job.instances))
    if unknown and job.uses_gpus and any("gpu" in host.facts for host in hosts):
        yield f"{', '.join(unknown)}: not in launch/instances.json, so GPUs and EFA devices are not compared with what they should be"
    if job.efa:
        yield (f"libfabric {first(hosts[0], 'libfabric')}, NCCL {first(hosts[0], 'nccl_version', '?')}, network plugin "
               f"{first(hosts[0], 'nccl_plugin_version', '?')} in {first(hosts[0], 'nccl_plugin')}")
