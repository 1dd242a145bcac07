// Writes small text datasets.
#pragma once

#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "src/data/dataset.h"

namespace tandem::testing {

inline const std::string kHash = "0123456789abcdef0123456789abcdef";  // of no content

// A text dataset with the given tokens; each part is one document, unless starts are given. Starts
// and mask are those of training, and of validation if it has as many tokens.
template <class Token, class Start = uint64_t>
std::string write_text(const std::string& path, const std::vector<Token>& train,
                       const std::vector<Token>& val, int64_t vocab_size,
                       const std::type_identity_t<std::optional<std::vector<Start>>>& starts = {},
                       int64_t format = kDatasetFormat, const std::vector<uint8_t>& loss = {}) {
  H5Writer file(path);
  std::vector<int32_t> code_points(static_cast<size_t>(vocab_size));
  std::iota(code_points.begin(), code_points.end(), 32);
  make_char_tokenizer(code_points)->save(&file);
  file.write_all<Token>("/train/tokens", train);
  file.write_all<Token>("/val/tokens", val);
  const bool is_alike = val.size() == train.size();
  if (format == kDatasetFormat) {
    const auto end = [](const std::vector<Token>& tokens) {
      return static_cast<Start>(tokens.size());
    };
    const std::vector<Start> none = {0}, of_train = {0, end(train)}, of_val = {0, end(val)};
    file.write_all<Start>("/train/starts", starts.value_or(of_train));
    file.write_all<Start>("/val/starts",
                          is_alike ? starts.value_or(of_val) : (val.empty() ? none : of_val));
  }
  if (!loss.empty()) {
    file.write_all<uint8_t>("/train/loss", loss);
    file.write_all<uint8_t>("/val/loss", is_alike ? loss : std::vector<uint8_t>(val.size(), 1));
  }
  file.set_attribute("/", "kind", std::string("text"));
  file.set_attribute("/", "vocab_size", std::vector<int64_t>{vocab_size});
  file.set_attribute("/", "format", std::vector<int64_t>{format});
  file.set_attribute("/", "content_hash", kHash);
  file.commit();
  return path;
}

template <class Token>
std::vector<Token> counting(int64_t count) {
  std::vector<Token> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), Token{0});
  return tokens;
}

}  // namespace tandem::testing
