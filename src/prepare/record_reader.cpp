#include "src/prepare/record_reader.h"

#include <filesystem>

#include "src/core/error.h"
#include "src/data/utf8.h"
#include "src/io/line_reader.h"
#include "src/prepare/csv_reader.h"

namespace tandem {

TextFormat text_format_of(const std::string& file) {
  std::filesystem::path name(lower_case(file));
  if (name.extension() == ".gz") {
    name = name.stem();
  }
  const std::string extension = name.extension();
  if (extension == ".jsonl" || extension == ".ndjson" || extension == ".json") {
    return TextFormat::kJsonLines;
  }
  return extension == ".csv" ? TextFormat::kCsv : TextFormat::kPlain;
}

void for_each_json_line(const std::string& file, RecordLimit limit,
                        const std::function<void(std::string*, const std::string&)>& use) {
  LineReader lines(file, limit);
  for (std::string line; lines.next(&line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      use(&line, str(file, ":", lines.number()));
    }
  }
}

void for_each_csv_row(
    const std::string& file, RecordLimit limit, BadRecords* bad,
    const std::function<void(std::vector<std::string>, const std::string&)>& use) {
  CsvReader rows(file, limit);
  std::vector<std::string> fields;
  if (!rows.next(&fields)) {
    return;
  }
  if (!rows.problem().empty()) {
    fail_data(file, ":", rows.line(), ": ", rows.problem(), " in the header");
  }
  const size_t width = fields.size();
  use(std::move(fields), file);
  while (rows.next(&fields)) {
    const std::string place = str(file, ":", rows.line());
    if (!rows.problem().empty()) {
      bad->add(place, rows.problem());
    } else if (fields.size() != width) {
      bad->add(place, str(fields.size(), " fields where the header has ", width));
    } else {
      use(fields, place);
    }
  }
}

}  // namespace tandem
