#!/usr/bin/env python3
"""Prints an MPIJob (kubeflow.org/v2beta1) that trains on whole machines, as JSON, which kubectl reads like YAML.
    launch/eks/render.py --instance p4d.24xlarge --nodes 4 --image URI -- train --config configs/gpt2_124m.cfg \\
        --data.path /fsx/docs.h5 --run.dir /fsx/runs | kubectl apply -f -
"""
import json
import os
import re
import sys

LAUNCH = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(LAUNCH, "run"))
from command_line import Parser, REPOSITORY, like, run_script, settings_in, whole
from errors import CONFIG, Failure
from instances import machine_types

IN_IMAGE = "/opt/tandem"  # where launch/docker/Dockerfile puts the program and these scripts
USER, SSH_PORT = 1000, 2222  # the image's user, and the port of worker.sh's sshd
HUGE_PAGES = "5120Mi"  # what EFA needs; the machine images of EKS and HyperPod set 10 GiB aside
SHARED_MEMORY = "8Gi"
HEALTH = "sagemaker.amazonaws.com/node-health-status"  # a label of HyperPod
# Folders that a pod has; a claim there or above would hide what is in them.
TAKEN = ["/bin", "/dev", "/etc", "/home/tandem", "/lib", "/lib64", IN_IMAGE, "/proc", "/root", "/sbin", "/sys", "/usr"]
REGISTRY = r"(([a-zA-Z0-9-]+\.)[a-zA-Z0-9.-]+(:[0-9]{1,5})?/|[a-zA-Z0-9-]+:[0-9]{1,5}/)?"
PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
WORD = "[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
LABEL = rf"((?=[^/]{{1,253}}/){PART}(\.{PART})*/)?{WORD}=({WORD})?"
CLAIM = rf"(?=[^:]{{1,253}}:){PART}(\.{PART})*:(/[^/:]+)+"


def options(arguments, types):
    parser = Parser(usage="launch/eks/render.py [options] -- train [--section.key VALUE ...]", allow_abbrev=False,
                    description="Prints an MPIJob that trains on whole machines; pipe it into kubectl apply -f -")
    parser.add_argument("--instance", required=True, help="a type of launch/instances.json; HyperPod's ml. may stand before it")
    parser.add_argument("--nodes", required=True, type=whole(1, 5000), help="machines, with a rank for each GPU")
    parser.add_argument("--image", required=True, type=like(REGISTRY + REPOSITORY, "registry.example.com/tandem:1", 255),
                        help="an image of launch/docker, as a registry names it")
    parser.add_argument("--name", default="tandem", type=like("[a-z]([-a-z0-9]*[a-z0-9])?", "my-job-1", 63), help="of the MPIJob (tandem)")
    parser.add_argument("--volume", action="append", type=like(CLAIM, "fsx:/fsx", 4096), metavar="CLAIM:/FOLDER",
                        help="a claim, and where it is (fsx:/fsx)")
    parser.add_argument("--label", action="append", type=like(LABEL, "team=vision", 400), default=[], metavar="KEY=VALUE",
                        help="of the MPIJob and of its pods; may be repeated")
    parser.add_argument("--net", choices=["efa", "sockets"], default="efa", help="what NCCL uses between machines (efa)")
    parser.add_argument("--wait", type=whole(0), default=1800, metavar="S", help="seconds for workers to come (1800)")
    parser.add_argument("--grace", type=whole(0), default=110, metavar="S", help="seconds to save in before pods end (110)")
    parser.add_argument("--retries", type=whole(0), default=6, metavar="N", help="new starts after failures, evictions (6)")
    parser.add_argument("--root", action="store_true", help="as root, for volumes where the image's user 1000 cannot write")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = parser.parse_args(arguments[:split])
    chosen.job = arguments[split + 1:]
    chosen.volumes = [tuple(volume.split(":", 1)) for volume in chosen.volume or ["fsx:/fsx"]]
    chosen.labels = dict(label.split("=", 1) for label in chosen.label)
    chosen.type = chosen.instance.removeprefix("ml.")
    for wrong in mistakes(chosen, types):
        raise Failure(CONFIG, wrong)
    return chosen


