"""launch/run.sh: starts `tandem train` on the hosts of a job. This file says in which order things happen."""
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import time

import checks
import flight
import nodes
from command import environment
from command_line import Parser, filled, whole
from errors import CONFIG, DATA, STOPPED, TEMPORARY, Failure, say
from hosts import Host, Platform
from instances import MARKETS, doubts, machine_types
from job import Job, end_before_start, meaning, on_stop
from nccl_log import PATTERN, NcclLog
from settings import read_settings, read_with_defaults

LAUNCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRIES = 3  # a launcher that ends with 0 before all ranks were started is called this often
RANK_SCRIPT = os.path.join(LAUNCH, "rank.sh")


def option_parser():
    parser = Parser(prog="launch/run.sh", usage="launch/run.sh [options] -- train [--section.key VALUE ...]", allow_abbrev=False,
                    description="Starts a training job on all of its hosts, after checks that find what is wrong with them.")
    parser.add_argument("--platform", default="auto", help="auto, or one of launch/platforms (auto)")
    parser.add_argument("--hostfile", type=filled, help="a file with a line HOST slots=RANKS for each host")
    parser.add_argument("--hosts", type=filled, help="the same as a list: a:8,b:8")
    parser.add_argument("--tandem", default=os.path.join(os.path.dirname(LAUNCH), "build", "tandem"), help="the program (build/tandem)")
    parser.add_argument("--wait", type=whole(0), default=300, metavar="S", help="seconds to wait for hosts, and for GPUs in use (300)")
    parser.add_argument("--grace", type=whole(0), default=110, metavar="S", help="seconds from a request to stop until all is killed (110)")
    parser.add_argument("--net", choices=["auto", "efa", "sockets"], default="auto", help="what NCCL uses between hosts (auto)")
    parser.add_argument("--min-hosts", type=whole(0), default=0, metavar="N", help="go on with N hosts or more if others are silent")
    parser.add_argument("--market", choices=MARKETS, default="on_demand", help="which price of the machine type the run counts (on_demand)")
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help="an environment variable that the checks refuse")
    parser.add_argument("--print", action="store_true", help="show the command, start nothing")
    return parser


def options(arguments):
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = option_parser().parse_args(arguments[:split])
    chosen.hosts, chosen.hostfile, chosen.job = chosen.hosts or "", chosen.hostfile or "", arguments[split + 1:]
    if chosen.job[:1] != ["train"]:
        raise Failure(CONFIG, "nothing to start: end with `-- train --config FILE ...`")
    if chosen.hosts and chosen.hostfile:
        raise Failure(CONFIG, "--hosts and --hostfile: give one of them")
    chosen.tandem = os.path.abspath(chosen.tandem)
    if not os.access(chosen.tandem, os.X_OK):
        raise Failure(CONFIG, f"{chosen.tandem} is not there: build it with launch/build.sh, or name it with --tandem")
    return chosen


