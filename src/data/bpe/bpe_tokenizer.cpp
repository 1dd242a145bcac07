#include "src/data/bpe/bpe_tokenizer.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/data/utf8.h"

namespace tandem {
namespace {

constexpr size_t kLongestCachedWord = 64;
constexpr size_t kCachedWords = size_t{1} << 18;
constexpr std::string_view kSpace = "▁";  // as SentencePiece names it

// The first place after `at` where spaces begin, or the end.
size_t next_spaces(std::string_view text, size_t at) {
  do {
    at = text.find(kSpace, at + 1);
  } while (at != text.npos && text.substr(0, at).ends_with(kSpace));
  return std::min(at, text.size());
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const BpeModel& model, const Normalizer& normalizer,
                                   bool normalized) {
  std::vector<std::string> contents;
  bool any = false;
  for (const AddedToken& token : model.added) {
    if (token.normalized == normalized) {
      std::string content = model.pieces[static_cast<size_t>(token.id)], storage;
      if (normalized) {
        content = std::string(normalizer.normalize(content, &storage));
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
  regex_.emplace(joined(mapped(contents, regex_of_text), "|"), "added tokens");
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
      normalizer_(model_.normalizer, place + ": normalizer"),
      pre_tokenizer_(model_.pre_tokenizer, place + ": pre_tokenizer", !model_.byte_fallback),
      added_{AddedTokenFinder(model_, normalizer_, false),
             AddedTokenFinder(model_, normalizer_, true)},
      ids_(ordinary_tokens(model_, place)),
      cuts_spaces_(model_.byte_fallback && !model_.ignore_merges) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[static_cast<size_t>(byte)] = ids_.at(byte_piece(model_, byte));
  }
  for (const BpeMerge& merge : model_.merges) {
    const auto name = [&](int32_t id) { return model_.pieces[static_cast<size_t>(id)]; };
    const std::string result = name(merge.result);
    if (name(merge.left) + name(merge.right) != result) {
      fail_data(place, ": a merge makes a token of other bytes: id ", merge.result);
    }
    cuts_spaces_ = cuts_spaces_ && next_spaces(result, 0) == result.size();
  }
  if (merger_.size() != model_.merges.size()) {
    fail_data(place, ": a merge stands there twice");
  }
  if (model_.byte_fallback) {
    read_texts();
  }
}

void BpeTokenizer::read_texts() {
  texts_ = mapped(model_.pieces,
                  [](const std::string& name) { return with_replaced(name, kSpace, " "); });
  for (int byte = 0; byte < 256; ++byte) {
    texts_[static_cast<size_t>(byte_ids_[static_cast<size_t>(byte)])] = static_cast<char>(byte);
  }
}

std::optional<int32_t> BpeTokenizer::special_token(std::string_view name) const {
  const auto found = std::ranges::find_if(model_.added, [&](const AddedToken& token) {
    return token.special && model_.pieces[static_cast<size_t>(token.id)] == name;
  });
  return found == model_.added.end() ? std::nullopt : std::optional(found->id);
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
    for (size_t at = 0, end = 0; at < word.size(); at = end) {
      end = cuts_spaces_ ? next_spaces(word, at) : word.size();
      encode_word(word.substr(at, end - at), tokens);
      drain_if_full(*tokens, drain);
    }
  };
  const auto use_token = [&](int32_t id) { tokens->push_back(id); };
  std::string storage;
  added_[0].for_each_part(
      text,
      [&](std::string_view part) {
        const std::string_view normal = normalizer_.normalize(part, &storage);
        added_[1].for_each_part(
            normal,
            [&](std::string_view rest) {
              const bool begins = part.data() == text.data() && rest.data() == normal.data();
              pre_tokenizer_.for_each_word(rest, use_word, begins);
            },
            use_token);
      },
      use_token);
}

void BpeTokenizer::encode_word(std::string_view word, std::vector<int32_t>* tokens) {
  if (const auto found = cache_.find(word); found != cache_.end()) {
    tokens->insert(tokens->end(), found->second.begin(), found->second.end());
    return;
  }
  check_length(word);
  std::vector<int32_t> symbols = symbols_of(word);
  merger_.merge(&symbols);
  tokens->insert(tokens->end(), symbols.begin(), symbols.end());
  if (word.size() <= kLongestCachedWord) {
    if (cache_.size() >= kCachedWords) {
      cache_.clear();
    }
    cache_.emplace(word, std::move(symbols));
  }
}

std::vector<int32_t> BpeTokenizer::symbols_of(std::string_view word) const {
  if (const auto whole = model_.ignore_merges ? ids_.find(word) : ids_.end(); whole != ids_.end()) {
    return {whole->second};
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  size_t length = 1;
  for (size_t at = 0; at < word.size(); at += length) {
    if (model_.byte_fallback) {
      length = static_cast<size_t>(read_utf8(word, at).length);
      if (const auto found = ids_.find(word.substr(at, length)); found != ids_.end()) {
        symbols.push_back(found->second);
        continue;
      }
    }
    for (const char byte : word.substr(at, length)) {
      symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
  }
  return symbols;
}

}  // namespace tandem
