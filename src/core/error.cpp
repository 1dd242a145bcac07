#include "src/core/error.h"

#include <algorithm>

namespace tandem {

std::string joined(std::span<const std::string> words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    text += str(text.empty() ? "" : separator, word);
  }
  return text;
}

void fail(ExitCode code, const std::string& message) { throw Error(code, message); }

void fail_if_any(const std::vector<std::string>& problems) {
  if (problems.empty()) {
    return;
  }
  constexpr size_t kShown = 20;
  std::string all = joined(std::span(problems).first(std::min(problems.size(), kShown)), "\n");
  if (problems.size() > kShown) {
    all += str("\nand ", problems.size() - kShown, " more");
  }
  fail(ExitCode::kConfig, all);
}

void require(bool ok, std::string_view what, std::source_location where) {
  if (!ok) [[unlikely]] {
    throw Error(ExitCode::kInternal, str(what, " (", where.file_name(), ":", where.line(), " in ",
                                         where.function_name(), ")"));
  }
}

}  // namespace tandem
