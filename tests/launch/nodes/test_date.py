#!/usr/bin/env python3
"""launch/supervise.sh on a machine whose date changes while a job runs."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..")]
import test_supervise
from tandem_program import MPI_ENV, STOPPED, write_program

# The date is STEP seconds off once the file STEPPED is there.
SHIM = """#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  long failed = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME && access(getenv("STEPPED"), F_OK) == 0) now->tv_sec += atol(getenv("STEP"));
  return (int)failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec time;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &time);
  *now = (struct timeval){time.tv_sec, time.tv_nsec / 1000};
  return 0;
}
time_t time(time_t *now) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return now ? *now = time.tv_sec : time.tv_sec;
}
"""


class Date(test_supervise.Scripts):
    def setUp(self):
        super().setUp()
        shim = tempfile.TemporaryDirectory(dir="/tmp")  # LD_PRELOAD takes no spaces
        self.addCleanup(shim.cleanup)
        self.date_shim = os.path.join(shim.name, "date.so")
        subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-xc", "-", "-o", self.date_shim], input=SHIM, text=True, check=True)

    def stepped(self, seconds):
        """The environment."""
        return {**MPI_ENV, "LD_PRELOAD": self.date_shim, "STEPPED": self.path("stepped"), "STEP": str(seconds)}

    def test_a_step_back_in_an_attempt(self):
        self.finish(self.start("touch stepped; exit 3", env=self.stepped(-3600)), 3)
        [seconds] = self.attempts("seconds")
        self.assertTrue(0 <= seconds < 60, seconds)

    def test_a_step_back_in_the_back_off(self):
        """A pause of a second is not one of an hour."""
        job = self.start("exit 137", "--max-restarts", 1, env=self.stepped(-3600))
        self.assertIn("restart in 1 s", job.stderr.readline())
        write_program(self.path("stepped"), "")
        self.finish(job, 137)
        self.assertEqual(self.attempts("code"), [137, 137])

    def test_a_step_ahead_in_a_stop_kills_no_save(self):
        job = self.start("touch begun; until [ -e stepped ]; do sleep 0.02; done; sleep 0.5; " + test_supervise.Signals.CATCHES,
                         env=self.stepped(3600))
        self.wait_for("begun")
        job.terminate()
        self.assertIn("stop requested", job.stderr.readline())
        write_program(self.path("stepped"), "")
        self.finish(job, STOPPED)


if __name__ == "__main__":
    test_supervise.unittest.main()
