#include "src/inference/text_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace tandem {

TextWriter::TextWriter(TextRequest request, const Tokenizer& tokenizer)
    : request_(std::move(request)),
      tokenizer_(tokenizer),
      sampler_(request_.sampling, request_.number),
      decoder_(tokenizer, request_.is_beginning) {
  if (request_.tells_prompt) {
    chosen_.push_back({{tokenizer.decode(std::array{request_.prompt[0]}), std::nan("")}, {}});
  }
}

void TextWriter::next(std::span<const float> logits) {
  if (request_.tokens == 0) {
    has_ended_ = is_cut_ = true;
    return;
  }
  last_ = sampler_.pick(logits);
  ++tokens_;
  if (request_.likeliest >= 0) {
    tell(last_, logits);
  }
  const bool is_end = std::ranges::count(request_.ends, last_) > 0;
  const bool is_stop = !is_end && !push(decoder_.push(last_));
  is_cut_ = !is_end && !is_stop && tokens_ == request_.tokens;
  has_ended_ = is_end || is_stop || is_cut_;
  if (has_ended_ && !is_stop && push(decoder_.finish())) {
    release(held_.size());
  }
}

void TextWriter::tell(int32_t token, std::span<const float> logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto top = order.begin() + std::min(request_.likeliest, std::ssize(order));
  std::ranges::partial_sort(order, top, [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  const double total = log_sum_exp(logits);
  const auto likely = [&](int32_t one) {
    return ChosenToken::Likely{tokenizer_.decode(std::array{one}), logits[one] - total};
  };
  chosen_.push_back({likely(token), {}});
  std::transform(order.begin(), top, std::back_inserter(chosen_.back().likeliest), likely);
}

// False when a stop text was reached; the first of several ends the text.
bool TextWriter::push(const std::string& text) {
  held_ += text;
  size_t keep = 0, first = std::string::npos;
  for (const std::string& stop : request_.stops) {
    first = stop.empty() ? first : std::min(first, held_.find(stop));
    for (size_t length = std::min(stop.size(), held_.size()); length > keep; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        keep = length;
      }
    }
  }
  if (first != std::string::npos) {
    release(first);
    held_.clear();
    return false;
  }
  release(held_.size() - keep);
  return true;
}

void TextWriter::release(size_t count) {
  ready_.append(held_, 0, count);
  held_.erase(0, count);
}

}  // namespace tandem
