#include "src/device/ranks/agreement.h"

#include <algorithm>
#include <sstream>

#include "src/core/visible_text.h"

namespace tandem {

namespace {

constexpr size_t kShown = 200;  // bytes of a line

// Both ranks' first differing line: `a` is of rank 0, `b` of rank `other`.
std::string first_difference(const std::string& a, const std::string& b, size_t other) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  for (;;) {
    const bool more_a = static_cast<bool>(std::getline(lines_a, line_a));
    const bool more_b = static_cast<bool>(std::getline(lines_b, line_b));
    if (!more_a || !more_b || line_a != line_b) {
      return str("rank 0 has \"", more_a ? shortened(line_a, kShown) : "(nothing)", "\", rank ",
                 other, " has \"", more_b ? shortened(line_b, kShown) : "(nothing)", "\"");
    }
  }
}

// "" for success, otherwise the exit code and the message.
std::string outcome_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return str(static_cast<int>(error.code()), " ", error.what());
  }
}

[[noreturn]] void throw_outcome(const std::string& outcome, const std::string& prefix) {
  const size_t space = outcome.find(' ');
  throw AgreedError(static_cast<ExitCode>(std::stoi(outcome.substr(0, space))),
                    prefix + outcome.substr(space + 1));
}

}  // namespace

void agree(Control& control, const std::function<void()>& work) {
  const std::vector<std::string> outcomes = control.all_gather(outcome_of(work));
  const auto failed =
      std::ranges::find_if(outcomes, [](const std::string& outcome) { return !outcome.empty(); });
  if (failed != outcomes.end()) {
    const bool same = std::ranges::count(outcomes, *failed) == std::ssize(outcomes);
    throw_outcome(*failed, same ? "" : str("rank ", failed - outcomes.begin(), ": "));
  }
}

std::string on_root(Control& control, const std::function<std::string()>& work) {
  std::string text, outcome;
  if (control.rank() == 0) {
    outcome = outcome_of([&] { text = work(); });
  }
  const std::string message = control.broadcast(outcome.empty() ? "+" + text : "-" + outcome, 0);
  if (message[0] == '-') {
    throw_outcome(message.substr(1), "");
  }
  return message.substr(1);
}

void check_equal(Control& control, std::string_view what, const std::string& text, ExitCode code) {
  const std::vector<std::string> texts = control.all_gather(text);
  std::string ranks;
  size_t first = 0;
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) {
      first = first == 0 ? rank : first;
      ranks += str(ranks.empty() ? "" : ", ", rank);
    }
  }
  if (first == 0) {
    return;
  }
  throw AgreedError(
      code, str(what, " is not the same on all ranks: rank ", ranks, " differs from rank 0 (",
                first_difference(texts[0], texts[first], first),
                "); start all ranks with the same program, configuration and files"));
}

}  // namespace tandem
