#include <algorithm>
#include <atomic>
#include <future>

#include "src/data/bpe/trainer.h"

namespace tandem {
namespace {

constexpr size_t kShare = size_t{1} << 18;  // bytes that a thread takes at once

// Whether GPT-2's pattern ends a word before `at`, whatever else stands in the text: a space or a
// line end that follows a visible ASCII character or one of the characters from U+3001 to U+D7FF,
// where languages are written that have few spaces.
bool ends_word(std::string_view text, size_t at) {
  const auto byte = [&](size_t back) { return static_cast<uint8_t>(text[at - back]); };
  if ((text[at] != ' ' && text[at] != '\n') || at < 3) {
    return false;
  }
  return (byte(1) > ' ' && byte(1) < 127) ||
         (byte(1) > 0x7F && byte(3) >= 0xE3 && byte(3) <= 0xED &&
          !(byte(3) == 0xE3 && byte(2) == 0x80 && byte(1) == 0x80));
}

// Takes at least `bytes` from the text, up to where a word ends.
std::string_view take(size_t bytes, std::string_view* text) {
  size_t end = std::min(bytes, text->size());
  while (end < text->size() && !ends_word(*text, end)) {
    ++end;
  }
  const std::string_view taken = text->substr(0, end);
  text->remove_prefix(end);
  return taken;
}

}  // namespace

std::string_view WordCounter::take_share(std::string_view* text) {
  return take(size_t{4} << 20, text);
}

void WordCounter::add(std::string_view text) {
  bytes_ += text.size();
  if (bytes_ >= counted_together_) {
    count(text);
  } else {
    texts_.emplace_back(text);
  }
}

WordCounts WordCounter::finish() {
  count("");
  for (size_t i = 1; i < shares_.size(); ++i) {
    for (const auto& [word, count] : shares_[i]) {
      shares_[0][word] += count;
    }
  }
  return std::move(shares_[0]);
}

void WordCounter::count(std::string_view last) {
  std::vector<std::string_view> parts, texts(texts_.begin(), texts_.end());
  texts.push_back(last);
  for (std::string_view text : texts) {
    while (!text.empty()) {
      parts.push_back(take(kShare, &text));
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&](WordCounts* counts) {
    const PreTokenizer pre_tokenizer(kGpt2PreTokenizer, "GPT-2's pattern");
    std::string key;
    for (size_t i = next++; i < parts.size(); i = next++) {
      pre_tokenizer.for_each_word(parts[i], [&](std::string_view word) {
        check_length(word);
        key = word;
        ++(*counts)[key];
      });
    }
  };
  std::vector<std::future<void>> others;
  for (size_t i = 1; i < shares_.size(); ++i) {
    others.push_back(std::async(std::launch::async, work, &shares_[i]));
  }
  work(&shares_[0]);
  for (std::future<void>& other : others) {
    other.get();
  }
  texts_.clear();
  bytes_ = 0;
}

}  // namespace tandem
