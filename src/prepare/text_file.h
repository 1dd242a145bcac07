// The file of a text dataset (src/data/dataset.h).
#pragma once

#include <algorithm>
#include <string>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/data/dataset.h"
#include "src/data/tokenizer.h"
#include "src/io/content_hash.h"
#include "src/io/hdf5/hdf5.h"
#include "src/prepare/prepare.h"
#include "src/prepare/token_part.h"

namespace tandem {

// Lines about what was left out or repaired. `unended`: the folder of a tokenizer without an end of
// text, or "".
inline std::string notes_of(const PrepareReport& report, const std::string& unended,
                            const std::string& consequence) {
  std::string text;
  const auto add_if = [&](int64_t count, const std::string& line) {
    text += count > 0 ? "  " + line + "\n" : "";
  };
  add_if(report.broken_utf8,
         counted(report.broken_utf8, "broken UTF-8 sequence") + " read as U+FFFD");
  add_if(report.bad, "left out: " + counted(report.bad, "bad record"));
  add_if(report.empty, "left out: " + counted(report.empty, "record") + " without text");
  add_if(report.leaked, str("leakage: ", counted(report.leaked, "validation record"),
                            " also in the training part"));
  add_if(!unended.empty(),
         str("no eos_token in ", unended, "/tokenizer_config.json: ", consequence));
  add_if(report.val_count == 0,
         "there is no validation part: `tandem eval` will refuse this dataset");
  return text;
}

// Calls f.template operator()<Token>() with the narrowest type that holds the vocabulary.
template <class F>
void with_token_type(int64_t vocab_size, F f) {
  vocab_size <= 65536 ? f.template operator()<uint16_t>() : f.template operator()<uint32_t>();
}

// Writes all of it, and into the report the numbers of tokens, the first tokens and the hash.
template <class Token>
void write_text_file(const Tokenizer& tokenizer, const TokenPart<Token>& train,
                     const TokenPart<Token>& val, H5Writer* file, PrepareReport* report) {
  tokenizer.save(file);
  ContentHash hash;
  add_to_hash(tokenizer, &hash);
  const auto write = [&]<class T>(T, const std::string& name, const TemporaryFile& values) {
    const int64_t count = values.bytes() / static_cast<int64_t>(sizeof(T));
    file->create_dataset(name, h5_type_of<T>, {count});
    values.for_each_block<T>([&](int64_t at, std::span<const T> block) {
      file->write<T>(name, at, block);
      hash.add(block.data(), static_cast<int64_t>(block.size_bytes()));
      if (report->first_tokens.empty()) {
        const auto shown = block.first(std::min<size_t>(block.size(), 10));
        report->first_tokens.assign(shown.begin(), shown.end());
      }
    });
    return count;
  };
  const bool is_masked = train.loss().bytes() > 0;
  const auto write_part = [&](const std::string& group, const TokenPart<Token>& part) {
    const int64_t count = write(Token(), group + "/tokens", part.tokens());
    write(uint64_t(), group + "/starts", part.starts());
    if (is_masked) {
      write(uint8_t(), group + "/loss", part.loss());
    }
    return count;
  };
  report->vocab_size = tokenizer.vocab_size();
  report->train_count = write_part("/train", train);
  report->val_count = write_part("/val", val);
  add_to_hash({.kind = DatasetKind::kText,
               .train_count = report->train_count,
               .val_count = report->val_count,
               .vocab_size = report->vocab_size},
              &hash);
  report->content_hash = hash.digest().hex();
  file->set_attribute("/", "kind", std::string("text"));
  file->set_attribute("/", "format", std::vector<int64_t>{kDatasetFormat});
  file->set_attribute("/", "vocab_size", std::vector<int64_t>{report->vocab_size});
  file->set_attribute("/", "content_hash", report->content_hash);
  file->commit();
}

}  // namespace tandem
