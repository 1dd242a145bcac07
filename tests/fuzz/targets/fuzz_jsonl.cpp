// JSON lines: src/prepare/text_reader.cpp src/io/line_reader.cpp
#include "src/data/utf8.h"
#include "src/prepare/text_reader.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string file = fuzz::folder().write("input.jsonl", fuzz::text_of(data, size));
  BadRecords bad(INT64_MAX, BadRecords::Printing::kOff);
  fuzz::accepts(ExitCode::kData, [&] {
    int64_t documents = 0;
    PrepareTextOptions options;
    options.input = {file};
    const auto counts = for_each_document(options, &bad, [&](const TextDocument& document) {
      fuzz::check(valid_utf8_prefix(document.text) == document.text.size(),
                  "documents are valid UTF-8");
      ++documents;
    });
    fuzz::check(counts.documents == documents, "documents are counted");
  });
  return 0;
}
