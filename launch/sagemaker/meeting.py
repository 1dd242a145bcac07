"""How the hosts of a job meet. Their containers know each other's names, and share a folder:

    FOLDER/NAME.pub      the public key of a worker's sshd, made anew in each container
    FOLDER/NAME.stop     there when a worker is asked to end, while the leader is perhaps not
    FOLDER/leader.json   written again by the leader every BEAT_S: the public key with which it logs in, the workers whose
                         keys it has read, and in the end the exit code and the reason

The leader begins with an empty folder, and a worker believes it once it has read this worker's own key. So nobody takes what
an earlier attempt of the same job has left for news. No private key leaves its host.
"""
import contextlib
import glob
import json
import os
import secrets
import shutil
import subprocess
import threading
import time

from errors import CONFIG, STOPPED, TEMPORARY, Failure, say
from files import write

PORT = 2222  # a port that also a process without root may have
BEAT_S = 2
LOOK_S = 0.5
SSHD = """Port {port}
HostKey {private}/host
AuthorizedKeysFile {private}/authorized_keys
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
SetEnv {environment}
"""
SSH = """Port {port}
IdentityFile {private}/user
IdentitiesOnly yes
UserKnownHostsFile {private}/known_hosts
GlobalKnownHostsFile none
LogLevel ERROR
"""


def make_key(path):
    """The public key of a new pair of keys."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return read(path + ".pub")


def read(path):
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        return file.read().strip()
    return ""


class Leader:
    """`private`: a folder of this host alone. The file `ssh_config` there is for ssh. `stop` is called once when a worker asks for it."""

    def __init__(self, folder, private, stop):
        self.folder, self.private, self.stop = folder, private, stop
        old = f"{folder}.{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, old)
            shutil.rmtree(old)
        os.makedirs(folder, mode=0o700)
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.word = {"key": make_key(os.path.join(private, "user")), "heard": {}, "beat": 0, "code": None, "reason": ""}
        self.ssh_config = os.path.join(private, "ssh_config")
        write(self.ssh_config, SSH.format(port=PORT, private=private))
        self.beats = threading.Thread(target=self.beat, daemon=True)
        self.beats.start()

    def beat(self):
        stops = []
        while not self.ended.is_set():
            if not stops:
                stops = glob.glob(os.path.join(glob.escape(self.folder), "*.stop"))
                for path in stops[:1]:
                    say(f"{os.path.basename(path).removesuffix('.stop')} is asked to end: the job saves and ends")
                    self.stop()
            with contextlib.suppress(OSError):  # storage may be slow or full for a while
                self.tell(beat=self.word["beat"] + 1)
            self.ended.wait(BEAT_S)

    def tell(self, **news):
        with self.lock:
            self.word |= news
            write(os.path.join(self.folder, "leader.json"), json.dumps(self.word))

    def wait_for(self, workers, seconds, stop_asked):
        """Waits until all workers have come."""
        deadline = time.monotonic() + seconds
        while True:
            keys = {name: read(os.path.join(self.folder, name + ".pub")) for name in workers}
            heard = {name: key for name, key in keys.items() if key}
            if heard != self.word["heard"]:
                self.tell(heard=heard)
            silent = [name for name in workers if name not in heard]
            if not silent:
                break
            if stop_asked():
                raise Failure(STOPPED, "stopped before all hosts had come")
            if time.monotonic() > deadline:
                raise Failure(TEMPORARY, *(f"{name}: has not come within {seconds} s: see its log" for name in silent))
            time.sleep(LOOK_S)
        write(os.path.join(self.private, "known_hosts"), "".join(f"[{name}]:{PORT} {key}\n" for name, key in heard.items()))

    def end(self, code, reason, silent_s):
        """Tells the workers how the job ended, and leaves nothing behind. They have `silent_s` to read it, as storage may stand still."""
        self.ended.set()
        self.beats.join()
        self.tell(code=code, reason=reason)
        deadline = time.monotonic() + silent_s
        while any(name.endswith(".pub") for name in os.listdir(self.folder)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        shutil.rmtree(self.folder)


class Worker:
    def __init__(self, folder, private, name):
        self.folder, self.private, self.name = folder, private, name
        self.key = make_key(os.path.join(private, "host"))
        self.announcement = os.path.join(folder, name + ".pub")

    def wait(self, seconds, silent_s, stop_asked):
        """(exit code, reason) of the leader. It must read this host's key within `seconds`, and show a sign of life every
        `silent_s`."""
        deadline = time.monotonic() + seconds
        while (word := self.word()).get("heard", {}).get(self.name) != self.key:
            if stop_asked():
                return STOPPED, "stopped before the leader had come"
            if time.monotonic() > deadline:
                raise Failure(TEMPORARY, f"the leader has not come within {seconds} s: see its log")
            if read(self.announcement) != self.key:
                with contextlib.suppress(OSError):  # the folder is not there yet, or goes just now
                    write(self.announcement, self.key)
            time.sleep(LOOK_S)
        with self.sshd(word["key"]) as sshd:
            return self.outcome(silent_s, sshd, stop_asked)

    def word(self):
        return json.loads(read(os.path.join(self.folder, "leader.json")) or "{}")

    @contextlib.contextmanager
    def sshd(self, leaders_key):
        write(os.path.join(self.private, "authorized_keys"), leaders_key + "\n")
        environment = " ".join(f'"{name}={os.environ[name]}"' for name in ("PATH", "LD_LIBRARY_PATH") if os.environ.get(name))
        write(os.path.join(self.private, "sshd_config"), SSHD.format(port=PORT, private=self.private, environment=environment))
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        program = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
        config, log = os.path.join(self.private, "sshd_config"), os.path.join(self.private, "log")
        process = subprocess.Popen([program, "-D", "-f", config, "-E", log])
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def outcome(self, silent_s, sshd, stop_asked):
        beat, silent, asked = None, 0, os.path.join(self.folder, self.name + ".stop")
        while True:
            if stop_asked() and not os.path.exists(asked):
                with contextlib.suppress(OSError):  # storage may be slow or full for a while
                    write(asked, "")
            word = self.word()
            if word.get("code") is not None:
                with contextlib.suppress(FileNotFoundError):  # the leader has removed the folder
                    os.remove(self.announcement)
                return word["code"], word["reason"]
            if sshd.poll() is not None:
                raise Failure(CONFIG, f"sshd has ended: {read(os.path.join(self.private, 'log')).rpartition(chr(10))[2]}")
            if word.get("beat", beat) != beat:
                beat, silent = word["beat"], 0
            elif silent > silent_s:
                raise Failure(TEMPORARY, f"the leader has been silent for {silent_s} s: it was lost, or the shared folder")
            silent += LOOK_S  # looks count, not the clock, which goes on while storage stands still
            time.sleep(LOOK_S)
