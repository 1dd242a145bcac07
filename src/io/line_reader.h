// Reads a text file (gzip-compressed or not) line by line. A byte order mark before the first line
// is left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/io/byte_stream.h"

namespace tandem {

class LineReader {
 public:
  LineReader(const std::string& path, RecordLimit limit) : stream_(path), limit_(limit) {}

  // Reads the next line without its LF (a CR before it stays). False at the end of the file; text
  // after the last LF is a line too. A line above the limit is Error(kData).
  bool next(std::string* line);

  const std::string& path() const { return stream_.path(); }
  int64_t number() const { return number_; }                   // of the last line read, from 1
  bool ended_in_newline() const { return ended_in_newline_; }  // whether that line had its LF

 private:
  ByteStream stream_;
  RecordLimit limit_;
  std::vector<char> buffer_;
  size_t at_ = 0;
  int64_t number_ = 0;
  bool ended_in_newline_ = false;
};

}  // namespace tandem
