// Encoding and decoding: src/data/tokenizer.cpp src/data/bpe/bpe_tokenizer.cpp
// src/data/bpe/merger.cpp src/data/bpe/pre_tokenizer.cpp src/data/bpe/regex.cpp
#include <algorithm>
#include <set>

#include "src/data/tokenizer.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/vocabulary.h"

using namespace tandem;
using fuzz::check;

namespace {

void check_round_trip(Tokenizer& tokenizer, std::string_view text, std::string_view repaired) {
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  check(tokenizer.decode(tokens) == repaired, "decoding gives the text that was encoded");
  StreamDecoder stream(tokenizer, true);
  std::string streamed;
  for (const int32_t token : tokens) {
    streamed += stream.push(token);
  }
  check(streamed + stream.finish() == repaired, "so does decoding one token at a time");
}

Tokenizer& gpt2_tokenizer() {
  static const auto instance = [] {
    const std::string merges =
        "i n\nt h\nth e\n\u0120 the\nr e\n\u0120 a\na a\naa aa\n\u00c3 \u00a9\n";
    fuzz::write_vocabulary({"in", "th", "the", " the", "re", " a", "aa", "aaaa", "\u00e9"}, merges);
    return load_gpt2_tokenizer(fuzz::folder().path());
  }();
  return *instance;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::text_of(data, size);
  std::string repaired = text;
  repair_utf8(&repaired);
  std::set<int32_t> characters{'a'};
  for (size_t at = 0; at < repaired.size();) {
    const Utf8Step step = read_utf8(repaired, at);
    characters.insert(step.code_point);
    at += static_cast<size_t>(step.length);
  }
  const auto bytes = make_bytes_tokenizer();
  const auto all = make_char_tokenizer({characters.begin(), characters.end()});
  for (Tokenizer* tokenizer : {bytes.get(), all.get(), &gpt2_tokenizer()}) {
    check_round_trip(*tokenizer, text, repaired);
    std::vector<int32_t> ids(size / sizeof(int32_t));
    std::copy_n(data, ids.size() * sizeof(int32_t), reinterpret_cast<uint8_t*>(ids.data()));
    fuzz::accepts(ExitCode::kData, [&] { tokenizer->decode(ids); });
  }
  // One character is missing in this vocabulary.
  const auto some = make_char_tokenizer({characters.begin(), std::prev(characters.end())});
  const bool complete = *characters.rbegin() == 'a' && repaired.find('a') == std::string::npos;
  check(fuzz::accepts(ExitCode::kData, [&] { some->encode(text); }) == complete,
        "an unknown character is an error");
  return 0;
}
