#include "src/core/error.h"

#include <ranges>

#include "src/core/mapped.h"
#include "src/core/visible_text.h"

namespace tandem {

std::string joined(std::span<const std::string> words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    text += str(text.empty() ? "" : separator, word);
  }
  return text;
}

void fail_if_any(const std::vector<std::string>& problems) {
  if (problems.empty()) {
    return;
  }
  constexpr size_t kShown = 20;
  const auto shown = [](const std::string& problem) { return visible(problem); };
  std::string all = joined(mapped(problems | std::views::take(kShown), shown), "\n");
  if (problems.size() > kShown) {
    all += str("\nand ", problems.size() - kShown, " more");
  }
  fail(ExitCode::kConfig, all);
}

void fail_check(const std::string& what, const std::source_location& where) {
  fail(ExitCode::kInternal, what, " (", where.file_name(), ":", where.line(), " in ",
       where.function_name(), ")");
}

}  // namespace tandem
