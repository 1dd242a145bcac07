// The files of GPT-2's vocabulary: src/data/bpe/gpt2_files.cpp
#include "src/data/tokenizer.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/vocabulary.h"

using namespace tandem;

// vocab.bpe, an empty line, and encoder.json. When the latter begins with [ it lists tokens beside
// those of the 256 bytes, so that an input need not name these.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input = fuzz::text_of(data, size);
  const size_t cut = std::min(input.find("\n\n"), input.size());
  std::string encoder = input.substr(std::min(cut + 2, input.size()));
  const auto list = nlohmann::json::parse(encoder, nullptr, false);
  if (list.is_array() &&
      std::all_of(list.begin(), list.end(), [](const auto& piece) { return piece.is_string(); })) {
    encoder = fuzz::encoder_json(list.get<std::vector<std::string>>());
  }
  fuzz::folder().write("encoder.json", encoder);
  fuzz::folder().write("vocab.bpe", input.substr(0, cut));
  fuzz::accepts(ExitCode::kData, [&] {
    const auto tokenizer = load_gpt2_tokenizer(fuzz::folder().path());
    const std::string text = "aaaa the bees \u00e9\n";
    fuzz::check(tokenizer->decode(tokenizer->encode(text)) == text,
                "decoding gives the text that was encoded");
  });
  return 0;
}
