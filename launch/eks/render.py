#!/usr/bin/env python3
"""Prints an MPIJob (kubeflow.org/v2beta1) that trains on whole machines, as JSON, which kubectl reads like YAML.
    launch/eks/render.py --instance p4d.24xlarge --nodes 4 --image URI -- train --config configs/gpt2_124m.cfg \\
        --data.path /fsx/docs.h5 --run.dir /fsx/runs | kubectl apply -f -
"""
import argparse
import json
import os
import re
import sys

LAUNCH = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
IN_IMAGE = "/opt/tandem"  # where launch/docker/Dockerfile puts the program and these scripts
USER, SSH_PORT = 1000, 2222  # of the image, and of worker.sh
HUGE_PAGES = "5120Mi"  # what EFA needs; the machine images of EKS and HyperPod set 10 GiB aside
SHARED_MEMORY = "8Gi"
HEALTH = "sagemaker.amazonaws.com/node-health-status"  # a label of HyperPod


class Parser(argparse.ArgumentParser):
    def error(self, message):
        sys.exit(refuse(message))


def refuse(message):
    print(f"render: {message}", file=sys.stderr)
    return 2


def options(arguments, types):
    parser = Parser(usage="launch/eks/render.py [options] -- train [--section.key VALUE ...]", allow_abbrev=False,
                    description="Prints an MPIJob that trains on whole machines; pipe it into kubectl apply -f -")
    parser.add_argument("--instance", required=True, help="a type of launch/instances.json; HyperPod's ml. may stand before it")
    parser.add_argument("--nodes", required=True, type=whole, help="machines, with a rank for each GPU")
    parser.add_argument("--image", required=True, help="an image of launch/docker, as a registry names it")
    parser.add_argument("--name", default="tandem", help="of the MPIJob (tandem)")
    parser.add_argument("--volume", action="append", metavar="CLAIM:/FOLDER", help="a claim, and where it is (fsx:/fsx)")
    parser.add_argument("--net", choices=["efa", "sockets"], default="efa", help="what NCCL uses between machines (efa)")
    parser.add_argument("--wait", type=whole, default=1800, metavar="S", help="seconds for workers to come (1800)")
    parser.add_argument("--grace", type=whole, default=110, metavar="S", help="seconds to save in before pods end (110)")
    parser.add_argument("--retries", type=whole, default=6, metavar="N", help="new starts after failures, evictions (6)")
    parser.add_argument("--root", action="store_true", help="as root, for volumes where the image's user 1000 cannot write")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = parser.parse_args(arguments[:split])
    chosen.job = arguments[split + 1:]
    chosen.volumes = [tuple(volume.split(":", 1)) for volume in chosen.volume or ["fsx:/fsx"]]
    chosen.type = chosen.instance.removeprefix("ml.")
    wrong = mistake(chosen, types)
    if wrong:
        parser.error(wrong)
    return chosen


def whole(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number")
    return int(text)


def mistake(chosen, types):
    """What is wrong with the arguments, or None."""
    last_pod = f"{chosen.name}-worker-{chosen.nodes - 1}"
    if chosen.type not in types:
        return f"--instance {chosen.instance}: launch/instances.json has {', '.join(types)}"
    if chosen.nodes < 1:
        return "--nodes 0: at least 1 is needed"
    if chosen.net == "efa" and not types[chosen.type]["efa"]:
        return f"--net efa: a {chosen.type} has no EFA, take --net sockets"
    if not chosen.image or re.search(r"\s", chosen.image):
        return f"--image '{chosen.image}': must be the name of an image"
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", chosen.name) or len(last_pod) > 63:
        return f"--name {chosen.name}: must be lower-case letters, digits and '-', and {last_pod} at most 63 characters"
    for volume in chosen.volumes:
        if not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?:/[^:]+", ":".join(volume)):
            return f"--volume {':'.join(volume)}: must be CLAIM:/FOLDER, as fsx:/fsx"
    folders = [os.path.normpath(folder) for _, folder in chosen.volumes]
    if len(set(folders)) < len(folders):
        return "--volume: two have one folder"
    if chosen.job[:1] != ["train"]:
        return "nothing to start: end with `-- train --config FILE ...`"
    run_dir = os.path.normpath(run_folder(chosen.job))
    if not any(run_dir == folder or run_dir.startswith(folder + "/") for folder in folders):
        return f"train needs --run.dir below {' or '.join(folders)}: other folders end with their pods"
    return None


def run_folder(words):
    """The value of --run.dir; nothing for a pod's own folders."""
    found = "."
    for i, word in enumerate(words):
        if word.startswith("--run.dir="):
            found = word.partition("=")[2]
        elif word == "--run.dir":
            found = words[i + 1] if i + 1 < len(words) else "."
    return found


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
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}}


def worker(chosen, machine):
    # Whole machines. Kubernetes and its helpers need some of the memory and of the processors.
    everything = {"nvidia.com/gpu": machine["gpus"], "memory": f"{machine['host_memory_gib'] * 4 // 5}Gi"}
    if chosen.net == "efa":
        everything |= {"vpc.amazonaws.com/efa": machine["efa"], "hugepages-2Mi": HUGE_PAGES}
    container = {
        "name": "worker",
        "command": [f"{IN_IMAGE}/launch/eks/worker.sh"],
        "env": [{"name": "TANDEM_GRACE", "value": str(chosen.grace)}],
        "ports": [{"containerPort": SSH_PORT}],
        "startupProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 2, "failureThreshold": 150},
        "resources": {"limits": everything, "requests": {**everything, "cpu": 4 * machine["gpus"]}},
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
                    "--grace", str(chosen.grace), "--", *chosen.job],
        "workingDir": IN_IMAGE,
        "resources": {"limits": {"memory": small["memory"]}, "requests": small},
    }
    return replica(chosen, 1, container, [], healthy())


def manifest(chosen, machine):
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": chosen.name},
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
    with open(os.path.join(LAUNCH, "instances.json"), encoding="utf-8") as file:
        types = json.load(file)["types"]
    chosen = options(arguments, types)
    json.dump(manifest(chosen, types[chosen.type]), sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
