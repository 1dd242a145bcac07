"""The GPUs of a node, and its price, by launch/instances.json or as given."""
from errors import CONFIG, Failure
from instances import doubts, estimated_gpu, machine_type, words_of


def gpu_of(request):
    """The GPU's name for `tandem estimate --gpu`."""
    if request.gpu or not request.instance:
        return request.gpu or "none"
    machine = machine_type(request.instance)
    gpu = estimated_gpu(machine)
    if not gpu:
        raise Failure(CONFIG, f"--instance {request.instance}: `tandem estimate` knows no {machine['gpu']} with {machine['gpu_memory_mib']} MiB; "
                              "say with --gpu which of its GPUs is the nearest")
    return gpu


def node_size_of(request):
    size = request.node_size or (machine_type(request.instance)["gpus"] if request.instance else 0)
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
        price = machine_type(request.instance)["usd_per_hour"][request.price]
        if price:
            doubt = doubts(price)
            return {"usd_per_node_hour": price["usd"],
                    "basis": f"{request.instance}, {words_of(request.price)}, price of {price['date']}{'; ' * bool(doubt)}{doubt}"}
        if request.max_dollars is not None or request.price != "on_demand":
            raise Failure(CONFIG, f"launch/instances.json has no {request.price} price of {request.instance}; "
                                  "give --usd-per-node-hour")
    if request.max_dollars is not None:
        raise Failure(CONFIG, "--max-dollars needs a price: give --instance or --usd-per-node-hour")
    return None
