"""Machine types, from launch/instances.json, and the price of a node."""
import json
import os

from errors import CONFIG, Failure

from .options import ROOT

TABLE = os.path.join(ROOT, "launch", "instances.json")
# (GPU, MiB) of a machine type -> the name that `tandem estimate --gpu` has for it.
ESTIMATED_GPUS = {("A100", 40960): "a100-40", ("A100", 81920): "a100-80", ("H100", 81920): "h100", ("H200", 144384): "h200"}


def instance(name):
    """The entry of a machine type, with the date of the table."""
    with open(TABLE) as file:
        table = json.load(file)
    if name not in table["types"]:
        raise Failure(CONFIG, f"--instance {name} is not in launch/instances.json, which has {', '.join(table['types'])}")
    return dict(table["types"][name], updated=table["updated"])


def gpu_of(request):
    """The GPU's name for `tandem estimate --gpu`."""
    if request.gpu or not request.instance:
        return request.gpu or "none"
    entry = instance(request.instance)
    gpu = entry["gpu"], entry["gpu_memory_mib"]
    if gpu not in ESTIMATED_GPUS:
        raise Failure(CONFIG, f"--instance {request.instance}: `tandem estimate` knows no {gpu[0]} with {gpu[1]} MiB; "
                              "say with --gpu which of its GPUs is the nearest")
    return ESTIMATED_GPUS[gpu]


def node_size_of(request):
    size = request.node_size or (instance(request.instance)["gpus"] if request.instance else 0)
    if not size:
        if request.hosts or request.hostfile:
            raise Failure(CONFIG, "how many ranks has a node? Say --node-size N or --instance TYPE")
        return max(request.ranks)  # all ranks are on this machine
    for ranks in request.ranks:
        if ranks > size and ranks % size != 0:
            raise Failure(CONFIG, f"--ranks {ranks} is over one node of {size} and no multiple of it; "
                                  f"use {ranks // size * size} or {(ranks // size + 1) * size}")
    return size


def price_of(request):
    """{"usd_per_node_hour": ..., "basis": where from}, or None."""
    if request.usd_per_node_hour is not None:
        return {"usd_per_node_hour": request.usd_per_node_hour, "basis": "as given"}
    if request.instance:
        entry = instance(request.instance)
        usd = entry["usd_per_hour"][request.price]
        if usd is not None:
            return {"usd_per_node_hour": usd,
                    "basis": f"{request.instance}, {request.price.replace('_', ' ')}, prices of {entry['updated']}"}
        if request.max_dollars is not None or request.price != "on_demand":
            raise Failure(CONFIG, f"launch/instances.json has no {request.price} price of {request.instance}; "
                                  "give --usd-per-node-hour")
    if request.max_dollars is not None:
        raise Failure(CONFIG, "--max-dollars needs a price: give --instance or --usd-per-node-hour")
    return None
