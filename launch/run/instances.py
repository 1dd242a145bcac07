"""What launch/instances.json knows of machine types, and of their prices."""
import datetime
import json
import os

from errors import CONFIG, Failure

TABLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "instances.json")
MARKETS = ["on_demand", "spot", "capacity_block", "sagemaker"]
# (GPU, MiB) of a machine type -> the name that `tandem estimate --gpu` has for it.
ESTIMATED_GPUS = {("A100", 40960): "a100-40", ("A100", 81920): "a100-80", ("H100", 81920): "h100", ("H200", 144384): "h200",
                  ("A10G", 22888): "a10g", ("L4", 22888): "l4", ("L40S", 45776): "l40s"}
OLD_DAYS = 180  # a price of more days than these is doubtful: that of a P4d fell by a third in June 2025


def machine_types():
    """{"p4d.24xlarge": {"gpus": 8, ...}, ...}"""
    with open(TABLE, encoding="utf-8") as file:
        return json.load(file)["types"]


def machine_type(name, option="--instance"):
    types = machine_types()
    if name not in types:
        raise Failure(CONFIG, f"{option} {name} is not in launch/instances.json, which has {', '.join(types)}")
    return types[name]


def estimated_gpu(machine):
    """The name of its GPU for `tandem estimate --gpu`, or None."""
    return ESTIMATED_GPUS.get((machine["gpu"], machine["gpu_memory_mib"]))


def words_of(market):
    return market.replace("_", " ")


def doubts(price):
    """Why a price of launch/instances.json may be wrong by now, or ""."""
    age = (datetime.date.today() - datetime.date.fromisoformat(price["date"])).days
    return f"the price of {price['date']} is {age} days old: look at AWS's, and mend launch/instances.json" if age > OLD_DAYS else ""
