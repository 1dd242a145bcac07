// Writes a run's tokenizer as Hugging Face's library `tokenizers` reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/io/hdf5.h"

namespace tandem {

// Writes tokenizer.json and tokenizer_config.json into `folder`, and returns the token that ends a
// text, where there is one. `file` holds a tokenizer (src/data/tokenizer.h), `context` is the
// model's. char and bytes become BPE without merges. There a character that char does not know is
// left out, where ours refuses it; and <|endoftext|> in a text of gpt2 becomes the special token,
// where ours reads ordinary text.
//
// Error kData if the file is damaged, or for a tokenizer of another kind.
std::optional<int32_t> write_tokenizer_files(const H5Reader& file, int64_t context,
                                             const std::string& folder);

}  // namespace tandem
