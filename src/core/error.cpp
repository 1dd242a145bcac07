#include "src/core/error.h"

namespace tandem {

void fail(ExitCode code, const std::string& message) { throw Error(code, message); }

void fail_if_any(const std::vector<std::string>& problems) {
  if (problems.empty()) {
    return;
  }
  constexpr size_t kShown = 20;
  std::string all;
  for (size_t i = 0; i < problems.size() && i < kShown; ++i) {
    all += (all.empty() ? "" : "\n") + problems[i];
  }
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
