"""The fields of an MPIJob that launch/eks/render.py uses: what the MPI Operator and Kubernetes say of them, and which must
agree. Anything else is a mistake."""
import re

# A value is described by a type, a pattern for text, a set of allowed values, a list [of what], a dict of fields, or ANY of
# these. `optional` fields may be missing.
ANY = "any name"
QUANTITY = r"[1-9]\d*(Mi|Gi)?"
RESOURCES = {ANY: (int, QUANTITY)}
EXPRESSION = {"key": r"[a-z.]+/[-a-z]+", "operator": {"In", "DoesNotExist"}, "optional": {"values": [str]}}
CONTAINER = {
    "name": r"[a-z]+", "image": r"\S+", "command": [str], "volumeMounts": [{"name": r"[-a-z0-9]+", "mountPath": r"/[^:]*"}],
    "resources": {"limits": RESOURCES, "requests": RESOURCES},
    "optional": {
        "env": [{"name": r"[A-Z_]+", "value": str}], "workingDir": r"/.*", "ports": [{"containerPort": int}],
        "startupProbe": {"tcpSocket": {"port": int}, "periodSeconds": int, "failureThreshold": int},
    },
}
POD = {
    "containers": [CONTAINER],
    "volumes": [{"name": r"[-a-z0-9]+", "optional": {"persistentVolumeClaim": {"claimName": r"[-.a-z0-9]+"},
                                                     "emptyDir": {"medium": {"Memory"}, "sizeLimit": QUANTITY}}}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]}}},
    "tolerations": [{"key": str, "operator": {"Exists"}, "effect": {"NoSchedule"}}],
    "securityContext": {"runAsUser": int, "runAsGroup": int, "runAsNonRoot": bool},
    "terminationGracePeriodSeconds": int,
}
LABELS = {ANY: r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"}
REPLICA = {"replicas": int, "restartPolicy": {"Never", "OnFailure"}, "template": {"metadata": {"labels": LABELS}, "spec": POD}}
MPIJOB = {
    "apiVersion": {"kubeflow.org/v2beta1"}, "kind": {"MPIJob"},
    "metadata": {"name": r"[a-z]([-a-z0-9]*[a-z0-9])?", "labels": LABELS},
    "spec": {
        "slotsPerWorker": int, "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"}, "mpiImplementation": {"OpenMPI"},
        "sshAuthMountPath": r"/.+/\.ssh", "runPolicy": {"cleanPodPolicy": {"Running", "All", "None"}, "backoffLimit": int},
        "mpiReplicaSpecs": {"Launcher": REPLICA, "Worker": REPLICA},
    },
}


def fits(value, wanted, place=""):
    """A line for each way in which a value is not as described."""
    if isinstance(wanted, tuple):
        tries = [list(fits(value, each, place)) for each in wanted]
        yield from [] if [] in tries else tries[-1]
    elif isinstance(wanted, type):
        if type(value) is not wanted or (wanted is int and value < 0):
            yield f"{place}: {value!r} is not {'a count' if wanted is int else wanted.__name__}"
    elif isinstance(wanted, set):
        if value not in wanted:
            yield f"{place}: {value!r} is not one of {sorted(wanted)}"
    elif isinstance(wanted, str):
        if not isinstance(value, str) or not re.fullmatch(wanted, value):
            yield f"{place}: {value!r} does not match {wanted}"
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            yield f"{place}: is no list"
            return
        for i, each in enumerate(value):
            yield from fits(each, wanted[0], f"{place}[{i}]")
    elif not isinstance(value, dict):
        yield f"{place}: is no object"
    elif ANY in wanted:
        for name, each in value.items():
            yield from fits(each, wanted[ANY], f"{place}.{name}")
    else:
        optional = wanted.get("optional", {})
        for name, each in value.items():
            if name == "optional" or name not in {**wanted, **optional}:
                yield f"{place}.{name}: there is no such field"
            else:
                yield from fits(each, wanted.get(name, optional.get(name)), f"{place}.{name}")
        yield from (f"{place}.{name}: is missing" for name in wanted if name != "optional" and name not in value)


def disagreements(job):
    """What Kubernetes and the operator would refuse, or wait for without end, though every field is well."""
    spec = job["spec"]
    replicas = spec["mpiReplicaSpecs"]
    if replicas["Launcher"]["replicas"] != 1:
        yield "the launcher is not one"
    for name, replica in replicas.items():
        pod = replica["template"]["spec"]
        if len(pod["containers"]) != 1:
            yield f"{name}: the operator looks at the first container alone"
        [container] = pod["containers"][:1]
        volumes = [volume["name"] for volume in pod["volumes"]]
        if len(set(volumes)) < len(volumes):
            yield f"{name}: two volumes have one name"
        mounted = [mount["name"] for mount in container["volumeMounts"]]
        yield from (f"{name}: {mount} is no volume" for mount in mounted if mount not in volumes)
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        for resource in {**limits, **requests}:
            if ("/" in resource or resource.startswith("hugepages")) and limits.get(resource) != requests.get(resource):
                yield f"{name}: {resource}: limit and request differ"
        if pod["securityContext"]["runAsNonRoot"] != (pod["securityContext"]["runAsUser"] != 0):
            yield f"{name}: runAsNonRoot and runAsUser differ"
    container = replicas["Worker"]["template"]["spec"]["containers"][0]
    if container["resources"]["limits"].get("nvidia.com/gpu") != spec["slotsPerWorker"]:
        yield "a worker has not a GPU for each slot"
    if container["startupProbe"]["tcpSocket"]["port"] not in [port["containerPort"] for port in container["ports"]]:
        yield "the probe asks another port than sshd's"
    if spec["launcherCreationPolicy"] != "WaitForWorkersReady":
        yield "the launcher does not wait for the workers"  # the operator's own schema misses such a value


def problems(job):
    found = list(fits(job, MPIJOB))
    return found or list(disagreements(job))
