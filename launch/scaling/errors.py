"""Errors that end the program with one line and an exit code. The codes are those of `tandem`."""
CONFIG, DATA, NUMERICAL, STOPPED = 2, 3, 64, 85


class Failure(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code
