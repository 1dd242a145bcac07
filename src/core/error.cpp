#include "src/core/error.h"

namespace tandem {

void fail(ExitCode code, const std::string& message) { throw Error(code, message); }

void fail_if_any(const std::vector<std::string>& problems) {
  if (problems.empty()) {
    return;
  }
  std::string all;
  for (const std::string& problem : problems) {
    all += (all.empty() ? "" : "\n") + problem;
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
