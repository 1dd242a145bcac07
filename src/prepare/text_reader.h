// Reads the documents of text files: plain text, JSON lines, CSV.
//
// The name of a file decides: .jsonl, .ndjson and .json hold one JSON object per line with the text
// in one field, .csv a header row and one record per row with the text in one column, everything
// else is one document of plain text. Each may be gzip-compressed (.gz after the rest of the name).
// Broken UTF-8 becomes U+FFFD (src/data/utf8.h) and is counted. Nothing else is changed: line ends
// and byte order marks of plain text stay. A plain text of which more than one character in a
// hundred is broken or zero is no text, and an error.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/prepare/bad_records.h"
#include "src/prepare/prepare.h"
#include "src/prepare/temporary_file.h"

namespace tandem {

struct TextDocument {
  std::string_view text;  // valid UTF-8
  std::string place;      // "a.jsonl:17", or the file
  bool is_record;         // a line of JSON or a row of CSV; false: a whole file
  // Holds a text that is too long for memory. Whoever reads it calls forget() now and then.
  const TemporaryFile* file = nullptr;

  void forget() const;  // gives back the memory of what was read
};

// Calls `use` for parts of the text of at most 1 MiB, cut between characters, in order.
void for_each_block(const TextDocument& document, const std::function<void(std::string_view)>& use);

struct TextReadCounts {
  int64_t documents = 0;
  int64_t empty = 0;        // records without any text, left out
  int64_t broken_utf8 = 0;  // sequences replaced by U+FFFD
};

// Throws kConfig when `field` is given without a JSON lines file, `column` without a CSV file, or a
// CSV file without `column`.
void check_text_input(const PrepareTextOptions& options);

// Calls `use` for every document, in order; the text is there until it returns. Records that cannot
// be read go to `bad`. Throws kData when a file is missing or empty, a record is above the limit,
// or a CSV file lacks the column. The limit does not apply to plain text that is not compressed.
// With `shuffle_seed` each line of plain text is a record without its line end, those without any
// text are left out, and all records come in an order that only the seed and their number decide.
TextReadCounts for_each_document(const PrepareTextOptions& options, BadRecords* bad,
                                 const std::function<void(const TextDocument&)>& use);

}  // namespace tandem
