// Hugging Face's tokenizer.json: src/data/bpe/tokenizer_json.cpp src/data/bpe/pre_tokenizer.cpp
// src/data/bpe/regex.cpp src/data/bpe/bpe_tokenizer.cpp
#include <nlohmann/json.hpp>

#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/bpe/trainer.h"
#include "tests/data/sentence_pieces.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

namespace {

void read(const std::string& text) {
  fuzz::accepts(ExitCode::kData, [&] {
    BpeTokenizer tokenizer(parse_tokenizer_json(text, "input"), "bpe", "input");
    const std::string again = tokenizer.definition();
    fuzz::check(tokenizer_json(parse_tokenizer_json(again, "again")) == again,
                "what is written is read as the same");
    for (const int32_t id :
         tokenizer.encode("aaaa the bees' 12345 \u00e9\u4e2d <|endoftext|>\n\n")) {
      fuzz::check(id >= 0 && id < tokenizer.vocab_size(), "ids are in the vocabulary");
    }
  });
}

}  // namespace

// A JSON object changes good files (RFC 7396), so that an input need not name the bytes; anything
// else is a file itself.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string of_bytes = tokenizer_json(train_bpe({{" the", 9}, {"bees", 4}}, 262));
  static const std::string of_characters = tokenizer_json(testing::sentence_pieces());
  const std::string text = fuzz::text_of(data, size);
  const auto change = nlohmann::json::parse(text, nullptr, false);
  if (!change.is_object()) {
    read(text);
    return 0;
  }
  for (const std::string& good : {of_bytes, of_characters}) {
    auto changed = nlohmann::json::parse(good);
    changed.merge_patch(change);
    read(changed.dump());
  }
  return 0;
}
