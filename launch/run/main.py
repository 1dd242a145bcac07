"""launch/run.sh: starts `tandem train` on the hosts of a job. This file says in which order things happen."""
import argparse
import json
import os
import secrets
import shlex
import sys
import tempfile
import time

import checks
import nodes
from command import environment
from errors import CONFIG, DATA, STOPPED, TEMPORARY, Failure, say
from hosts import Host, Platform
from job import Job, end_before_start, meaning, on_stop
from nccl_log import PATTERN, NcclLog
from settings import read_settings

LAUNCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOES_ON = (TEMPORARY, STOPPED)  # and what signals have ended
RANK_SCRIPT = os.path.join(LAUNCH, "rank.sh")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Failure(CONFIG, f"{message}; --help shows all options, and what is trained stands after --")


def options(arguments):
    parser = Parser(prog="launch/run.sh", usage="launch/run.sh [options] -- train [--section.key VALUE ...]", allow_abbrev=False,
                    description="Starts a training job on all of its hosts, after checks that find what is wrong with them.")
    parser.add_argument("--platform", default="auto", help="auto, or one of launch/platforms (auto)")
    parser.add_argument("--hostfile", default="", help="a file with a line HOST slots=RANKS for each host")
    parser.add_argument("--hosts", default="", help="the same as a list: a:8,b:8")
    parser.add_argument("--tandem", default=os.path.join(os.path.dirname(LAUNCH), "build", "tandem"), help="the program (build/tandem)")
    parser.add_argument("--wait", type=whole, default=300, metavar="S", help="seconds for the hosts to answer (300)")
    parser.add_argument("--grace", type=whole, default=110, metavar="S", help="seconds from a request to stop until all is killed (110)")
    parser.add_argument("--net", choices=["auto", "efa", "sockets"], default="auto", help="what NCCL uses between hosts (auto)")
    parser.add_argument("--min-hosts", type=whole, default=0, metavar="N", help="go on with N hosts or more if others are silent")
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help="an environment variable that the checks refuse")
    parser.add_argument("--print", action="store_true", help="show the command, start nothing")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = parser.parse_args(arguments[:split])
    chosen.job = arguments[split + 1:]
    if chosen.job[:1] != ["train"]:
        raise Failure(CONFIG, "nothing to start: end with `-- train --config FILE ...`")
    if chosen.hosts and chosen.hostfile:
        raise Failure(CONFIG, "--hosts and --hostfile: give one of them")
    chosen.tandem = os.path.abspath(chosen.tandem)
    if not os.access(chosen.tandem, os.X_OK):
        raise Failure(CONFIG, f"{chosen.tandem} is not there: build it with launch/build.sh, or name it with --tandem")
    return chosen


def whole(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number")
    return int(text)


def rank_count(hosts, all_hosts, batch):
    """All slots; with fewer hosts than asked for, the most of them that share the global batch evenly."""
    ranks = sum(host.slots for host in hosts)
    if len(hosts) == len(all_hosts):
        return ranks
    return next(count for count in range(ranks, 0, -1) if batch % count == 0)


def network(hosts, net, uses_gpus):
    if len(hosts) == 1 or not uses_gpus:
        return ""
    has_efa = any(checks.number(host, "efa") for host in hosts)
    return net if net != "auto" else "efa" if has_efa else "sockets"


def least_bandwidth(hosts, instances):
    """GB/s that an all_reduce must reach on these hosts by launch/instances.json; None if it does not say."""
    types = {checks.first(host, "machine") for host in hosts}
    known = instances.get(types.pop()) if len(types) == 1 else None
    return known["bus_gb_s"][{1: "1", 2: "2"}.get(len(hosts), "4")] if known else None


def examine(platform, hosts, job):
    """Prints all that is wrong with the hosts, and ends if anything is."""
    if len(hosts) > 1 and "/" not in platform.shared():
        nodes.find_unshared(platform, hosts, job.run_dir)
    here = Host("this machine", facts={"variable": list(os.environ)})
    found = checks.problems(hosts, job) + list(checks.check_variables(here, hosts, job))
    if found:
        raise Failure(CONFIG if any(problem.code == CONFIG for problem in found) else DATA,
                      *dict.fromkeys(f"{problem.host}: {problem.text}" for problem in found))
    for line in checks.notes(hosts, job):
        say(line)


def command_of(platform, ranks, hosts, chosen, hostfile):
    with open(hostfile, "w", encoding="utf-8") as file:
        file.writelines(f"{host.name} slots={host.slots}\n" for host in hosts)
    return [*platform.launcher(ranks, hostfile), RANK_SCRIPT, chosen.tandem, *chosen.job]


def show(command, env, hostfile):
    with open(hostfile, encoding="utf-8") as file:
        print("".join(f"# {line}" for line in file), end="")
    changed = [f"{name}={value}" for name, value in sorted(env.items()) if os.environ.get(name) != value]
    print(shlex.join(["env", *changed, *command]))


def empty_folder(folder):
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))


