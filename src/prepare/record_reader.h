// Lines of JSON and rows of CSV, with the places of their records ("a.jsonl:17").
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/record_limit.h"
#include "src/prepare/bad_records.h"

namespace tandem {

// By the name of a file, which may end in .gz: .jsonl, .ndjson and .json (web corpora call lines of
// JSON so), .csv, and everything else.
enum class TextFormat { kPlain, kJsonLines, kCsv };
TextFormat text_format_of(const std::string& file);

// Calls `use(&line, place)` for each line that is not blank, without a byte order mark. Bytes are
// as the file has them; `use` may change them. Throws kData when the file is missing or a line is
// above the limit.
void for_each_json_line(const std::string& file, RecordLimit limit,
                        const std::function<void(std::string*, const std::string&)>& use);

// Calls `use(fields, place)` for the header, and then for each row; rows that are broken or have
// another number of fields go to `bad`. Throws kData when the file is missing, its header is
// broken, or a row is above the limit.
void for_each_csv_row(const std::string& file, RecordLimit limit, BadRecords* bad,
                      const std::function<void(std::vector<std::string>, const std::string&)>& use);

}  // namespace tandem
