#include "src/stop/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

#include "src/core/error.h"

namespace tandem {

namespace {

// A signal handler can reach nothing but static memory, and may call nothing but write().
volatile std::sig_atomic_t requested_flag = 0;
volatile std::sig_atomic_t announces = 0, advises = 0, steps_began = 0, current_message = 0;
char messages[2][1024] = {};  // the handler may come while the other one is written
struct sigaction former_int, former_term, former_hup, former_usr1;

constexpr char kAdvice[] =
    "; mpirun kills the ranks about 2 s after Ctrl-C or SIGTERM, and lets them save after `kill "
    "-USR1`";

void print(const char* text) {
  const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(written);
}

void on_signal(int number) {
  if (!steps_began && number != SIGUSR1) {
    print(announces ? "\ntandem: stop requested before the first step; nothing new to save\n" : "");
    ::_exit(static_cast<int>(ExitCode::kStopped));
  }
  const bool is_first = requested_flag == 0;
  requested_flag = 1;
  if (announces && is_first) {
    print(messages[current_message]);
    if (advises && number != SIGUSR1) {
      print(kAdvice);
    }
    print("\n");
  }
}

// `former`: gets the handler before, unless it is null.
void install(int number, unsigned flags, struct sigaction* former) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESTART | flags);
  sigaction(number, &action, former);
}

}  // namespace

void StopSignal::expect_usr1() { install(SIGUSR1, 0, nullptr); }

StopSignal::StopSignal(bool announce, bool under_mpirun) {
  announces = announce;
  advises = under_mpirun;
  set_last_checkpoint("none yet");
  install(SIGTERM, 0, &former_term);
  install(SIGUSR1, 0, &former_usr1);
  install(SIGHUP, 0, &former_hup);
  if (former_hup.sa_handler == SIG_IGN) {  // under nohup
    sigaction(SIGHUP, &former_hup, nullptr);
  }
  install(SIGINT, SA_RESETHAND, &former_int);
}

StopSignal::~StopSignal() {
  if (requested() || steps_began) {
    former_term.sa_handler = former_hup.sa_handler = SIG_IGN;
  }
  sigaction(SIGINT, &former_int, nullptr);
  sigaction(SIGTERM, &former_term, nullptr);
  sigaction(SIGHUP, &former_hup, nullptr);
  sigaction(SIGUSR1, &former_usr1, nullptr);
  requested_flag = 0;
  steps_began = 0;
}

void StopSignal::begin_steps() { steps_began = 1; }

bool StopSignal::requested() const { return requested_flag != 0; }

void StopSignal::set_last_checkpoint(const std::string& path) {
  const std::string text =
      str("\ntandem: stop requested; saving after this step (last checkpoint: ", path, ")");
  const std::sig_atomic_t next = 1 - current_message;
  std::strncpy(messages[next], text.c_str(), sizeof messages[next] - 1);
  current_message = next;
}

}  // namespace tandem
