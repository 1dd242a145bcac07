// The tokens of one split of a text, and where its documents begin.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/prepare/temporary_file.h"

namespace tandem {

// Token: the narrowest type that holds the vocabulary.
template <class Token>
class TokenPart {
 public:
  explicit TokenPart(const std::string& folder) : tokens_(folder), starts_(folder), loss_(folder) {}

  void append(std::span<const int32_t> tokens) {
    const std::vector<Token> narrow(tokens.begin(), tokens.end());
    tokens_.append(narrow.data(), std::ssize(narrow) * static_cast<int64_t>(sizeof(Token)));
    last_ = tokens.empty() ? last_ : tokens.back();
  }
  // For each of these tokens whether it is learned; all of a part have it, or none.
  void append(std::span<const int32_t> tokens, std::span<const uint8_t> loss) {
    append(tokens);
    loss_.append(loss.data(), std::ssize(loss));
  }
  // A document begins here, or nothing follows. What stands before the first document belongs to
  // it, and one without tokens is none.
  void mark() {
    if (starts_.bytes() == 0) {
      add_start(0);
    } else if (count() > last_start_) {
      add_start(count());
    }
  }

  int32_t last() const { return last_; }  // -1: there is none
  const TemporaryFile& tokens() const { return tokens_; }
  const TemporaryFile& starts() const { return starts_; }
  const TemporaryFile& loss() const { return loss_; }

 private:
  uint64_t count() const { return static_cast<uint64_t>(tokens_.bytes()) / sizeof(Token); }
  void add_start(uint64_t start) {
    starts_.append(&start, sizeof start);
    last_start_ = start;
  }

  TemporaryFile tokens_, starts_, loss_;  // Token, uint64_t, uint8_t
  uint64_t last_start_ = 0;
  int32_t last_ = -1;
};

}  // namespace tandem
