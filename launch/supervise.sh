#!/usr/bin/env bash
# Runs a launcher, and starts the same command again when the run has died; launch/README.md says after which exit codes.
#   launch/supervise.sh --run runs/NAME [options] -- mpirun -np 8 build/tandem train --run.name NAME ...
set -euo pipefail
here=$(dirname "$(realpath "$0")")

usage="usage: launch/supervise.sh --run FOLDER [options] -- COMMAND [ARGUMENT...]

  --run FOLDER       folder of the run that COMMAND trains, as runs/NAME; attempts.jsonl is written there
  --grace S          seconds from a request to stop until SIGKILL (110)
  --max-restarts N   restarts in a row without a new checkpoint (3)
  --backoff S        seconds before a restart; doubles up to 60 until there is a new checkpoint (1)

COMMAND is mpirun, or a script that ends with 'exec mpirun ...'. SIGTERM, SIGINT, SIGHUP and SIGUSR1 become SIGUSR1 to it.
The exit code is that of the last attempt."

say() { echo "supervise: $*" >&2 || true; }
refuse() { say "$*"; exit 2; }
exec {never}<> <(:)  # a pipe that nobody writes to
clock() { read -r now _ </proc/uptime; }  # seconds with two decimals, which no change of the date moves
pause() { read -rt "$1" -u "$never" || true; }  # it starts no process, which would stay when this one is killed

# Kills every process that an attempt started, also those in sessions of their own, and waits until they are gone.
kill_rest() {
  local pids pid until
  clock
  until=$((${now%.*} + 30))
  while pids=$(grep -lszxF "TANDEM_SUPERVISOR=$id" /proc/[0-9]*/environ | tr -dc '0-9\n' || true)
    clock && [ -n "$pids" ] && [ "${now%.*}" -lt "$until" ]; do
    for pid in $pids; do kill -KILL "$pid" 2>/dev/null || true; done
    for pid in $pids; do  # a dead process has no environment any more, but may still hold a GPU
      while grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$pid/task/"*/status && clock && [ "${now%.*}" -lt "$until" ]; do pause 0.1; done
    done
  done
}

# Moves what dead ranks of this run left of their flight records to its folder; a start of tandem removes those of other runs.
# Removes this user's shared memory and session folders that dead runs of Open MPI and NCCL left. Files are listed before
# their users: one that is created meanwhile stays. Whoever creates one has it open until it is mapped.
remove_leftovers() {
  local files used folder
  "$here/keep_flight.sh" "$run/flight" || true
  files=$(find /dev/shm -maxdepth 1 -ignore_readdir_race -type f -uid "$EUID" \
    \( -name 'vader_segment.*' -o -name 'sm_segment.*' -o -name 'nccl-*' \) || true)
  if [ -n "$files" ]; then
    used=$({ find /proc/[0-9]*/fd -lname '/dev/shm/*' -printf '%l\n'; grep -ho '/dev/shm/.*' /proc/[0-9]*/maps; } 2>/dev/null || true)
    grep -vxF "$used" <<<"$files" | xargs -rd '\n' rm -f || true
  fi
  for folder in "${TMPDIR:-/tmp}"/ompi.{"$HOSTNAME","${HOSTNAME%%.*}"}."$EUID"/pid.*; do
    if [ -O "$folder" ] && [ ! -e "/proc/${folder##*.}" ]; then rm -rf "$folder"; fi
  done
}

# The guard, a process of its own, cleans up when the supervisor has ended in any way.
if [ "${1:-}" = --guard ]; then
  id=$2 run=$3
  trap '' TERM INT HUP USR1 PIPE
  read -r || true  # until the supervisor's end of the pipe is closed
  kill_rest
  remove_leftovers
  exit 0
fi

run="" grace=110 max_restarts=3 backoff=1
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) echo "$usage"; exit 0 ;;
    --) shift; break ;;
    --run) run=${2:-} ;;
    --grace | --max-restarts | --backoff)
      [[ ${2:-} =~ ^[0-9]{1,6}$ ]] || refuse "$1 ${2:-}: must be a whole number"
      name=${1#--}
      printf -v "${name/-/_}" %d "$((10#$2))" ;;
    *) refuse "unknown option '$1'; --help shows all, and COMMAND begins after --" ;;
  esac
  shift 2 || refuse "$1 needs a value"
done
[ -n "$run" ] || refuse "--run is missing: the folder of the run, as runs/NAME"
[ $# -gt 0 ] || refuse "no command after --"
attempts=$run/attempts.jsonl
if [ -L "$attempts" ] || { [ -e "$attempts" ] && [ ! -f "$attempts" ]; }; then refuse "$attempts is no regular file: remove it"; fi
{ mkdir -p "$run" && touch "$attempts"; } 2>/dev/null || refuse "cannot write to $attempts"

meaning() {
  case $1 in
    0) echo "finished" ;;
    2) echo "bad configuration" ;;
    3) echo "bad or missing data or checkpoint" ;;
    64) echo "loss or gradient not finite" ;;
    70) echo "internal error" ;;
    71) echo "out of memory" ;;
    75) echo "lost peer or time-out" ;;
    85) echo "stopped on request, checkpoint saved" ;;
    126 | 127) echo "the command cannot be started" ;;
    205 | 255) echo "lost a node" ;;
    *) if [ "$1" -gt 128 ] && kill -l "$1" >/dev/null 2>&1; then echo "ended by SIG$(kill -l "$1")"; else echo "failed"; fi ;;
  esac
}

