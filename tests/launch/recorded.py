"""What hosts and programs say, for tests of run.sh."""
# NCCL and aws-ofi-nccl on a p4d.24xlarge with NCCL_DEBUG=INFO, shortened: rank 0 of 2 hosts, one rank on each.
NCCL_LOG = """a:7:7 [0] NCCL INFO NCCL version 2.27.7+cuda12.9
a:7:9 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.16.3
a:7:9 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)
a:7:9 [0] NCCL INFO Using network AWS Libfabric
a:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA
a:7:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 101c0 commId 0x9 - Init COMPLETE
"""
# A p4d.24xlarge with which nothing is wrong.
GOOD = {"hostname": ["a"], "machine": ["p4d.24xlarge"], "cores": ["96"], "program": ["1"], "cuda": ["13"], "open_mpi": ["4.1.7"],
        "gpu": ["40960 580.95.05"] * 8, "fabric_manager": ["active"], "efa": ["4"], "nccl_plugin": ["/opt/libnccl-net.so"],
        "nccl_version": ["2.28.9"], "nccl_plugin_version": ["1.20.0"],
        "libfabric": ["2.1.0"], "memlock": ["unlimited"], "open_files": ["65536"], "shared_memory": ["8388608"], "dataset": ["9 1"],
        "free_disk": ["99999999"]}
