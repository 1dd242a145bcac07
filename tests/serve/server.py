"""`tandem serve` as a process, for tests that are its clients."""
import http.client
import json
import signal
import subprocess
import time

import tandem_program
from tandem_program import MPI_ENV, Workspace

DEADLINE = 60  # seconds that nothing here takes, but on a machine that hangs


class Server:
    def __init__(self, model, *options, **environment):
        command = [tandem_program.TANDEM, "serve", model, "--port", "0", *map(str, options if "--threads" in options else ("--threads", "1", *options))]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**MPI_ENV, **environment})
        self.started(self.process.stdout.readline())

    def started(self, line):
        if not line:
            raise AssertionError(self.process.communicate()[1])
        self.port = int(line.rsplit(":", 1)[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)

    def ask(self, method, path, body=None, headers={}):
        """Status and body; a body that is no text is sent as JSON."""
        connection = self.connect()
        connection.request(method, path, body if body is None or isinstance(body, (str, bytes)) else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def complete(self, **request):
        status, text = self.ask("POST", "/v1/completions", request)
        if status != 200:
            raise AssertionError(text)
        return json.loads(text)

    def metric(self, name):
        return float([line.split()[1] for line in self.ask("GET", "/metrics")[1].splitlines() if line.startswith(name + " ")][0])

    def wait_for(self, name, value):
        end = time.monotonic() + DEADLINE
        while self.metric(name) != value:
            if time.monotonic() > end:
                raise AssertionError(f"{name} is {self.metric(name)}, not {value}")
            time.sleep(0.01)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, errors


def events(text):
    return [line[len("data: "):] for line in text.split("\n\n") if line]


class Served(Workspace):
    """Tests of one server, `cls.server`, which must end well."""

    @classmethod
    def tearDownClass(cls):
        code, errors = cls.server.end()
        super().tearDownClass()
        if (code, errors) != (0, ""):
            raise AssertionError(f"exit code {code}\n{errors}")
