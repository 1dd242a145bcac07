// The trace of a rank: src/report/trace/chrome_trace.cpp src/report/trace/trace_account.cpp
#include <string>

#include "src/report/trace/chrome_trace.h"
#include "src/report/trace/trace_account.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = fuzz::folder().write("input", fuzz::text_of(data, size));
  fuzz::accepts(ExitCode::kData, [&] {
    const Trace trace = read_trace(path);
    const std::string text = rank_trace_text(trace);
    fuzz::check(rank_trace_text(read_trace(fuzz::folder().write("copy", text))) == text,
                "a trace reads back as it was written");
    const TraceAccount account = account_of({trace, trace});
    fuzz::check(account.total().size() == (trace.steps.empty() ? 0 : 2), "all ranks are there");
    text_of(account), json_of(account);
    job_trace_text({trace, trace});
  });
  return 0;
}
