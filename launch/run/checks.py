"""What must be true of the hosts before a job starts. A check looks at the facts of launch/node.sh and names what is wrong,
with its value and what to do."""
import re
from dataclasses import dataclass

from errors import CONFIG, DATA

# The oldest driver for a major version of CUDA (its release notes, "minor version compatibility").
OLDEST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
OLDEST_LIBFABRIC = (1, 18)
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
    code: int = CONFIG


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
    return int(text) if text.isdigit() else None


def check_program(host, hosts, job):
    if "program" not in host.facts:
        yield Problem(host.name, f"{job.program} is not there or cannot be run: put the clone at the same path on all hosts")
        return
    if "missing_library" in host.facts:
        yield Problem(host.name, f"{job.program} does not find {first(host, 'missing_library')}: run launch/setup.sh on this host")
    elif "cannot_start" in host.facts:
        yield Problem(host.name, f"{job.program} does not start: {first(host, 'cannot_start')}")
    if first(host, "program") != first(hosts[0], "program"):
        yield Problem(host.name, f"{job.program} or launch/rank.sh is {first(host, 'program')}, on {hosts[0].name} "
                                 f"{first(hosts[0], 'program')}: copy one build to all hosts")


def check_open_mpi(host, hosts, job):
    if "open_mpi" not in host.facts:
        yield Problem(host.name, "mpirun is not Open MPI, or is not in PATH for a command over ssh: install it, or set PATH")
    elif first(host, "open_mpi") != first(hosts[0], "open_mpi"):
        yield Problem(host.name, f"Open MPI is {first(host, 'open_mpi')}, on {hosts[0].name} {first(hosts[0], 'open_mpi')}: "
                                 "install one version on all hosts")


def check_name(host, hosts, job):
    same = [other.name for other in hosts if first(other, "hostname") == first(host, "hostname")]
    if len(same) > 1 and same[0] != host.name:
        yield Problem(host.name, f"its hostname is {first(host, 'hostname')}, like that of {same[0]}: give each host a name of its own")


def check_gpus(host, hosts, job):
    gpus = len(host.facts.get("gpu", []))
    known = job.instances.get(first(host, "machine"))
    if known and gpus != known["gpus"]:
        yield Problem(host.name, f"has {gpus} GPUs, a {first(host, 'machine')} has {known['gpus']}: replace the host")
    if not job.uses_gpus:
        return
    if host.slots > max(gpus, known["gpus"] if known else 0):
        yield Problem(host.name, f"{host.slots} ranks, but {gpus} GPUs: ask for {gpus} ranks")
    cuda = number(host, "cuda")
    for gpu in host.facts.get("gpu", [])[:1]:
        driver = gpu.split()[1]
        if cuda in OLDEST_DRIVER and version(driver) < OLDEST_DRIVER[cuda]:
            oldest = ".".join(map(str, OLDEST_DRIVER[cuda]))
            yield Problem(host.name, f"its driver is {driver}, this build needs {oldest} for CUDA {cuda}: update the driver")
    for process in host.facts.get("gpu_process", [])[:1]:
        yield Problem(host.name, f"a GPU is in use by process {process}: end it, or wait for it")
    for gpu in host.facts.get("gpu_remapping", []):
        yield Problem(host.name, f"GPU {gpu} has an ECC remapping that is pending: reset the GPU, or replace the host")
    if known and known["nvswitch"] and first(host, "fabric_manager", "active") != "active":
        yield Problem(host.name, f"nvidia-fabricmanager is {first(host, 'fabric_manager')}: systemctl start nvidia-fabricmanager")


def check_efa(host, hosts, job):
    known = job.instances.get(first(host, "machine"))
    efa = number(host, "efa") or 0
    if known and job.efa and efa != known["efa"]:
        yield Problem(host.name, f"has {efa} EFA devices, a {first(host, 'machine')} has {known['efa']}: start it with "
                                 f"{known['efa']} EFA interfaces, or take --net sockets")
    elif job.efa and efa == 0:
        yield Problem(host.name, "has no EFA device: start it with EFA interfaces, or take --net sockets")
    if not job.efa or efa == 0:
        return
    if first(host, "memlock") != "unlimited":
        yield Problem(host.name, f"locked memory is limited to {first(host, 'memlock')} KiB, which EFA reports as \"(-12) Cannot "
                                 "allocate memory\": set memlock to unlimited in /etc/security/limits.conf")
    if "nccl_plugin" not in host.facts:
        yield Problem(host.name, "libnccl-net.so (aws-ofi-nccl) is not in LD_LIBRARY_PATH: install the EFA software")
    libfabric = first(host, "libfabric", "missing")
    if libfabric == "missing" or version(libfabric) < OLDEST_LIBFABRIC:
        yield Problem(host.name, f"libfabric is {libfabric}, at least {'.'.join(map(str, OLDEST_LIBFABRIC))} is needed: install newer EFA software")


def check_limits(host, hosts, job):
    shared_memory, files = number(host, "shared_memory"), number(host, "open_files")
    if shared_memory is not None and shared_memory < LEAST_SHARED_MEMORY:
        yield Problem(host.name, f"/dev/shm has {shared_memory // 1024} MiB, at least 1024 are needed: mount -o remount,size=8G /dev/shm, "
                                 "or start the container with --shm-size 8g")
    if files is not None and files < LEAST_OPEN_FILES:
        yield Problem(host.name, f"{files} open files are allowed, at least {LEAST_OPEN_FILES} are needed: ulimit -n 65536")


def check_storage(host, hosts, job):
    disk = number(host, "free_disk")
    if disk is not None and disk < LEAST_DISK:
        yield Problem(host.name, f"{job.run_dir} has {disk // 1024} MiB free, at least 1024 are needed: make room, or choose another run.dir", DATA)
    if job.dataset and "dataset" not in host.facts:
        yield Problem(host.name, f"cannot read {job.dataset}: copy it there, or put it on storage that all hosts share", DATA)
    elif job.dataset and first(host, "dataset") != first(hosts[0], "dataset"):
        yield Problem(host.name, f"{job.dataset} is not the file of {hosts[0].name}: copy that one there", DATA)
    if "not_shared" in host.facts:
        yield Problem(host.name, f"{job.run_dir} is not the folder of {hosts[0].name}: put run.dir on storage that all hosts share", DATA)


def check_variables(host, hosts, job):
    for name in sorted(set(host.facts.get("variable", []))):
        for pattern, why in HARMFUL:
            if re.fullmatch(pattern, name) and name not in job.allowed:
                yield Problem(host.name, f"{name} is set, and {why}: unset it, or start with --allow {name}")


CHECKS = [check_program, check_open_mpi, check_name, check_gpus, check_efa, check_limits, check_storage, check_variables]


def problems(hosts, job):
    return [problem for host in hosts for check in CHECKS for problem in check(host, hosts, job)]


def notes(hosts, job):
    """What is worth a line, but no reason not to start."""
    unknown = sorted({first(host, "machine") for host in hosts if first(host, "machine")} - set(job.instances))
    if unknown and job.uses_gpus and any("gpu" in host.facts for host in hosts):
        yield f"{', '.join(unknown)}: not in launch/instances.json, so GPUs and EFA devices are not compared with what they should be"
    if job.efa:
        yield f"libfabric {first(hosts[0], 'libfabric')}, network plugin {first(hosts[0], 'nccl_plugin')}"
