#include "src/data/bpe/bpe_tokenizer.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "src/core/error.h"
#include "src/data/bpe/normalizer.h"
#include "src/data/utf8.h"

namespace tandem {
namespace {

constexpr size_t kLongestCachedWord = 64;
constexpr size_t kCachedWords = size_t{1} << 18;

}  // namespace

AddedTokenFinder::AddedTokenFinder(const BpeModel& model, bool normalized) {
  std::vector<std::string> contents;
  bool any = false;
  for (const AddedToken& token : model.added) {
    if (token.normalized == normalized) {
      std::string content = model.pieces[static_cast<size_t>(token.id)], storage;
      if (normalized && model.normalizes) {
        content = std::string(in_normal_form_c(content, &storage));
      }
      tokens_.emplace(content, Found{token.id, token.special});
      contents.push_back(content);
      any = any || !token.special;
    }
  }
  if (!any) {
    return;
  }
  std::ranges::stable_sort(contents, std::greater<>(), &std::string::size);
  std::string source;
  for (const std::string& content : contents) {
    source += (source.empty() ? "" : "|") + regex_of_text(content);
  }
  regex_.emplace(source, "added tokens");
}

template <class UseText, class UseToken>
void AddedTokenFinder::for_each_part(std::string_view text, const UseText& use_text,
                                     const UseToken& use_token) const {
  size_t used = 0;
  for (size_t at = 0; regex_ && at < text.size();) {
    const Regex::Match match = regex_->find(text, at);
    at = match.end;
    if (match.begin == match.end) {
      break;
    }
    const Found found = tokens_.at(std::string(text.substr(match.begin, match.end - match.begin)));
    if (!found.special) {
      use_text(text.substr(used, match.begin - used));
      use_token(found.id);
      used = match.end;
    }
  }
  use_text(text.substr(used));
}

BpeTokenizer::BpeTokenizer(BpeModel model, std::string_view kind, const std::string& place)
    : kind_(kind),
      model_(std::move(model)),
      merger_(model_.merges),
      pre_tokenizer_(model_.pre_tokenizer, place + ": pre_tokenizer"),
      added_{AddedTokenFinder(model_, false), AddedTokenFinder(model_, true)} {
  auto ids = ordinary_tokens(model_, place);
  for (int byte = 0; byte < 256; ++byte) {
    const auto letter = static_cast<char>(byte);
    byte_ids_[static_cast<size_t>(byte)] = ids.at(std::string_view(&letter, 1));
  }
  for (const BpeMerge& merge : model_.merges) {
    const auto bytes = [&](int32_t id) { return std::string(piece(id)); };
    if (bytes(merge.left) + bytes(merge.right) != bytes(merge.result)) {
      fail_data(place, ": a merge makes a token of other bytes: id ", merge.result);
    }
  }
  if (merger_.size() != model_.merges.size()) {
    fail_data(place, ": a merge stands there twice");
  }
  if (model_.ignore_merges) {
    whole_words_ = std::move(ids);
  }
}

std::string BpeTokenizer::definition() const {
  return kind_ == "gpt2" ? "" : tokenizer_json(model_);
}

void BpeTokenizer::append_tokens(std::string_view text, std::vector<int32_t>* tokens,
                                 const Drain& drain) {
  std::string repaired;
  if (!drain && valid_utf8_prefix(text) != text.size()) {
    repaired = text;
    repair_utf8(&repaired);
    text = repaired;
  }
  const auto use_word = [&](std::string_view word) {
    encode_word(word, tokens);
    drain_if_full(*tokens, drain);
  };
  const auto use_token = [&](int32_t id) { tokens->push_back(id); };
  std::string storage;
  added_[0].for_each_part(
      text,
      [&](std::string_view part) {
        added_[1].for_each_part(
            model_.normalizes ? in_normal_form_c(part, &storage) : part,
            [&](std::string_view rest) { pre_tokenizer_.for_each_word(rest, use_word); },
            use_token);
      },
      use_token);
}

void BpeTokenizer::encode_word(std::string_view word, std::vector<int32_t>* tokens) {
  if (const auto found = cache_.find(word); found != cache_.end()) {
    tokens->insert(tokens->end(), found->second.begin(), found->second.end());
    return;
  }
  std::vector<int32_t> symbols;
  if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
    symbols.push_back(whole->second);
  } else {
    symbols.reserve(word.size());
    for (const char byte : word) {
      symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
    merger_.merge(&symbols);
  }
  tokens->insert(tokens->end(), symbols.begin(), symbols.end());
  if (word.size() <= kLongestCachedWord) {
    if (cache_.size() >= kCachedWords) {
      cache_.clear();
    }
    cache_.emplace(word, std::move(symbols));
  }
}

}  // namespace tandem
