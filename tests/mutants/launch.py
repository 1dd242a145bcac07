"""Launching: the supervisor, and what run.sh finds wrong, starts and ends."""
from table import Mutant

BUILD = "release"
SUPERVISE = "launch/supervise.sh"
JOB, MAIN, NODES = "launch/run/job.py", "launch/run/main.py", "launch/run/nodes.py"
SAGEMAKER, CONTAINER, MEETING = (f"launch/sagemaker/{name}" for name in ("train", "container.py", "meeting.py"))
SUBMIT = "launch/sagemaker/submit.py"
EKS, WORKER = "launch/eks/render.py", "launch/eks/worker.sh"
SLURM, SBATCH = "launch/platforms/slurm.sh", "launch/slurm/train.sbatch"

VERDICTS = "launch/scaling/verdicts.py"


def verdict(case):
    return [f"launch.scaling_figures Verdicts.{case}"]


def noticed_by(*cases):
    return [f"launch.supervise {case}" for case in cases]


CODES = noticed_by("ExitCodes.test_which_are_started_again")
PROGRESS = noticed_by("ExitCodes.test_a_new_checkpoint_resets_the_count_and_the_back_off")
SEGMENTS = noticed_by("Leftovers.test_shared_memory")
KILLED = noticed_by("Signals.test_no_process_is_left_when_the_supervisor_is_killed")
EARLY = noticed_by("Signals.test_a_stop_waits_until_the_run_catches_it")
MUTANTS = [
    Mutant("a bus error is not started again", SUPERVISE, "75 | 134 | 135 |", "75 | 134 |", CODES),
    Mutant("whatever ends is started again", SUPERVISE, '*) again="" ;;', "*) again=yes ;;", CODES),
    Mutant("the supervisor always ends well", SUPERVISE, '[ "$next" != stop ] || exit "$code"', '[ "$next" != stop ] || exit 0',
           noticed_by("ExitCodes.test_the_last_code_is_that_of_the_supervisor")),
    Mutant("progress does not reset the count", SUPERVISE, "best=$step failures=0 delay=$backoff", "best=$step delay=$backoff",
           PROGRESS),
    Mutant("progress does not reset the back-off", SUPERVISE, "best=$step failures=0 delay=$backoff", "best=$step failures=0",
           PROGRESS),
    Mutant("an older checkpoint is progress", SUPERVISE, '[ "$step" -gt "$best" ]', '[ "$step" -ne "$best" ]', PROGRESS),
    Mutant("a checkpoint that is not committed is progress", SUPERVISE, "/step-([0-9]+)$ ]]", "/step-([0-9]+) ]]", PROGRESS),
    Mutant("the back-off does not grow", SUPERVISE, "delay=$((2 * delay > 60 ? 60 : 2 * delay))", "delay=$delay", PROGRESS),
    Mutant("an earlier start's checkpoint is progress", SUPERVISE, "best=$(newest_step)", "best=null",
           noticed_by("ExitCodes.test_checkpoints_of_an_earlier_start_are_no_progress")),
    Mutant("the supervisor dies when nobody reads what it says", SUPERVISE, "trap : PIPE", "",
           noticed_by("ExitCodes.test_a_reader_that_goes_away_ends_nothing")),
    Mutant("a closed terminal kills the run", SUPERVISE, "trap request_stop TERM INT HUP USR1", "trap request_stop TERM INT USR1",
           noticed_by("Signals.test_a_stop_is_passed_on_once_and_ends_it")),
    Mutant("a stop is passed on again and again", SUPERVISE, "        sent=1\n", "",
           noticed_by("Signals.test_a_stop_is_passed_on_once_and_ends_it")),
    Mutant("a run that was to stop is started again", SUPERVISE, '[ -n "$stop_at" ] || [ "$failures"', '[ "$failures"',
           noticed_by("Signals.test_no_start_after_a_stop")),
    Mutant("a stop kills a run that starts", SUPERVISE, '[ "$run/config.cfg" -nt "$attempts" ]', "true", EARLY),
    Mutant("a stop kills a run that starts again", SUPERVISE, '[ "$run/config.cfg" -nt "$attempts" ]', '[ -e "$run/config.cfg" ]',
           EARLY),
    Mutant("a stop is never passed on without config.cfg", SUPERVISE, '[ $((2 * waited)) -ge "$grace" ]', "false",
           noticed_by("Signals.test_a_stop_of_what_writes_no_config")),
    Mutant("a stop waits for the back-off", SUPERVISE, '[ -z "$stop_at" ] || exit "$code"', ":",
           noticed_by("Signals.test_a_stop_during_the_back_off")),
    Mutant("there is no deadline", SUPERVISE, '[ "$waited" -lt "$grace" ] || kill_rest', "true || kill_rest",
           noticed_by("Signals.test_the_deadline")),
    Mutant("an attempt leaves processes", SUPERVISE, "  kill_rest\n  remove_leftovers\n\n", "  remove_leftovers\n\n",
           noticed_by("Signals.test_no_process_is_left_by_an_attempt")),
    Mutant("the guard kills nothing", SUPERVISE, "  kill_rest\n  remove_leftovers\n  exit 0", "  remove_leftovers\n  exit 0", KILLED),
    Mutant("the guard dies with the supervisor's group", SUPERVISE, 'exec setsid "$BASH"', 'exec "$BASH"', KILLED),
    Mutant("all shared memory is removed", SUPERVISE, 'grep -vxF "$used" <<<"$files"', 'echo "$files"', SEGMENTS),
    Mutant("shared memory that is mapped is removed", SUPERVISE, "grep -ho '/dev/shm/.*' /proc/[0-9]*/maps;", "", SEGMENTS),
    Mutant("shared memory that is open is removed", SUPERVISE, "find /proc/[0-9]*/fd -lname '/dev/shm/*' -printf '%l\\n';", "", SEGMENTS),
    Mutant("session folders of living runs are removed", SUPERVISE, ' && [ ! -e "/proc/${folder##*.}" ]', "",
           noticed_by("Leftovers.test_session_folders")),
    Mutant("a lost host is taken for a failure of the ranks", JOB, "return TEMPORARY if code in LOST_HOST else code", "return code",
           ["launch.run OneMachine.test_codes_of_ranks"]),
    Mutant("a job that does not end leaves its ranks", JOB, "            self.end()\n", "            pass\n", ["launch.run OneMachine.test_what_does_not_end_is_killed"]),
    Mutant("a job outlives run.sh", JOB, "    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)\n", "",
           ["launch.run OneMachine.test_killing_it_kills_the_job"]),
    Mutant("half a line of NCCL's log is read", "launch/run/nccl_log.py", 'file.read().rpartition("\\n")[0] + "\\n"', "file.read()",
           ["launch.run NcclLogs.test_every_beginning_of_a_good_one"]),
    Mutant("a channel without GPUDirect RDMA is well", "launch/run/nccl_log.py", r"(?!\S*GDRDMA)", r"(?!\S*)",
           ["launch.run NcclLogs.test_what_is_wrong"]),
    Mutant("a job of Slurm that started nothing has finished", MAIN, 'platform.name == "slurm" and not os.path.exists(started)', "False",
           ["launch.run OneMachine.test_srun_that_starts_nothing_has_not_finished"]),
    Mutant("fewer hosts keep the ranks that do not divide the batch", MAIN, "if len(hosts) == len(all_hosts):", "if True:",
           ["launch.run Choices.test_fewer_hosts_take_ranks_that_divide_the_batch"]),
    Mutant("a host that stands twice has the slots of the last line", "launch/run/hosts.py", ".slots += slots", ".slots = slots",
           ["launch.run HostLists.test_a_host_that_stands_twice_has_the_slots_of_both"]),
    Mutant("storage that is not shared is found at the first save", NODES, '            host.facts["not_shared"] = [error]\n', "            pass\n",
           ["launch.ssh Faults.test_an_unshared_run_folder"]),
    Mutant("a silent host is waited for without end", NODES, "if time.monotonic() >= deadline or any", "if any",
           ["launch.run OneMachine.test_refusals"]),
    Mutant("every rank is bound to the CPUs of the first GPU", "launch/rank.sh", "gpu=${visible[rank]:-$rank}", "gpu=0",
           ["launch.run Binding.test_each_rank_is_bound_to_the_node_of_its_gpu"]),
    Mutant("a lost host ends a job of Slurm", SBATCH, "75 | 85 |", "85 |", ["launch.slurm ExitCodes.test_the_limit_of_tries"]),
    Mutant("a job of Slurm is tried once less", SBATCH, '"$attempt" -gt "$most"', '"$attempt" -ge "$most"',
           ["launch.slurm ExitCodes.test_the_limit_of_tries"]),
    Mutant("a crashed rank ends a job of Slurm", SBATCH, " | 139 | 143)", " | 143)", ["launch.slurm ExitCodes.test_the_limit_of_tries"]),
    Mutant("bad settings are tried again", SBATCH, "75 | 85 |", "2 | 75 | 85 |",
           ["launch.slurm ExitCodes.test_what_would_end_alike_is_not_tried_again"]),
    Mutant("a signal before the start is a failure", SBATCH, '[ "$code" != 138 ] || code=85', ":",
           ["launch.slurm ExitCodes.test_a_signal_before_anything_has_started"]),
    Mutant("a step of Slurm has no GPUs", SLURM, "--cpu-bind none \"${gpus[@]}\"\n", "--cpu-bind none\n",
           ["launch.slurm ExitCodes.test_the_limit_of_tries"]),
    Mutant("mpirun's daemons under Slurm have no GPUs", SLURM, "[ ${#gpus[@]} -eq 0 ] ||", "true ||",
           ["launch.slurm WithoutPmix.test_all_hosts"]),
    Mutant("every Slurm is taken for HyperPod's", SLURM, "[ ! -e /opt/sagemaker_cluster ] || echo", "echo",
           ["launch.slurm HyperPod.test_auto_resume"]),
    Mutant("a stop that the service asked for is a failure", SAGEMAKER, "return 0 if self.asked and code == STOPPED else code",
           "return code", ["launch.sagemaker OneHost.test_a_stop_saves"]),
    Mutant("a hyperparameter stays quoted", CONTAINER, "return decoded if isinstance(decoded, str)", "return decoded if False",
           ["launch.sagemaker OneHost.test_hyperparameters_and_what_is_collected"]),
    Mutant("a reason is longer than the service takes", CONTAINER, "reason[:LONGEST_REASON]", "reason",
           ["launch.sagemaker OneHost.test_a_reason_is_not_too_long"]),
    Mutant("each host has its own idea of the leader", CONTAINER, 'sorted(resources["hosts"])', 'resources["hosts"]',
           ["launch.sagemaker TwoHosts.test_hosts_in_another_order_train_together"]),
    Mutant("a worker believes what an earlier attempt has left", MEETING, ".get(self.name) != self.key", ".get(self.name) is None",
           ["launch.sagemaker TwoHosts.test_hosts_in_another_order_train_together"]),
    Mutant("keys stay on the shared storage", MEETING, "        shutil.rmtree(self.folder)\n", "",
           ["launch.sagemaker TwoHosts.test_a_worker_that_never_comes"]),
    Mutant("a worker waits for ever for a dead leader", MEETING, "since > silent_s", "since > 10**6",
           ["launch.sagemaker TwoHosts.test_a_leader_that_dies_without_a_word"]),
    Mutant("a stop that the service asks for kills the worker", SAGEMAKER, "        signal.signal(signal.SIGTERM, self.ask)\n", "",
           ["launch.sagemaker TwoHosts.test_a_stop_saves"]),
    Mutant("several instances are sent without shared storage", SUBMIT, "chosen.nodes > 1 and not chosen.fsx", "False",
           ["launch.submit Requests.test_what_is_refused"]),
    Mutant("an evicted worker takes its ranks along", WORKER, "while has_job; do", "while false; do",
           ["launch.eks Jobs.test_an_evicted_worker_saves_the_job"]),
    Mutant("an evicted worker asks no rank to save", WORKER, "    ask_ranks\n  fi", "    :\n  fi",
           ["launch.eks Jobs.test_an_evicted_worker_saves_the_job"]),
    Mutant("a worker kills what is not ready to be asked", WORKER, "& 1)) -eq 1 ]", "& 1)) -ge 0 ]", ["launch.eks Jobs.test_ranks_that_do_not_end"]),
    Mutant("a worker waits for its ranks without end", WORKER, '[ "$waited" -ge "$grace" ]', "false", ["launch.eks Jobs.test_ranks_that_do_not_end"]),
    Mutant("ranks on EKS do not find the image's programs", WORKER, 'SetEnv=PATH=$PATH', "SetEnv=OTHER=$PATH",
           ["launch.eks Jobs.test_a_worker_without_a_job_ends_at_once"]),
    Mutant("a run on EKS is lost with its pods", EKS, "os.path.normpath(run_folder(chosen.job))", "run_folder(chosen.job)",
           ["launch.eks Manifest.test_bad_arguments"]),
    Mutant("a container writes as root", "launch/docker/entry.sh", '[ "$owner" -ne 0 ]', "false",
           ["launch.eks Entry.test_what_is_written_belongs_to_the_owner_of_the_folder"]),
    Mutant("saves are part of a step", VERDICTS, "share = stall / (case", "share = stall / 2 / (case", verdict("test_saves")),
    Mutant("a rank that waits for data computes longer", VERDICTS, "if 2 * parts", "if parts", verdict("test_a_slow_rank")),
    Mutant("one node waits as long as two", VERDICTS, "< LINK * row", "< 1 * row", verdict("test_the_link_between_nodes")),
    Mutant("control messages count as payload", "launch/scaling/launches.py", ' if traffic != "control"', "",
           ["launch.scaling Truth.test_every_figure"]),
    Mutant("the heat map has ranks as columns", "launch/scaling/heat.py", "for rank in range(ranks) for column",
           "for column in range(ranks) for rank", ["launch.scaling_figures Heat.test_cells"]),
    Mutant("the heat map is of the slowest launch", "launch/scaling/results.py", "[(len(good) - 1) // 2]", "[-1]",
           ["launch.scaling Truth.test_every_figure"]),
    Mutant("times of ranks are logged whole", "src/report/run_log.cpp", "static_cast<double>(m.steps)) / 1000);", "1.0) / 1000);",
           ["report.run_report RunFiles.TimesOfAtMost64RanksAreLogged"]),
    Mutant("times of any number of ranks are logged", "src/report/run_log.cpp", "m.own_s.size() <= kRanksInLog", "true",
           ["report.run_report RunFiles.TimesOfAtMost64RanksAreLogged"]),
    Mutant("a slow save has no verdict", VERDICTS, "other_model, saves, slow", "other_model, slow",
           ["launch.planted_causes Planted.test_a_slow_save"]),
]
