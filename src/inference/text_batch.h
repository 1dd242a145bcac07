// Texts that a decoder writes side by side. They join and leave at every step.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "layers/models/decoder.h"
#include "src/device/stream.h"
#include "src/inference/text_writer.h"

namespace tandem {

class TextBatch {
 public:
  // Logits are of the decoder's model on `stream`, of which the tokenizer knows the first `vocab`.
  TextBatch(Decoder& decoder, Stream& stream, int64_t vocab);

  bool has_room() const { return texts() < decoder_.slots(); }
  bool is_empty() const { return texts() == 0; }
  int64_t texts() const { return std::ssize(slots_) - std::ranges::count(slots_, nullptr); }
  // There must be room. The batch uses the text until it ends or is removed. Of its prompt the last
  // tokens are read, as many as the window has positions.
  void add(TextWriter& text);
  void remove(const TextWriter& text);  // if it is in the batch
  // One forward pass: the next token of each text whose prompt is read, and Decoder::kChunk tokens
  // of the prompts that have waited longest. Texts that end leave the batch.
  void step();

 private:
  void leave(int32_t slot);

  Decoder& decoder_;
  Stream& stream_;
  int64_t vocab_;
  std::vector<TextWriter*> slots_;  // null: free
  struct Prompt {
    int32_t slot;
    std::span<const int32_t> unread;
  };
  std::deque<Prompt> prompts_;  // not read to their ends, in the order of add()
};

}  // namespace tandem
