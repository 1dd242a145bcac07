#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/visible_text.h"
#include "src/data/sampler.h"
#include "src/data/tokenizer.h"
#include "src/data/utf8.h"
#include "src/io/file.h"
#include "src/io/hdf5/hdf5.h"
#include "src/prepare/bad_records.h"
#include "src/prepare/prepare.h"
#include "src/prepare/record_fields.h"
#include "src/prepare/record_reader.h"
#include "src/prepare/sft_record.h"
#include "src/prepare/text_file.h"
#include "src/prepare/token_part.h"

namespace tandem {
namespace {

ChatTokens encode(const std::vector<ChatPart>& parts, bool is_plain, Tokenizer& tokenizer) {
  ChatTokens example;
  if (!is_plain) {
    append_parts(parts, tokenizer, &example);
    return example;
  }
  example.add(tokenizer.before_text(), false);
  append_parts(parts, tokenizer, &example);
  example.add(tokenizer.after_text(), true);
  const auto end_of_text = tokenizer.end_of_text();
  if (end_of_text && example.tokens.back() != *end_of_text) {
    example.add(std::array{*end_of_text}, true);
  }
  return example;
}

std::vector<ChatTokens> read_examples(const PrepareSftOptions& options, Tokenizer& tokenizer,
                                      BadRecords* bad) {
  std::vector<ChatTokens> examples;
  const auto add = [&](const nlohmann::json& record, std::string problem,
                       const std::string& place) {
    const auto parts =
        problem.empty() ? sft_parts(record, options.form, &problem) : std::vector<ChatPart>();
    if (parts.empty()) {
      bad->add(place, problem);
    } else {
      examples.push_back(
          at_place(place, [&] { return encode(parts, options.form == "plain", tokenizer); }));
    }
  };
  for (const std::string& file : options.input) {
    std::vector<std::string> header;
    if (text_format_of(file) == TextFormat::kJsonLines) {
      for_each_json_line(file, options.limit, [&](std::string* line, const std::string& place) {
        std::string problem;
        const nlohmann::json record = parsed_record(*line, is_sft_field, &problem);
        add(record, problem, place);
      });
    } else if (text_format_of(file) == TextFormat::kCsv) {
      const auto use = [&](std::vector<std::string> fields, const std::string& place) {
        if (header.empty()) {
          header = std::move(fields);
          for (const std::string& name : header) {
            if (is_sft_field(name) && std::ranges::count(header, name) > 1) {
              fail_data(place, ": several columns are called '", name, "'; rename all but one");
            }
          }
          return;
        }
        nlohmann::json record = nlohmann::json::object();
        bool is_valid = true;
        for (size_t i = 0; i < header.size(); ++i) {
          is_valid = is_valid && valid_utf8_prefix(fields[i]) == fields[i].size();
          record[header[i]] = fields[i];
        }
        add(record, is_valid ? "" : "not valid UTF-8", place);
      };
      for_each_csv_row(file, options.limit, bad, use);
    } else {
      fail(ExitCode::kConfig, "--input ", file, ": expected .jsonl, .ndjson, .json or .csv");
    }
  }
  bad->finish();
  if (examples.empty()) {
    fail_data(options.input[0], ": holds no record");
  }
  return examples;
}

template <class Token>
void write_examples(const PrepareSftOptions& options, const std::vector<ChatTokens>& examples,
                    const Tokenizer& tokenizer, H5Writer* file, PrepareReport* report) {
  const std::string folder = parent_of(options.output);
  TokenPart<Token> train(folder), val(folder);
  LeakedRecords leaks(folder);
  const int64_t count = std::ssize(examples);
  const int64_t for_training = std::max<int64_t>(
      1, static_cast<int64_t>(static_cast<double>(count) * (1.0 - options.val_fraction)));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = options.shuffle_seed ? sample_at(*options.shuffle_seed, count, i).index : i;
    const ChatTokens& example = examples[static_cast<size_t>(at)];
    TokenPart<Token>& part = i < for_training ? train : val;
    part.mark();
    part.append(example.tokens, example.loss);
    leaks.add({reinterpret_cast<const char*>(example.tokens.data()),
               example.tokens.size() * sizeof(int32_t)},
              i >= for_training);
    report->learned += std::ranges::count(example.loss, 1);
    report->longest = std::max(report->longest, std::ssize(example.tokens));
  }
  train.mark();
  val.mark();
  write_text_file(tokenizer, train, val, file, report);
  report->leaked = leaks.count();
}

void print_report(const PrepareSftOptions& options, const Tokenizer& tokenizer,
                  const PrepareReport& report) {
  const bool ends =
      options.form != "plain" || tokenizer.end_of_text() || !tokenizer.after_text().empty();
  show("%s", str(options.output, ": ", counted(report.documents, "record"), "\n  train ",
                 counted(report.train_count, "token"), ", val ", counted(report.val_count, "token"),
                 ", ", report.learned, " of them learned; the longest record has ", report.longest,
                 "\n  train with data.windows = documents\n",
                 notes_of(report, ends ? "" : options.tokenizer, "nothing ends a completion"))
                 .c_str());
}

}  // namespace

PrepareReport prepare_sft(const PrepareSftOptions& options) {
  make_directories(parent_of(options.output));
  // Created first, so that an output that cannot be written fails before the work begins.
  H5Writer file(options.output);
  const auto tokenizer = load_hugging_face_tokenizer(options.tokenizer);
  if (options.form != "plain") {
    tokenizer->chat_template = options.form;
  }
  BadRecords bad(options.max_bad);
  const std::vector<ChatTokens> examples = read_examples(options, *tokenizer, &bad);
  PrepareReport report;
  report.documents = std::ssize(examples);
  report.bad = bad.count();
  with_token_type(tokenizer->vocab_size(), [&]<class Token>() {
    write_examples<Token>(options, examples, *tokenizer, &file, &report);
  });
  print_report(options, *tokenizer, report);
  return report;
}

}  // namespace tandem
