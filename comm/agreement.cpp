#include "comm/agreement.h"

#include <sstream>

namespace tandem {

namespace {

constexpr size_t kShown = 200;  // characters of a line

struct Difference {
  std::string here, there;
};

std::string shown(const std::string& line) {
  return line.size() <= kShown ? line : line.substr(0, kShown) + "...";
}

Difference first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  for (;;) {
    const bool more_a = static_cast<bool>(std::getline(lines_a, line_a));
    const bool more_b = static_cast<bool>(std::getline(lines_b, line_b));
    if (!more_a || !more_b || line_a != line_b) {
      return {more_a ? shown(line_a) : "(nothing)", more_b ? shown(line_b) : "(nothing)"};
    }
  }
}

}  // namespace

void check_equal(Communicator& communicator, std::string_view what, const std::string& text,
                 ExitCode code) {
  const std::vector<std::string> texts = communicator.all_gather(text);
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
  const Difference difference = first_difference(texts[0], texts[first]);
  fail(code, str(what, " is not the same on all ranks: rank ", ranks,
                 " differs from rank 0 (rank 0 has \"", difference.here, "\", rank ", first,
                 " has \"", difference.there,
                 "\"); start all ranks with the same program, configuration and files"));
}

}  // namespace tandem
