#include "src/inference/text_batch.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/kernels/convert.h"

namespace tandem {

TextBatch::TextBatch(Decoder& decoder, Stream& stream, int64_t vocab)
    : decoder_(decoder), stream_(stream), vocab_(vocab), slots_(decoder.slots()) {}

void TextBatch::add(TextWriter& text) {
  require(has_room() && !text.request().prompt.empty(), "TextBatch: no room, or no prompt");
  const auto free = std::ranges::find(slots_, nullptr);
  *free = &text;
  const auto slot = static_cast<int32_t>(free - slots_.begin());
  const std::span<const int32_t> prompt(text.request().prompt);
  decoder_.clear(slot);
  prompts_.push_back(
      {slot, prompt.last(std::min(prompt.size(), static_cast<size_t>(decoder_.context())))});
}

void TextBatch::remove(const TextWriter& text) {
  if (const auto slot = std::ranges::find(slots_, &text); slot != slots_.end()) {
    leave(static_cast<int32_t>(slot - slots_.begin()));
  }
}

void TextBatch::leave(int32_t slot) {
  slots_[slot] = nullptr;
  std::erase_if(prompts_, [&](const Prompt& prompt) { return prompt.slot == slot; });
}

void TextBatch::step() {
  std::vector<DecoderRow> rows;
  for (int32_t slot = 0; slot < std::ssize(slots_); ++slot) {
    const auto is_of_slot = [&](const Prompt& prompt) { return prompt.slot == slot; };
    if (slots_[slot] && std::ranges::none_of(prompts_, is_of_slot)) {
      rows.push_back({slot, slots_[slot]->last()});
    }
  }
  for (int64_t room = Decoder::kChunk; room > 0 && !prompts_.empty();) {
    Prompt& prompt = prompts_.front();
    const size_t count = std::min(prompt.unread.size(), static_cast<size_t>(room));
    room -= static_cast<int64_t>(count);
    for (const int32_t token : prompt.unread.first(count)) {
      rows.push_back({prompt.slot, token, false});
    }
    prompt.unread = prompt.unread.subspan(count);
    if (prompt.unread.empty()) {
      rows.back().is_asked = true;
      prompts_.pop_front();
    }
  }
  Memory host(Device::kCpu);
  const Tensor logits = copied_as_f32(stream_, decoder_.step(rows), host);
  std::erase_if(rows, [](const DecoderRow& row) { return !row.is_asked; });
  const int64_t columns = rows.empty() ? 0 : logits.elements() / std::ssize(rows);
  for (int64_t r = 0; r < std::ssize(rows); ++r) {
    TextWriter& text = *slots_[rows[r].slot];
    // Not the model's padding after the tokenizer's vocabulary.
    text.next(
        logits.as<float>().subspan(static_cast<size_t>(r * columns), static_cast<size_t>(vocab_)));
    if (text.has_ended()) {
      leave(rows[r].slot);
    }
  }
}

}  // namespace tandem