def mistakes(chosen, types):
    """What is wrong with the arguments together."""
    last_pod = f"{chosen.name}-worker-{chosen.nodes - 1}"
    folders = [folder for _, folder in chosen.volumes]
    run_dir = os.path.normpath(dict(settings_in(chosen.job)).get("run.dir") or ".")
    no_efa = chosen.net == "efa" and not types.get(chosen.type, {}).get("efa")
    for folder in folders:
        if os.path.normpath(folder) != folder or any(below(folder, taken) or below(taken, folder) for taken in TAKEN):
            yield f"--volume {folder}: must be a folder that a pod does not have, as /fsx, without . and .."
    yield from (line for is_wrong, line in [
        (chosen.type not in types, f"--instance {chosen.instance}: launch/instances.json has {', '.join(types)}"),
        (no_efa, f"--net efa: a {chosen.type} has no EFA, take --net sockets"),
        (len(last_pod) > 63, f"--name {chosen.name}: {last_pod} would be the name of a pod, and has more than 63 letters"),
        (len(chosen.labels) < len(chosen.label), "--label: a key stands twice"),
        (len(set(folders)) < len(folders), "--volume: two have one folder"),
        (chosen.job[:1] != ["train"], "nothing to start: end with `-- train --config FILE ...`"),
        (not any(below(run_dir, folder) for folder in folders),
         f"train needs --run.dir below {' or '.join(folders)}: other folders end with their pods"),
    ] if is_wrong)


def below(path, folder):
    return path == folder or path.startswith(folder + "/")


def healthy(*also):
    """Nodes that HyperPod calls healthy, or that do not belong to HyperPod and have no such label."""
    states = [{"key": HEALTH, "operator": "In", "values": ["Schedulable"]}, {"key": HEALTH, "operator": "DoesNotExist"}]
    terms = [{"matchExpressions": [state, *also]} for state in states]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def replica(chosen, count, container, volumes, affinity):
    names = {claim: f"volume-{i}" for i, (claim, _) in enumerate(chosen.volumes)}
    container["image"] = chosen.image
    container["volumeMounts"] = [*container.get("volumeMounts", []),
                                 *({"name": names[claim], "mountPath": folder} for claim, folder in chosen.volumes)]
    claims = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in names.items()]
    user = 0 if chosen.root else USER
    spec = {
        "containers": [container],
        "volumes": [*volumes, *claims],
        "affinity": affinity,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": {"runAsUser": user, "runAsGroup": user, "runAsNonRoot": user != 0},
        # The ranks are asked to save at once, and killed after --grace; then all of this must still end.
        "terminationGracePeriodSeconds": chosen.grace + 20,
    }
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"metadata": {"labels": chosen.labels}, "spec": spec}}


def worker(chosen, machine):
    # Whole machines. Kubernetes and its helpers need some of the memory, and of the 4 processors that the smallest types have.
    everything = {"nvidia.com/gpu": machine["gpus"], "memory": f"{machine['host_memory_gib'] * 4 // 5}Gi"}
    if chosen.net == "efa":
        everything |= {"vpc.amazonaws.com/efa": machine["efa"], "hugepages-2Mi": HUGE_PAGES}
    container = {
        "name": "worker",
        "command": [f"{IN_IMAGE}/launch/eks/worker.sh"],
        "env": [{"name": "TANDEM_GRACE", "value": str(chosen.grace)}],
        "ports": [{"containerPort": SSH_PORT}],
        "startupProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 2, "failureThreshold": 150},
        "resources": {"limits": everything, "requests": {**everything, "cpu": 3 * machine["gpus"]}},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    shared_memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
    kind = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [chosen.type, "ml." + chosen.type]}
    return replica(chosen, chosen.nodes, container, [shared_memory], healthy(kind))


def launcher(chosen):
    """A small pod without a GPU: it is no rank, so no eviction of a rank takes it along."""
    small = {"cpu": 1, "memory": "4Gi"}
    container = {
        "name": "launcher",
        "command": [f"{IN_IMAGE}/launch/run.sh", "--platform", "kubernetes", "--net", chosen.net, "--wait", str(chosen.wait),
                    "--grace", str(chosen.grace), "--", *(word.replace("$", "$$") for word in chosen.job)],  # Kubernetes reads $$ as $
        "workingDir": IN_IMAGE,
        "resources": {"limits": {"memory": small["memory"]}, "requests": small},
    }
    return replica(chosen, 1, container, [], healthy())


def manifest(chosen, machine):
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": chosen.name, "labels": chosen.labels},
        "spec": {
            "slotsPerWorker": machine["gpus"],
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": "/root/.ssh" if chosen.root else "/home/tandem/.ssh",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": chosen.retries},
            "mpiReplicaSpecs": {"Launcher": launcher(chosen), "Worker": worker(chosen, machine)},
        },
    }


def main(arguments):
    types = machine_types()
    chosen = options(arguments, types)
    print(json.dumps(manifest(chosen, types[chosen.type]), indent=2))


if __name__ == "__main__":
    run_script("render", main)
