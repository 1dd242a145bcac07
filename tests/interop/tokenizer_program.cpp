// Tokenizers for tests/interop/check_tokenizers.py and tests/bench/tokenizers_bench.py:
//   tandem_tokenizer encode FOLDER TEXTS        the ids of each text, with BOS and EOS, as JSON
//   tandem_tokenizer repeat FOLDER TEXTS        each text encoded and decoded
//   tandem_tokenizer train SIZE THREADS TEXTS   the trained tokenizer.json
// TEXTS is a file with a JSON list of texts. The last line says how many seconds the work took,
// without reading and writing.
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/data/bpe/trainer.h"
#include "src/data/tokenizer.h"
#include "src/io/byte_stream.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using Texts = std::vector<std::string>;

Texts read_texts(const std::string& path) {
  return nlohmann::json::parse(read_whole_file(path)).get<Texts>();
}

void print(const std::string& result, Clock::time_point begin, Clock::time_point end) {
  std::printf("%s\n%.6f\n", result.c_str(), std::chrono::duration<double>(end - begin).count());
}

void encode(const std::string& folder, const Texts& texts) {
  const auto tokenizer = load_hugging_face_tokenizer(folder);
  std::vector<std::vector<int32_t>> ids(texts.size());
  const auto begin = Clock::now();
  for (size_t i = 0; i < texts.size(); ++i) {
    tokenizer->append_tokens(texts[i], &ids[i]);
  }
  const auto end = Clock::now();
  for (auto& one : ids) {
    one.insert(one.begin(), tokenizer->before_text().begin(), tokenizer->before_text().end());
    one.insert(one.end(), tokenizer->after_text().begin(), tokenizer->after_text().end());
  }
  print(nlohmann::json(ids).dump(), begin, end);
}

void repeat(const std::string& folder, Texts texts) {
  const auto tokenizer = load_hugging_face_tokenizer(folder);
  const auto begin = Clock::now();
  for (std::string& text : texts) {
    text = tokenizer->decode(tokenizer->encode(text));
  }
  print(nlohmann::json(texts).dump(-1, ' ', true), begin, Clock::now());
}

void train(int64_t size, int threads, const Texts& texts) {
  const auto begin = Clock::now();
  WordCounter counter(threads);
  for (const std::string& text : texts) {
    counter.add(text);
  }
  const BpeModel model = train_bpe(counter.finish(), size);
  const auto end = Clock::now();
  print(tokenizer_json(model), begin, end);
}

}  // namespace
}  // namespace tandem

int main(int count, char** words) {
  const std::vector<std::string> all(words + 1, words + count);
  try {
    if (all.size() == 3 && all[0] == "encode") {
      tandem::encode(all[1], tandem::read_texts(all[2]));
    } else if (all.size() == 3 && all[0] == "repeat") {
      tandem::repeat(all[1], tandem::read_texts(all[2]));
    } else if (all.size() == 4 && all[0] == "train") {
      tandem::train(std::stoll(all[1]), std::stoi(all[2]), tandem::read_texts(all[3]));
    } else {
      std::fprintf(stderr,
                   "tandem_tokenizer encode|repeat FOLDER TEXTS | train SIZE THREADS TEXTS\n");
      return 2;
    }
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
