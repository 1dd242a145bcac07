#include "src/prepare/text_reader.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "src/core/error.h"
#include "src/core/visible_text.h"
#include "src/data/sampler.h"
#include "src/data/utf8.h"
#include "src/io/byte_stream.h"
#include "src/prepare/record_reader.h"

namespace tandem {
namespace {

constexpr size_t kBlock = size_t{1} << 20;         // bytes that are read at once
constexpr size_t kMostInMemory = size_t{4} << 20;  // bytes of one plain text

bool any_is(const PrepareTextOptions& options, TextFormat format) {
  return std::ranges::count(options.input, format, text_format_of) > 0;
}

// The text in `field` of a JSON object. If there is none, returns false with the problem. Other
// members are checked but not stored: lists of numbers take eight times the memory of their text.
bool find_text(std::string_view line, const std::string& field, std::string* text,
               std::string* problem) {
  using Json = nlohmann::json;
  using Event = Json::parse_event_t;
  bool is_object = true, in_field = false, is_nested = false;
  const auto keep = [&](int depth, Event event, const Json& value) {
    switch (event) {
      case Event::key:
        if (depth == 1) {
          in_field = value == field;
          is_nested = is_nested && !in_field;  // the last of several members of one name counts
        }
        return depth == 1 && in_field;
      case Event::object_start:
      case Event::array_start:
        is_object = is_object && (depth > 0 || event == Event::object_start);
        is_nested = is_nested || (depth == 1 && in_field);
        return depth == 0 && is_object;
      default:
        return true;
    }
  };
  Json object = Json::parse(line, keep, false);
  if (object.is_discarded() && is_object) {
    *problem = "not valid JSON";
  } else if (!object.is_object()) {
    *problem = "not a JSON object";
  } else if (!is_nested && !object.contains(field)) {
    *problem = str("no field '", field, "'");
  } else if (is_nested || !object[field].is_string()) {
    *problem = str("field '", field, "' is not a string");
  } else {
    *text = std::move(object[field].get_ref<std::string&>());
    return true;
  }
  return false;
}

// One pass over all files.
class Pass {
 public:
  Pass(const PrepareTextOptions& options, BadRecords* bad,
       const std::function<void(const TextDocument&)>& use)
      : options_(options), bad_(bad), use_(use) {}

  TextReadCounts run() {
    for (const std::string& file : options_.input) {
      const TextReadCounts before = counts_;
      const int64_t bad_before = bad_->count();
      switch (text_format_of(file)) {
        case TextFormat::kPlain:
          read_plain(file);
          break;
        case TextFormat::kJsonLines:
          read_json_lines(file);
          break;
        case TextFormat::kCsv:
          read_csv(file);
          break;
      }
      if (counts_.documents == before.documents && counts_.empty == before.empty &&
          bad_->count() == bad_before) {
        fail_data(file, ": holds no text");
      }
    }
    return counts_;
  }

 private:
  void emit(const TextDocument& document) {
    if (document.text.empty()) {
      counts_.empty += document.is_record ? 1 : 0;
      return;
    }
    ++counts_.documents;
    use_(document);
  }

  void read_plain(const std::string& file) {
    ByteStream stream(file);
    Utf8Stream repair;
    std::string text, block(kBlock, '\0');
    std::unique_ptr<TemporaryFile> long_text;
    int64_t characters = 0, zeros = 0;
    for (int64_t got = 1; got > 0;) {
      got = stream.read(block.data(), std::ssize(block));
      if (stream.is_unpacked()) {
        options_.limit.check(stream.position(), [&] { return file; });
      }
      const std::string part =
          got > 0 ? repair.push({block.data(), static_cast<size_t>(got)}) : repair.finish();
      characters += count_characters(part);
      zeros += std::ranges::count(part, '\0');
      text += part;
      if (long_text || text.size() > kMostInMemory) {
        long_text = long_text ? std::move(long_text)
                              : std::make_unique<TemporaryFile>(parent_of(options_.output));
        long_text->append(text.data(), std::ssize(text));
        text.clear();
      }
    }
    require_text(file, characters, repair.broken() + zeros);
    counts_.broken_utf8 += repair.broken();
    emit({long_text ? long_text->map() : text, file, false, long_text.get()});
  }

