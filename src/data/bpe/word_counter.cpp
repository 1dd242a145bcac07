#include <algorithm>
#include <atomic>
#include <future>

#include "src/data/bpe/trainer.h"

namespace tandem {
namespace {

constexpr size_t kCountedTogether = size_t{64} << 20;  // bytes of text
constexpr size_t kShare = size_t{1} << 18;             // bytes that a thread takes at once

// Cuts a text into parts of about kShare bytes. GPT-2's pattern ends a word before a space that
// follows a visible ASCII character, whatever else stands there; cuts are made only in such places.
void cut(std::string_view text, std::vector<std::string_view>* parts) {
  while (text.size() > kShare) {
    size_t end = kShare;
    while (end < text.size() && !(text[end] == ' ' && text[end - 1] > ' ' && text[end - 1] < 127)) {
      ++end;
    }
    parts->push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  parts->push_back(text);
}

}  // namespace

void WordCounter::add(std::string_view text) {
  texts_.emplace_back(text);
  bytes_ += text.size();
  if (bytes_ >= kCountedTogether) {
    count();
  }
}

WordCounts WordCounter::finish() {
  count();
  for (size_t i = 1; i < shares_.size(); ++i) {
    for (const auto& [word, count] : shares_[i]) {
      shares_[0][word] += count;
    }
  }
  return std::move(shares_[0]);
}

void WordCounter::count() {
  std::vector<std::string_view> parts;
  for (const std::string& text : texts_) {
    cut(text, &parts);
  }
  std::atomic<size_t> next = 0;
  const auto work = [&](WordCounts* counts) {
    const PreTokenizer pre_tokenizer(kGpt2PreTokenizer, "GPT-2's pattern");
    std::string key;
    for (size_t i = next++; i < parts.size(); i = next++) {
      pre_tokenizer.for_each_word(parts[i], [&](std::string_view word) {
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