def main(arguments):
    chosen = options(arguments)
    settings = read_settings(chosen.tandem, chosen.job[1:])
    with open(os.path.join(LAUNCH, "instances.json"), encoding="utf-8") as file:
        instances = json.load(file)["types"]

    # Which hosts there are, and what they say of themselves.
    platform = Platform(chosen.platform, chosen.hosts, chosen.hostfile)
    all_hosts = platform.hosts()
    hosts = nodes.ask_all(platform, all_hosts, [chosen.tandem, RANK_SCRIPT, settings["data.path"], settings["run.dir"]], chosen.wait,
                          chosen.min_hosts)
    for host in hosts:
        host.slots = host.slots or max(1, len(host.facts.get("gpu", [])))

    # What follows from that.
    ranks = rank_count(hosts, all_hosts, int(settings["train.global_batch"]))
    uses_gpus = settings["run.device"] != "cpu" and any("gpu" in host.facts for host in hosts)
    net = network(hosts, chosen.net, uses_gpus)
    least = least_bandwidth(hosts, instances) if uses_gpus else None
    if least and float(settings["dist.min_gb_s"]) == 0:
        chosen.job += ["--dist.min_gb_s", str(least)]
    logs = os.path.join(settings["run"], "nccl") if net == "efa" else ""
    identity = secrets.token_hex(8)
    env = environment(hosts, net, logs and os.path.join(logs, PATTERN), identity)

    if not chosen.print:
        examine(platform, hosts, checks.Job(instances, chosen.tandem, settings["data.path"], settings["run.dir"], uses_gpus, net == "efa",
                                            chosen.allow))
    with tempfile.TemporaryDirectory(prefix="tandem-run-") as folder:
        hostfile = os.path.join(folder, "hosts")
        command = command_of(platform, ranks, hosts, chosen, hostfile)
        if chosen.print:
            show(command, env, hostfile)
            return 0
        watch = no_watch
        if logs:
            empty_folder(logs)
            watch = NcclLog(logs, ranks, instances.get(checks.first(hosts[0], "machine"), {}).get("efa", 0)).watch
        say(f"{ranks} rank{'s' * (ranks != 1)} on {', '.join(host.name for host in hosts)} ({platform.name})")
        began, started = time.monotonic(), os.path.join(folder, "started")
        env["TANDEM_STARTED"] = started  # for rank.sh
        code = Job(command, env, chosen.grace, lambda: nodes.end_job(platform, hosts, identity)).wait(watch)
        if code == 0 and platform.name == "slurm" and not os.path.exists(started):
            say("srun ended with 0, but has started no rank here: see its lines above")
            code = TEMPORARY
    again = "; the same command goes on from the newest checkpoint" if code in GOES_ON or code > 128 else ""
    say(f"ended with {code} ({meaning(code)}) after {time.monotonic() - began:.0f} s{again}")
    return code


def no_watch():
    """Nothing to see."""


if __name__ == "__main__":
    on_stop(end_before_start)
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        for line in failure.lines:
            say(line)
        sys.exit(failure.code)
