// BPE: text is cut into words, and the bytes or characters of each word are merged by rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/data/bpe/merger.h"
#include "src/data/bpe/model.h"
#include "src/data/bpe/normalizer.h"
#include "src/data/bpe/pre_tokenizer.h"
#include "src/data/bpe/regex.h"
#include "src/data/tokenizer.h"

namespace tandem {

// Added tokens that are found in text before it is cut into words: the longest of those that begin
// first. Special ones are found and left as text, so that they hide what `tokenizers` hides too.
class AddedTokenFinder {
 public:
  // Of the model's added tokens those with this `normalized`.
  AddedTokenFinder(const BpeModel& model, const Normalizer& normalizer, bool normalized);

  // Calls use_text and use_token for the parts of the text, in order.
  template <class UseText, class UseToken>
  void for_each_part(std::string_view text, const UseText& use_text,
                     const UseToken& use_token) const;

 private:
  struct Found {
    int32_t id;
    bool special;
  };
  std::optional<Regex> regex_;  // nothing when no token is ever found
  std::unordered_map<std::string, Found> tokens_;
};

class BpeTokenizer : public Tokenizer {
 public:
  // `kind`: "bpe", or "gpt2" for a model of read_gpt2_files, which then is kept in files as
  // earlier versions kept it. `place` begins the messages of errors, all kData.
  BpeTokenizer(BpeModel model, std::string_view kind, const std::string& place);

  const BpeModel& model() const { return model_; }

  std::string_view kind() const override { return kind_; }
  int64_t vocab_size() const override { return std::ssize(model_.pieces); }
  std::optional<int32_t> end_of_text() const override { return model_.end_of_text; }
  std::span<const int32_t> before_text() const override { return model_.before; }
  std::span<const int32_t> after_text() const override { return model_.after; }
  std::string_view piece(int32_t token) const override {
    return (model_.byte_fallback ? texts_ : model_.pieces)[static_cast<size_t>(token)];
  }
  std::optional<int32_t> special_token(std::string_view name) const override;
  bool strips_space() const override { return model_.strips_space; }
  std::string definition() const override;

  void append_tokens(std::string_view text, std::vector<int32_t>* tokens,
                     const Drain& drain) override;

 private:
  // A hash that accepts string_view, so that looking up a word in the cache copies nothing.
  struct WordHash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };

  void save_vocabulary(H5Writer* file) const override;
  void read_texts();
  void encode_word(std::string_view word, std::vector<int32_t>* tokens);
  std::vector<int32_t> symbols_of(std::string_view word) const;

  std::string kind_;
  BpeModel model_;
  std::vector<std::string> texts_;  // the bytes of each token with byte_fallback
  BytePairMerger merger_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::array<AddedTokenFinder, 2> added_;  // in the order in which they are looked for
  std::array<int32_t, 256> byte_ids_{};
  TokenIds ids_;
  bool cuts_spaces_ = false;  // no merge goes across the beginning of spaces
  std::unordered_map<std::string, std::vector<int32_t>, WordHash, std::equal_to<>> cache_;
};

}  // namespace tandem
