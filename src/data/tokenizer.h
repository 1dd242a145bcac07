// Tokenizers: text to token ids and back.
//
// Responsible for the three kinds a dataset may be prepared with, and for keeping the whole
// vocabulary inside HDF5 files, so that `generate` needs nothing but the checkpoint:
//   char    one token per Unicode code point; the vocabulary: all code points of a text, sorted
//   bytes   one token per byte (256)
//   gpt2    GPT-2's byte-level BPE (Radford et al. 2019), with the published ids
// Text that is not valid UTF-8 is read as src/data/utf8.h describes, except by `bytes`, which takes
// bytes as they are. One thread at a time may use a tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/utf8.h"
#include "src/io/hdf5.h"

namespace tandem {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view kind() const = 0;  // "char", "bytes" or "gpt2"
  virtual int64_t vocab_size() const = 0;

  // The token that separates documents, where there is one.
  virtual std::optional<int32_t> end_of_text() const { return std::nullopt; }

  // Appends the tokens of `text`. A special token spelled out in the text is encoded as ordinary
  // text. Throws kData when the vocabulary cannot express a character (char only).
  virtual void encode(std::string_view text, std::vector<int32_t>* tokens) = 0;

  // The bytes of one token, which may be a part of a character; 0 <= token < vocab_size().
  virtual std::string_view piece(int32_t token) const = 0;

  // Writes the vocabulary under `group` (usually "/tokenizer"); load_tokenizer reads it back.
  virtual void save(H5Writer* file, const std::string& group) const = 0;

  std::vector<int32_t> encode(std::string_view text);

  // The text of the tokens, broken UTF-8 replaced by U+FFFD. Throws kData on an id outside the
  // vocabulary.
  std::string decode(std::span<const int32_t> tokens) const;
};

// Decodes tokens as they come. A piece that ends inside a character is held back until the
// character is complete. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(int32_t token);
  std::string finish() { return stream_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  Utf8Stream stream_;
};

// `code_points`: in the order of their ids, sorted, without repetition.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<int32_t> code_points);
std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// Reads `encoder.json` and `vocab.bpe` as OpenAI published them. Throws kData naming the file (and
// line) when a file is missing or malformed, or when the two do not belong together.
std::unique_ptr<Tokenizer> load_gpt2_tokenizer(const std::string& folder);

// Reads a tokenizer that save() wrote.
std::unique_ptr<Tokenizer> load_tokenizer(const H5Reader& file,
                                          const std::string& group = "/tokenizer");

// The part of load_tokenizer for kind "gpt2" (src/data/gpt2_tokenizer.cpp).
std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const H5Reader& file, const std::string& group);

}  // namespace tandem
