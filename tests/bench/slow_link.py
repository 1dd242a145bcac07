#!/usr/bin/env python3
"""How much communication is hidden by overlap over slow links. Prints a Markdown table, and writes the figures to a file.

    slow_link.py [--build build] [--nodes 4 8] [--rate 100mbit] [--zero 0 2 3] [--compute 0.5 1 2] [--json FILE]

Each node is a network namespace of this machine, with a rate-limited link to a common switch; mpirun starts one rank of
tandem_overlap_bench on each. It times backward and the reductions; for ZeRO-3 also forward and the gathers. The bound is
1.1 x max(compute, communication) + the time of the last bucket alone. Needs root, iproute2, the kernel's veth, bridge and tbf,
unshare, and Open MPI. The script removes its namespaces when it ends, and those of a killed run when it starts.
"""
import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

SUBNET = "10.77.0"
SWITCH = "tandem-switch"
COLUMNS = ("nodes", "rate", "ZeRO", "compute ms", "communication ms", "one after the other ms", "overlapped ms", "last bucket ms",
           "bound ms", "of bound", "communication hidden")


def run(command, **options):
    done = subprocess.run(command.split(), capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"slow_link.py: '{command}' failed: {done.stderr.strip()}")
    return done.stdout


def require_tools():
    missing = [tool for tool in ("ip", "tc", "unshare", "mpirun", "timeout") if not shutil.which(tool)]
    if missing:
        sys.exit(f"slow_link.py: not found: {', '.join(missing)} (Debian: iproute2, util-linux, openmpi-bin)")
    if os.geteuid() != 0:
        sys.exit("slow_link.py: network namespaces need root: run it with sudo")


def node_name(node):
    return f"tandem-node{node}"


@contextlib.contextmanager
def network(nodes, rate):
    """`nodes` namespaces with addresses 10.77.0.1, .2, ...; each sends and receives at `rate` at most."""
    remove_namespaces()
    try:
        run(f"ip netns add {SWITCH}")
        run(f"ip -n {SWITCH} link add name br0 mtu 9000 type bridge")
        run(f"ip -n {SWITCH} link set br0 up")
        for node in range(1, nodes + 1):
            add_node(node, rate)
        yield
    finally:
        remove_namespaces()


def add_node(node, rate):
    name, port = node_name(node), f"port{node}"
    run(f"ip netns add {name}")
    run(f"ip -n {SWITCH} link add {port} mtu 9000 type veth peer name eth0 mtu 9000 netns {name}")
    run(f"ip -n {SWITCH} link set {port} master br0 up")
    run(f"ip -n {name} address add {SUBNET}.{node}/24 dev eth0")
    run(f"ip -n {name} link set lo up")
    run(f"ip -n {name} link set eth0 up")
    # A burst of one frame: an idle link must not save up bandwidth for later, which would look like overlap.
    for namespace, device in ((SWITCH, port), (name, "eth0")):
        run(f"tc -n {namespace} qdisc add dev {device} root tbf rate {rate} burst 12kb limit 8mb")


def remove_namespaces():
    names = [line.split()[0] for line in run("ip netns list").splitlines() if line.startswith("tandem-")]
    for name in names:
        for process in run(f"ip netns pids {name}").split():
            try:
                os.kill(int(process), signal.SIGKILL)
            except ProcessLookupError:
                pass
    for name in names:
        run(f"ip netns delete {name}")


def mpirun(nodes, folder, arguments, seconds):
    """Runs one rank of the program on each node; returns what rank 0 printed."""
    agent = os.path.join(folder, "agent.sh")
    with open(agent, "w") as out:  # Open MPI calls this script as it would call ssh: address, command
        out.write('#!/bin/sh\naddress=$1; shift; node=${address##*.}\n'
                  'exec ip netns exec tandem-node$node unshare --uts -- sh -c "hostname node$node; $*"\n')
    os.chmod(agent, 0o755)
    hosts = os.path.join(folder, "hosts")
    with open(hosts, "w") as out:
        out.writelines(f"{SUBNET}.{node} slots=1\n" for node in range(1, nodes + 1))
    settings = {"plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": "1", "orte_tmpdir_base": folder, "pml": "ob1", "btl": "self,tcp",
                "btl_tcp_if_include": f"{SUBNET}.0/24", "oob_tcp_if_include": f"{SUBNET}.0/24",
                # Both are needed: otherwise all daemons bind their ranks to the same core, and ranks that wait spin.
                "hwloc_base_binding_policy": "none", "mpi_yield_when_idle": "1"}
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_WAIT_POLICY="passive",
                       **{f"OMPI_MCA_{key}": value for key, value in settings.items()})
    command = ["timeout", "-k", "5", str(seconds), "ip", "netns", "exec", node_name(1), "unshare", "--uts", "--", "sh", "-c",
               'hostname node1; exec "$@"', "sh", "mpirun", "--hostfile", hosts, "--map-by", "ppr:1:node", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"slow_link.py: {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def row(case):
    cells = [case["ranks"], case["rate"], case["zero"], *(f"{case[key]:.1f}" for key in (
        "compute_ms", "communication_ms", "in_turn_ms", "overlapped_ms", "last_bucket_ms", "bound_ms")),
        f"{case['of_bound']:.2f}", f"{100 * case['hidden']:.0f} %"]
    return "| " + " | ".join(map(str, cells)) + " |"


def measure(options, folder):
    program = os.path.abspath(os.path.join(options.build, "tandem_overlap_bench"))
    if not os.path.exists(program):
        sys.exit(f"slow_link.py: there is no {program}: build the target tandem_overlap_bench, or name the folder with --build")
    cases = []
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS), flush=True)
    for nodes in options.nodes:
        for rate in options.rate:
            with network(nodes, rate):
                for zero in options.zero:
                    for compute in options.compute:
                        arguments = [program, "--zero", str(zero), "--compute", str(compute), "--kib", str(options.kib),
                                     "--steps", str(options.steps)]
                        case = json.loads(mpirun(nodes, folder, arguments, options.timeout))
                        cases.append(dict(case, rate=rate))
                        print(row(cases[-1]), flush=True)
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with tandem_overlap_bench")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rate", nargs="+", default=["100mbit"], help="of each link and direction, as tc writes it")
    parser.add_argument("--zero", type=int, nargs="+", default=[0, 2, 3])
    parser.add_argument("--compute", type=float, nargs="+", default=[0.5, 1, 2], help="in multiples of the communication time")
    parser.add_argument("--kib", type=int, default=2048, help="of gradients in all, in 8 buckets")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one case")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    require_tools()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("slow_link.py: ended by a signal"))
    with socket.socket(socket.AF_UNIX) as lock, tempfile.TemporaryDirectory() as folder:
        try:
            lock.bind("\0tandem_slow_link")  # an abstract name: it ends with this process
        except OSError:
            sys.exit("slow_link.py: another one is running, and the namespaces have fixed names: wait for it")
        cases = measure(options, folder)
    if options.json:
        with open(options.json, "w") as out:
            out.write("\n".join(json.dumps(case) for case in cases) + "\n")


if __name__ == "__main__":
    main()
