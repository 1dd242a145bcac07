// CSV: src/prepare/csv_reader.cpp src/io/line_reader.cpp
#include <vector>

#include "src/prepare/csv_reader.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

namespace {

using Rows = std::vector<std::vector<std::string>>;

Rows good_rows(const std::string& path) {
  Rows rows;
  CsvReader reader(path, RecordLimit());
  for (std::vector<std::string> fields; reader.next(&fields);) {
    if (reader.problem().empty()) {
      rows.push_back(fields);
    }
  }
  return rows;
}

std::string quoted(const Rows& rows) {
  std::string text;
  for (const auto& fields : rows) {
    for (const std::string& field : fields) {
      text += &field == &fields.front() ? "\"" : ",\"";
      for (const char byte : field) {
        text.append(byte == '"' ? 2 : 1, byte);
      }
      text += '"';
    }
    text += '\n';
  }
  return text;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepts(ExitCode::kData, [&] {
    const Rows rows = good_rows(fuzz::folder().write("input.csv", fuzz::text_of(data, size)));
    fuzz::check(good_rows(fuzz::folder().write("quoted.csv", quoted(rows))) == rows,
                "quoted fields are read as they were written");
  });
  return 0;
}
