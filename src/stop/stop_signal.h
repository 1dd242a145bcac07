// Turns SIGINT, SIGTERM, SIGHUP and SIGUSR1 into a request that the training loop reads once a
// step.
#pragma once

#include <string>

namespace tandem {

class StopSignal {
 public:
  // Installs the handlers; a process has at most one StopSignal. A second SIGINT ends the
  // process at once; the others may come twice, as some job schedulers send them. With `announce`,
  // the handler prints a line at once, for the user who pressed Ctrl-C. With `under_mpirun` it
  // also says how to stop without mpirun's time limit, unless the signal was SIGUSR1.
  //
  // Until begin_steps(), all but SIGUSR1 end the process at once with code 85: a start may take
  // long, and has nothing to save. SIGHUP, which the end of a terminal sends, has no effect under
  // nohup.
  StopSignal(bool announce, bool under_mpirun);
  // Restores the former handlers. But SIGTERM and SIGHUP are ignored from now on if a step may have
  // run: all is saved, and the exit code must say so.
  ~StopSignal();

  // Call first in main() of a program that will train: from now on SIGUSR1 is such a request, and
  // never ends the process. mpirun may pass it on before there is a StopSignal.
  static void expect_usr1();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void begin_steps();
  bool requested() const;
  // The handler's line names it, in case the next save does not finish.
  void set_last_checkpoint(const std::string& path);
};

}  // namespace tandem
