#include "src/prepare/output.h"

#include <filesystem>

#include "src/core/error.h"

namespace tandem {

void check_output(const std::string& output, const std::vector<std::string>& inputs, bool force) {
  for (const std::string& input : inputs) {
    std::error_code missing;
    if (std::filesystem::equivalent(input, output, missing)) {
      fail(ExitCode::kConfig, str("--output ", output, " is an input too; write another file"));
    }
  }
  if (!force && std::filesystem::is_regular_file(output)) {
    fail(ExitCode::kConfig,
         str("--output ", output, " exists; --force replaces it, or write another file"));
  }
}

}  // namespace tandem