  // A few characters may be broken even in a short text.
  static void require_text(const std::string& file, int64_t characters, int64_t odd) {
    constexpr int64_t kAFew = 8;
    if (odd > std::max(kAFew, characters / 100)) {
      fail_data(file, ": this is no text in UTF-8: ", odd, " of ", characters,
                " characters are broken or zero; name a text file, or convert this one, for ",
                "example with `iconv -f UTF-16 -t UTF-8`");
    }
  }

  void read_json_lines(const std::string& file) {
    const std::string field = options_.field.value_or("text");
    for_each_json_line(file, options_.limit, [&](std::string* line, const std::string& place) {
      std::string value, problem;
      counts_.broken_utf8 += repair_utf8(line);
      if (find_text(*line, field, &value, &problem)) {
        emit({value, place, true});
      } else {
        bad_->add(place, problem);
      }
    });
  }

  void read_csv(const std::string& file) {
    std::optional<size_t> column;
    const auto use = [&](std::vector<std::string> fields, const std::string& place) {
      if (!column) {
        column = find_column(file, fields);
        return;
      }
      counts_.broken_utf8 += repair_utf8(&fields[*column]);
      emit({fields[*column], place, true});
    };
    for_each_csv_row(file, options_.limit, bad_, use);
  }

  size_t find_column(const std::string& file, const std::vector<std::string>& header) const {
    const auto found = std::find(header.begin(), header.end(), *options_.column);
    if (std::count(found, header.end(), *options_.column) > 1) {
      fail_data(file, ": several columns are called '", *options_.column,
                "' (--column); rename one");
    }
    if (found != header.end()) {
      return static_cast<size_t>(found - header.begin());
    }
    fail_data(file, ": no column '", *options_.column, "' (--column); there are: ", joined(header));
  }

  const PrepareTextOptions& options_;
  BadRecords* bad_;
  const std::function<void(const TextDocument&)>& use_;
  TextReadCounts counts_;
};

TextReadCounts for_each_shuffled_record(const PrepareTextOptions& options, BadRecords* bad,
                                        const std::function<void(const TextDocument&)>& use) {
  std::vector<std::pair<std::string, std::string>> records;  // text, place
  int64_t empty = 0;
  const auto keep = [&](const TextDocument& document) {
    if (document.is_record) {
      records.emplace_back(document.text, document.place);
      return;
    }
    int64_t line = 0;
    for (size_t begin = 0; begin < document.text.size();) {
      const size_t end = std::min(document.text.find('\n', begin), document.text.size());
      std::string_view text = document.text.substr(begin, end - begin);
      if (text.ends_with('\r')) {
        text.remove_suffix(1);
      }
      ++line;
      begin = end + 1;
      if (text.empty()) {
        ++empty;
      } else {
        records.emplace_back(text, str(document.place, ":", line));
      }
    }
  };
  TextReadCounts counts = Pass(options, bad, keep).run();
  counts.documents = std::ssize(records);
  counts.empty += empty;
  for (int64_t i = 0; i < counts.documents; ++i) {
    const Sample next = sample_at(*options.shuffle_seed, counts.documents, i);
    const auto& [text, place] = records[static_cast<size_t>(next.index)];
    use({text, place, true});
  }
  return counts;
}

}  // namespace

void TextDocument::forget() const {
  if (file != nullptr) {
    file->forget();
  }
}

void for_each_block(const TextDocument& document,
                    const std::function<void(std::string_view)>& use) {
  for (std::string_view rest = document.text; !rest.empty();) {
    const size_t end = begin_of_character(rest, std::min(rest.size(), kBlock));
    use(rest.substr(0, end));
    rest.remove_prefix(end);
    document.forget();
  }
}

void check_text_input(const PrepareTextOptions& options) {
  if (options.field && !any_is(options, TextFormat::kJsonLines)) {
    fail(ExitCode::kConfig, "--field: there is no .jsonl, .ndjson or .json file in --input");
  }
  if (options.column && !any_is(options, TextFormat::kCsv)) {
    fail(ExitCode::kConfig, "--column: there is no .csv file in --input");
  }
  if (!options.column && any_is(options, TextFormat::kCsv)) {
    fail(ExitCode::kConfig, "--column: name the column of the .csv files that holds the text");
  }
}

TextReadCounts for_each_document(const PrepareTextOptions& options, BadRecords* bad,
                                 const std::function<void(const TextDocument&)>& use) {
  return options.shuffle_seed ? for_each_shuffled_record(options, bad, use)
                              : Pass(options, bad, use).run();
}

}  // namespace tandem
