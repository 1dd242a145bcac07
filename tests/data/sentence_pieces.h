// A small tokenizer of the kind that SentencePiece's become, as Llama 2 has them.
#pragma once

#include <string>
#include <vector>

#include "src/data/bpe/model.h"

namespace tandem::testing {

// Tokens: <s>, the bytes from id 1 on, and "▁" (257), "h" (258), "i" (259), "hi" (260), "▁hi"
// (261).
inline BpeModel sentence_pieces() {
  BpeModel model;
  model.byte_fallback = true;
  model.strips_space = true;
  model.normalizer = R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},)"
                     R"({"type":"Replace","pattern":{"String":" "},"content":"▁"}]})";
  model.pre_tokenizer = "null";
  model.pieces = {"<s>"};
  model.added = {{.id = 0}};
  for (int byte = 0; byte < 256; ++byte) {
    model.pieces.push_back(byte_piece(model, byte));
  }
  model.pieces.insert(model.pieces.end(), {"▁", "h", "i", "hi", "▁hi"});
  model.merges = {{258, 259, 260}, {257, 260, 261}};
  return model;
}

}  // namespace tandem::testing
