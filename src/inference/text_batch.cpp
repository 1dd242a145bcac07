#include "src/inference/text_batch.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/kernels/convert.h"

namespace tandem {

TextBatch::TextBatch(Decoder& decoder, Stream& stream, int64_t vocab)
    : decoder_(decoder), stream_(stream), vocab_(vocab), slots_(decoder.slots()) {}

void TextBatch::add(TextWriter& text) {
  const TextRequest& request = text.request();
  require(has_room() && !request.prompt.empty(), "TextBatch: no room, or no prompt");
  require(!request.tells_prompt || std::ssize(request.prompt) <= decoder_.context(),
          "TextBatch: a prompt that is told must fit the window");
  const auto free = std::ranges::find(slots_, nullptr);
  *free = &text;
  const auto slot = static_cast<int32_t>(free - slots_.begin());
  const std::span<const int32_t> prompt(request.prompt);
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
  // Whose logits are asked for: of the prompt's token with this index, or (0) of the next choice.
  struct Asked {
    int32_t slot;
    size_t prompt = 0;
  };
  std::vector<DecoderRow> rows;
  std::vector<Asked> asked;
  for (int32_t slot = 0; slot < std::ssize(slots_); ++slot) {
    const auto is_of_slot = [&](const Prompt& prompt) { return prompt.slot == slot; };
    if (slots_[slot] && std::ranges::none_of(prompts_, is_of_slot)) {
      rows.push_back({slot, slots_[slot]->last()});
      asked.push_back({slot});
    }
  }
  for (int64_t room = Decoder::kChunk; room > 0 && !prompts_.empty();) {
    Prompt& prompt = prompts_.front();
    const TextRequest& request = slots_[prompt.slot]->request();
    const size_t count = std::min(prompt.unread.size(), static_cast<size_t>(room));
    room -= static_cast<int64_t>(count);
    for (const int32_t token : prompt.unread.first(count)) {
      prompt.unread = prompt.unread.subspan(1);
      const bool is_last = prompt.unread.empty(), is_asked = is_last || request.tells_prompt;
      rows.push_back({prompt.slot, token, is_asked});
      if (is_asked) {
        asked.push_back({prompt.slot, is_last ? 0 : request.prompt.size() - prompt.unread.size()});
      }
    }
    if (prompt.unread.empty()) {
      prompts_.pop_front();
    }
  }
  Memory host(Device::kCpu);
  const Tensor logits = copied_as_f32(stream_, decoder_.step(rows), host);
  const int64_t columns = asked.empty() ? 0 : logits.elements() / std::ssize(asked);
  for (int64_t r = 0; r < std::ssize(asked); ++r) {
    const auto [slot, prompt] = asked[r];
    TextWriter& text = *slots_[slot];
    // Not the model's padding after the tokenizer's vocabulary.
    const auto row =
        logits.as<float>().subspan(static_cast<size_t>(r * columns), static_cast<size_t>(vocab_));
    prompt > 0 ? text.read(prompt, row) : text.next(row);
    if (text.has_ended()) {
      leave(slot);
    }
  }
}

}  // namespace tandem
