"""The supervisor: when it starts the command again, what it makes of signals, and what it leaves behind."""
from table import Mutant

BUILD = "release"
SUPERVISE = "launch/supervise.sh"


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
]