# The step of the newest checkpoint; null without a checkpoint.
newest_step() {
  local path step newest=-1
  for path in "$run"/checkpoints/step-*; do
    [[ $path =~ /step-([0-9]+)$ ]] || continue
    step=$((10#${BASH_REMATCH[1]}))
    newest=$((step > newest ? step : newest))
  done
  echo "${newest/-1/null}"
}

clock
stop_at=""  # when a stop was requested
request_stop() {
  [ -z "$stop_at" ] || return 0
  stop_at=${now%.*}  # as a loop has just read it: a read in here would leave the one in pause without its time
  say "stop requested: SIGUSR1 to the command, and SIGKILL after $grace s"
}
trap request_stop TERM INT HUP USR1
trap : PIPE  # nobody need read the output

id=$$-$(date +%s%N)
coproc guard { exec setsid "$BASH" "$0" --guard "$id" "$run"; }
guard_pid=${guard_PID:?} guard_input=${guard[1]}
finish() {
  exec {guard_input}>&-
  wait "$guard_pid" 2>/dev/null || true
}
trap finish EXIT

# Starts the command and waits for its end. It catches SIGUSR1 only after its start, and until then would die of it: a run
# writes config.cfg when all of its ranks do. What writes none gets the signal after half of the time.
attempt() {
  local child sent="" waited
  touch "$attempts" || true
  TANDEM_SUPERVISOR=$id setsid "$@" &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    clock
    if [ -n "$stop_at" ]; then
      waited=$((${now%.*} - stop_at))
      if [ -z "$sent" ] && { [ "$run/config.cfg" -nt "$attempts" ] || [ $((2 * waited)) -ge "$grace" ]; }; then
        kill -USR1 "$child" 2>/dev/null || true
        sent=1
      fi
      [ "$waited" -lt "$grace" ] || kill_rest 2>/dev/null  # bash itself names each killed child
    fi
    pause 0.1
  done
  code=0
  wait "$child" 2>/dev/null || code=$?
}

# Says which rank is the cause of an attempt's end, as its flight records tell. The program is the last word of the command that
# ends in /tandem and can be run, or else build/tandem. It looks twice in 12 s at ranks on other hosts. A request to stop does
# not wait for it.
say_cause() {
  local word tandem=$here/../build/tandem cause=""
  for word; do
    if [[ $word == */tandem && -f $word && -x $word ]]; then tandem=$word; fi
  done
  # The guard waits for the end of its input, and then kills what is left.
  exec {told}< <(exec {guard_input}>&-; TANDEM_SUPERVISOR=$id timeout -k 1 30 "$tandem" inspect "$run" --flight 2>/dev/null | tail -n 1)
  until read -rt 0.1 -u "$told" cause; do
    if [ $? -le 128 ] || [ -n "$stop_at" ]; then break; fi  # nothing was said, or the time is over
  done
  exec {told}<&-
  [[ ! $cause =~ ^(rank|all ranks) ]] || say "$cause"
}

remove_leftovers
best=$(newest_step) failures=0 delay=$backoff
while :; do
  # A line that a crash has cut, perhaps to zeros, stays one of its own.
  [ -z "$(tail -c 1 "$attempts" | tr '\0' 0)" ] || echo >>"$attempts" || true
  started=$(date +%s) number=$(($(wc -l <"$attempts" || true) + 1)) code=0
  clock
  begun=$now
  attempt "$@"
  clock
  tenths=$(((10#${now/.} - 10#${begun/.}) / 10))
  kill_rest
  remove_leftovers

  recorded=""  # whether this attempt has flight records
  [ ! "$run/flight/rank-0000" -nt "$attempts" ] || recorded=yes
  step=$(newest_step)
  failures=$((failures + 1))
  if [ "$step" != null ] && { [ "$best" = null ] || [ "$step" -gt "$best" ]; }; then
    best=$step failures=0 delay=$backoff
  fi
  case $code in
    75 | 134 | 135 | 137 | 139 | 205 | 255) again=yes ;;
    *) again="" ;;
  esac
  next=stop
  [ -z "$again" ] || [ -n "$stop_at" ] || [ "$failures" -gt "$max_restarts" ] || next="restart in $delay s"
  printf '{"attempt":%d,"start":"%s","seconds":%d.%d,"code":%d,"meaning":"%s","step":%s,"next":"%s"}\n' "$number" \
    "$(date -u -d "@$started" +%Y-%m-%dT%H:%M:%SZ)" $((tenths / 10)) $((tenths % 10)) "$code" "$(meaning "$code")" \
    "$step" "$next" >>"$attempts" || say "cannot write to $attempts"
  say "attempt $number ended with $code ($(meaning "$code")), last saved step: ${step/null/none}; $next"
  if [ -n "$again" ] && [ -n "$recorded" ] && [ -z "$stop_at" ]; then say_cause "$@"; fi
  [ "$next" != stop ] || exit "$code"
  clock
  until=$((${now%.*} + delay)) delay=$((2 * delay > 60 ? 60 : 2 * delay))
  while [ -z "$stop_at" ] && clock && [ "${now%.*}" -lt "$until" ]; do pause 0.1; done
  [ -z "$stop_at" ] || exit "$code"
done
