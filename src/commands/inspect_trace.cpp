#include "src/commands/inspect_trace.h"

#include <filesystem>

#include "src/core/error.h"
#include "src/core/visible_text.h"
#include "src/report/console.h"
#include "src/report/trace/chrome_trace.h"
#include "src/report/trace/trace_account.h"

namespace tandem {

void inspect_trace(const std::string& folder, bool as_json) {
  if (!std::filesystem::exists(folder)) {
    fail_data(folder, ": this run has no trace; name steps in log.trace, such as 20-25");
  }
  const TraceAccount account = account_of(read_traces(folder));
  show("%s\n", (as_json ? json_of(account) : text_of(account)).c_str());
}

}  // namespace tandem
