#include "src/prepare/csv_reader.h"

#include <algorithm>

#include "src/core/error.h"

namespace tandem {

bool CsvReader::next(std::vector<std::string>* fields) {
  fields->clear();
  problem_.clear();
  do {
    if (!lines_.next(&line_)) {
      return false;
    }
  } while (line_.empty() || line_ == "\r");
  first_line_ = lines_.number();
  // line_ changes while a quoted field runs over several lines; `at` is a place in the current one.
  for (size_t at = 0;;) {
    if (fields->size() == kMostFields) {
      problem_ = str("more than ", kMostFields, " fields");
      return true;
    }
    std::string& field = fields->emplace_back();
    if (at < line_.size() && line_[at] == '"') {
      if (!read_quoted(&at, &field)) {
        return true;
      }
    } else {
      const size_t end = std::min(line_.find(',', at), line_.size());
      field = line_.substr(at, end - at);
      at = end;
      if (at == line_.size() && field.ends_with('\r')) {
        field.pop_back();
      }
    }
    if (at >= line_.size()) {
      return true;
    }
    ++at;  // the comma
  }
}

// Reads from the opening quote to the comma or line end after the closing one.
bool CsvReader::read_quoted(size_t* at, std::string* field) {
  ++*at;
  for (;;) {
    const size_t quote = line_.find('"', *at);
    if (quote == std::string::npos) {
      field->append(line_, *at);
      const bool more = lines_.ended_in_newline();
      if (!more || !lines_.next(&line_)) {
        problem_ = "a quoted field that is never closed";
        return false;
      }
      field->push_back('\n');
      limit_.check(std::ssize(*field) + std::ssize(line_),
                   [&] { return str(lines_.path(), ":", first_line_); });
      *at = 0;
      continue;
    }
    field->append(line_, *at, quote - *at);
    *at = quote + 1;
    if (*at < line_.size() && line_[*at] == '"') {
      field->push_back('"');
      ++*at;
      continue;
    }
    if (*at == line_.size() - 1 && line_[*at] == '\r') {
      ++*at;
    }
    if (*at < line_.size() && line_[*at] != ',') {
      problem_ = str("text after a closing quote, at column ", *at + 1);
      return false;
    }
    return true;
  }
}

}  // namespace tandem
