// Reads comma-separated values as RFC 4180 describes them: fields in double quotes may hold commas,
// line ends and doubled quotes. Lines may end in LF or CR LF; empty lines are skipped. A quote
// inside an unquoted field is an ordinary character.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/io/line_reader.h"

namespace tandem {

class CsvReader {
 public:
  static constexpr size_t kMostFields = 1 << 16;

  CsvReader(const std::string& path, RecordLimit limit) : lines_(path, limit), limit_(limit) {}

  // Reads the next row. Returns false at the end of the file. A row whose quoting is broken, or
  // that has more than kMostFields, has `problem()` set, and its fields mean nothing. A row above
  // the limit is Error(kData).
  bool next(std::vector<std::string>* fields);

  const std::string& problem() const { return problem_; }
  int64_t line() const { return first_line_; }  // where the row began, from 1

 private:
  bool read_quoted(size_t* at, std::string* field);

  LineReader lines_;
  RecordLimit limit_;
  std::string line_;
  std::string problem_;
  int64_t first_line_ = 0;
};

}  // namespace tandem