def rank_count(hosts, all_hosts, batch, micro_batch, tensor):
    """All slots; with fewer hosts than asked for, the most that dist.tensor divides into groups that share the global batch
    evenly, in whole micro-batches of a size that is given (0: of any)."""
    ranks = sum(host.slots for host in hosts)
    if len(hosts) == len(all_hosts):
        return ranks
    if ranks < tensor:
        raise Failure(TEMPORARY, f"dist.tensor = {tensor} needs as many ranks, and the hosts that answered have {ranks}: start more hosts")
    shares = [groups for groups in range(ranks // tensor, 0, -1) if batch % (groups * max(micro_batch, 1)) == 0]
    return tensor * shares[0] if shares else ranks  # the program refuses a batch that is not of whole micro-batches


def network(hosts, net, uses_gpus):
    if len(hosts) == 1 or not uses_gpus:
        return ""
    has_efa = any(checks.number(host, "efa") for host in hosts)
    return net if net != "auto" else "efa" if has_efa else "sockets"


def type_of(hosts, types):
    """What is known of the one machine type of these hosts, or None."""
    names = {checks.first(host, "machine") for host in hosts}
    return types.get(names.pop()) if len(names) == 1 else None


def from_type(known, hosts, market, net, settings, with_defaults):
    """Settings that launch/instances.json has values for, and that nobody named: what NCCL's all_reduce must reach inside a host or over
    EFA, and the price. with_defaults(values): the settings if these were the defaults."""
    price = known["usd_per_hour"][market]
    gb_s = known["bus_gb_s"][{1: "1", 2: "2"}.get(len(hosts), "4")] if net != "sockets" and settings["dist.backend"] != "mpi" else 0
    values = {key: value for key, value in [("dist.min_gb_s", gb_s), ("run.usd_per_node_hour", price and price["usd"])] if value}
    taken = with_defaults(values)
    open_ = {key: value for key, value in values.items() if taken[key] != settings[key]}
    if "run.usd_per_node_hour" in open_ and doubts(price):
        say(doubts(price))
    return [word for key, value in open_.items() for word in (f"--{key}", str(value))]


def examine(platform, hosts, job):
    """Prints all that is wrong with the hosts, and ends if anything is."""
    if len(hosts) > 1 and "/" not in platform.ask("shared"):
        nodes.find_unshared(platform, hosts, job.run_dir)
    here = Host("this machine", facts={"variable": list(os.environ)})
    found = checks.problems(hosts, job) + checks.problems([here], job, [checks.check_variables])
    if found:
        raise Failure(CONFIG if any(problem.code == CONFIG for problem in found) else DATA,
                      *dict.fromkeys(f"{problem.host}: {problem.text}" for problem in found))
    for line in checks.notes(hosts, job):
        say(line)


def show(command, env, hosts):
    print("\n".join(f"# {host.name} slots={host.slots}" for host in hosts))
    changed = [f"{name}={value}" for name, value in sorted(env.items()) if os.environ.get(name) != value]
    print(shlex.join(["env", *changed, *command]))


def main(arguments):
    chosen = options(arguments)
    settings = read_settings(chosen.tandem, chosen.job[1:])
    # On all hosts the ranks start in this folder; a login of ssh may begin in another.
    dataset, run_dir = os.path.abspath(settings["data.path"]), os.path.abspath(settings["run.dir"])

    # Which hosts there are, and what they say of themselves.
    platform = Platform(chosen.platform, chosen.hosts, chosen.hostfile)
    all_hosts = platform.hosts()
    if chosen.min_hosts > len(all_hosts):
        raise Failure(CONFIG, f"--min-hosts {chosen.min_hosts}: only {len(all_hosts)} on the list; name more hosts, or ask for fewer")
    to_ask = [chosen.tandem, RANK_SCRIPT, dataset, run_dir]
    hosts = nodes.ask_all(platform, all_hosts, to_ask, 0 if chosen.print else chosen.wait, chosen.min_hosts, chosen.print)
    for host in hosts:
        host.slots = host.slots or len(host.facts.get("gpu", [])) or 1

    # What follows for the job from its hosts.
    ranks = rank_count(hosts, all_hosts, *(int(settings[key]) for key in ["train.global_batch", "train.micro_batch", "dist.tensor"]))
    uses_gpus = settings["run.device"] != "cpu" and any("gpu" in host.facts for host in hosts)
    net = network(hosts, chosen.net, uses_gpus)
    types = machine_types()
    if uses_gpus and (known := type_of(hosts, types)):
        chosen.job += from_type(known, hosts, chosen.market, net, settings, lambda values: read_with_defaults(chosen.tandem, chosen.job[1:], values))
    run = os.path.join(run_dir, settings["run.name"])
    logs = os.path.join(run, "nccl") if net == "efa" else ""
    identity = secrets.token_hex(8)
    started = os.path.join(run_dir, f".started-{identity}")  # ranks leave their marks there
    env = environment(hosts, net, logs and os.path.join(logs, PATTERN),
                      {"TANDEM_JOB": identity} if chosen.print else {"TANDEM_JOB": identity, "TANDEM_STARTED": started})

    if not chosen.print:
        if uses_gpus:
            nodes.wait_for_gpus(platform, hosts, to_ask, chosen.wait)
        examine(platform, hosts, checks.Job(types, chosen.tandem, dataset, run_dir, uses_gpus, net == "efa", chosen.allow))
    with tempfile.TemporaryDirectory(prefix="tandem-run-") as folder:
        hostfile = os.path.join(folder, "hosts")
        with open(hostfile, "w", encoding="utf-8") as file:
            file.writelines(f"{host.name} slots={host.slots}\n" for host in hosts)
        command = [*platform.ask("launcher", str(ranks), hostfile), RANK_SCRIPT, chosen.tandem, *chosen.job]
        if chosen.print:
            show(command, env, hosts)
            return 0
        watch = lambda: None
        if logs:
            shutil.rmtree(logs, ignore_errors=True)
            os.makedirs(logs, exist_ok=True)
            watch = NcclLog(logs, ranks, types.get(checks.first(hosts[0], "machine"), {})).watch
        say(f"{ranks} rank{'s' * (ranks != 1)} on {', '.join(host.name for host in hosts)} ({platform.name})")
        began, records = time.monotonic(), os.path.join(run, "flight")
        older = flight.start_in(records)
        for left in reversed(range(TRIES)):
            job = Job(command, env, chosen.grace, lambda: nodes.end_job(platform, hosts, identity, records), lambda: nodes.lost(platform, hosts))
            code = job.wait(watch)
            count = nodes.count_started(platform, hosts[0], started, ranks, nodes.END_S + hosts[0].answer_s if code else nodes.ANSWER_S)
            if code != 0 or count == ranks:
                break
            code, again = TEMPORARY, left > 0 and job.stop_at is None
            say(f"the launcher ended with 0, but has started {count} of {ranks} ranks{'; tries again' * again}: see its lines above")
            if not again:
                break
    way = "checkpoint.resume = auto" if settings["checkpoint.resume"] == "none" else "the same command"
    again = f"; {way} goes on from the newest checkpoint" if code in (TEMPORARY, STOPPED) or code > 128 else ""
    say(f"ended with {code} ({meaning(code)}) after {time.monotonic() - began:.0f} s{again}")
    if code == TEMPORARY or code > 128:
        on_stop(lambda *_: os._exit(code))  # a request to stop does not wait for the cause
        # Under supervise.sh the supervisor says it. A job that died early has no records, and those of an older start stay.
        is_wanted = job.stop_at is None and "TANDEM_SUPERVISOR" not in os.environ and flight.start_in(records) != older
        if is_wanted and (cause := flight.cause(chosen.tandem, run)):
            say(cause)
    return code


def run(arguments):
    """The exit code, once standard output is written."""
    try:
        try:
            return main(arguments)
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except Failure as failure:
        for line in failure.lines:
            say(line)
        return failure.code
    except OSError as error:
        say(f"{error}: mend what cannot be read or written, and start it again")
        os._exit(DATA)  # otherwise Python writes its output once more at the end, and fails with 120


if __name__ == "__main__":
    on_stop(end_before_start)
    sys.exit(run(sys.argv[1:]))
