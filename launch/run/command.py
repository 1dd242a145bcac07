"""The environment in which a job starts."""
import os
import re

from checks import number

# What the launcher gives to ranks on other hosts, besides Open MPI's own variables.
FORWARDED = re.compile(r"PATH|LD_LIBRARY_PATH|TMPDIR|TZ|CUDA_\w+|NCCL_\w+|FI_\w+|RDMAV_\w+|OMP_\w+|HDF5_\w+|TANDEM_\w+")
NOT_FOR_JOBS = "lo,docker0,veth_def_agent"


def environment(hosts, net, nccl_log, own):
    """os.environ and what a job needs; what the user has set stays. net: "efa", "sockets", or "" for a single host.
    nccl_log: the file pattern of NCCL's log, or "". own: variables of this job alone."""
    wanted = {
        # Open MPI carries start-up and small messages; it must not open EFA devices. A dead link is noticed within 8 s.
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,vader,tcp",
        "OMPI_MCA_btl_tcp_if_exclude": NOT_FOR_JOBS,
        "OMPI_MCA_oob_tcp_if_exclude": NOT_FOR_JOBS,
        "OMPI_MCA_oob_tcp_keepalive_time": "4",
        "OMPI_MCA_oob_tcp_keepalive_intvl": "2",
        "OMPI_MCA_oob_tcp_keepalive_probes": "2",
        # rank.sh binds, because only it knows the GPU.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_rmaps_base_mapping_policy": "slot",
        "NCCL_SOCKET_IFNAME": "^lo,docker,veth",
    }
    if os.geteuid() == 0:
        wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if any(host.slots > (number(host, "cores") or host.slots) for host in hosts):
        wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if net == "efa":
        # NCCL fails with this name rather than fall back to sockets; plugins before and after 1.13 take it.
        wanted |= {"NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "efa"}
    elif net == "sockets":
        wanted["NCCL_NET"] = "Socket"
    if nccl_log:
        wanted |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": nccl_log}
    result = {**wanted, **os.environ, **own}
    # Open MPI looks a name up, but then cuts a value with "=" in two; given NAME=VALUE, it cuts it only where a mark parts the list.
    words = sorted(f"{name}={value}" if "=" in value else name for name, value in result.items() if FORWARDED.fullmatch(name))
    mark = next(mark for mark in ";|,^\x1f" if not any(mark in word for word in words))
    result |= {"OMPI_MCA_mca_base_env_list": mark.join(words), "OMPI_MCA_mca_base_env_list_delimiter": mark}
    return result
