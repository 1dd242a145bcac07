"""A job that runs: its start, requests to stop it, and its end."""
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from errors import STOPPED, TEMPORARY, say

ASK_AGAIN_S = 2  # ranks are asked again, because one that is not ready yet ignores SIGUSR1
LOST_HOST = (205, 255)  # mpirun's codes when it lost a host's daemon, or ssh itself failed
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
POOL = ThreadPoolExecutor(1)
SESSIONS = set()  # processes that ask a host; each leads a session of its own

MEANING = {
    0: "finished", 2: "mend the settings or hosts", 3: "mend data, checkpoint or folders", 64: "the loss or gradient is not finite",
    70: "internal error", 71: "out of memory", 75: "a host is silent or lost, or a peer timed out", 85: "stopped on request, checkpoint saved",
}


def meaning(code):
    return MEANING.get(code) or (f"a process was ended by {signal.Signals(code - 128).name}" if 128 < code < 160 else "failed")


def end_before_start(number, frame):
    """Handles a request to stop while there is no job yet. Threads may wait for hosts, so it does not wait for them."""
    say(f"{signal.Signals(number).name}: ended with {STOPPED} before the ranks were started")
    for process in list(SESSIONS):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
    os._exit(STOPPED)


def on_stop(handler):
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # under nohup
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # run.sh holds them back


class Job:
    """The launcher's process. Signals to this program become requests to stop."""

    def __init__(self, command, environment, grace, end, lost):
        """end(): kills what is left on all hosts, and keeps the flight records. lost(): the names of hosts that do not answer,
        after some seconds."""
        self.grace, self.end, self.lost = grace, end, lost
        self.stop_at = None
        on_stop(self.request_stop)
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=prepare)

    def request_stop(self, number, frame):
        if self.stop_at is None:
            self.stop_at = time.monotonic()
            say(f"{signal.Signals(number).name}: asks the ranks to save and end, and kills them after {self.grace} s")

    def wait(self, watch):
        """The exit code. watch() is called about ten times a second; a code that it returns ends the job with that code."""
        asked_at, verdict, look = 0, None, None
        while self.process.poll() is None:
            now = time.monotonic()
            if self.stop_at is not None:
                if now - self.stop_at >= self.grace:
                    say(f"not ended {self.grace} s after the request: killed")
                    self.kill()
                elif now - asked_at >= ASK_AGAIN_S:
                    asked_at = now
                    self.process.send_signal(signal.SIGUSR1)
                    # TCP notices no dead link while a signal is on its way through it.
                    if look is None or look.done():
                        silent, look = look.result() if look else [], POOL.submit(self.lost)
                        if silent:
                            say(f"{', '.join(silent)}: lost; what the ranks were asked to save is not saved, the newest checkpoint stays")
                            verdict = TEMPORARY
                            self.kill()
            elif verdict is None:
                verdict = watch()
                if verdict is not None:
                    self.kill()
            time.sleep(0.1)
        code = self.process.returncode
        code = 128 - code if code < 0 else code
        if code not in MEANING or code == TEMPORARY:  # otherwise the ranks themselves came to an end
            self.end()
        if verdict is not None:
            return verdict
        if self.stop_at is not None and code == 128 + signal.SIGUSR1:
            return STOPPED  # the stop was asked for before there was a rank
        return TEMPORARY if code in LOST_HOST else code

    def kill(self):
        self.process.kill()
        self.process.wait()


def prepare():
    """In a new process, before it starts: it dies with this program, and a request that comes too early does no harm."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
