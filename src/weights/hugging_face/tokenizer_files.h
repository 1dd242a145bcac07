// The tokenizer of a dataset or a run beside that of a Hugging Face model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/io/hdf5/hdf5.h"

namespace tandem {

// The tokens before and after a text, where there are such.
struct TextTokens {
  std::vector<int32_t> before{}, ends{};  // one of each, but a model may know several
};

// Writes tokenizer.json and tokenizer_config.json into `folder`, and returns what they say of the
// tokens around a text: where none is to stand before it, the one that ended the last. `file` holds
// a tokenizer (src/data/tokenizer.h), `context` is the model's. char and bytes become BPE without
// merges. There a character that char does not know is left out, where ours refuses it; and
// <|endoftext|> in a text of gpt2 becomes the special token, where ours reads ordinary text.
//
// Error kData if the file is damaged, or for a tokenizer of another kind.
TextTokens write_tokenizer_files(const H5Reader& file, int64_t context, const std::string& folder);

// Error kData, naming a token, if the tokenizer in the dataset `data` has one that is another one
// in the tokenizer.json of the model's `folder`, or is not there. A folder without that file
// passes.
void require_same_tokens(const std::string& folder, const std::string& data);

}  // namespace tandem
