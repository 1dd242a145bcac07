// Tokenizers: text to token ids and back.
//
// Responsible for the kinds a dataset may be prepared with, and for keeping the whole vocabulary
// inside HDF5 files, so that `generate` needs nothing but the checkpoint:
//   char    one token per Unicode code point; the vocabulary: all code points of a text, sorted
//   bytes   one token per byte (256)
//   gpt2    GPT-2's byte-level BPE (Radford et al. 2019), from OpenAI's two files
//   bpe     BPE of Hugging Face's tokenizer.json, or byte-level BPE trained here; the same ids
// Text that is not valid UTF-8 is read as src/data/utf8.h describes, except by `bytes`, which takes
// bytes as they are. One thread at a time may use a tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/utf8.h"
#include "src/io/hdf5/hdf5.h"

namespace tandem {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view kind() const = 0;  // "char", "bytes", "gpt2" or "bpe"
  virtual int64_t vocab_size() const = 0;

  // The token that separates documents, where there is one.
  virtual std::optional<int32_t> end_of_text() const { return std::nullopt; }

  // The tokens that stand before and after every document (BOS, EOS); mostly none.
  virtual std::span<const int32_t> before_text() const { return {}; }
  virtual std::span<const int32_t> after_text() const { return {}; }

  // The token with this name that text never becomes.
  virtual std::optional<int32_t> special_token(std::string_view /*name*/) const {
    return std::nullopt;
  }

  // The template (src/data/chat_template.h) by which conversations became its tokens; "": none.
  std::string chat_template;

  // Appends the tokens of `text`. A special token spelled out in the text is encoded as ordinary
  // text. Throws kData when the vocabulary cannot express a character (char), or when a word is too
  // long, or the regular expression that cuts words takes too many steps (gpt2, bpe). `drain` is
  // for long texts, which must be valid UTF-8: it is called whenever there are kTokensTogether, and
  // may take them away.
  using Drain = std::function<void()>;
  static constexpr size_t kTokensTogether = size_t{1} << 16;
  virtual void append_tokens(std::string_view text, std::vector<int32_t>* tokens,
                             const Drain& drain = nullptr) = 0;

  // The bytes of one token, which may be a part of a character; 0 <= token < vocab_size().
  virtual std::string_view piece(int32_t token) const = 0;

  // Whether encoding puts a space before a text, which decode() leaves out again.
  virtual bool strips_space() const { return false; }

  // What makes this tokenizer another one than one with the same kind and pieces; "" for nothing.
  virtual std::string definition() const { return ""; }

  // Writes kind and vocabulary into the group /tokenizer; load_tokenizer reads them back.
  void save(H5Writer* file) const;

  std::vector<int32_t> encode(std::string_view text);

  // The text of the tokens from its beginning, broken UTF-8 replaced by U+FFFD. Throws kData on an
  // id outside the vocabulary.
  std::string decode(std::span<const int32_t> tokens) const;

 protected:
  static void drain_if_full(const std::vector<int32_t>& tokens, const Drain& drain) {
    if (tokens.size() >= kTokensTogether && drain) {
      drain();
    }
  }

 private:
  // Writes what the kind alone does not say into the group /tokenizer.
  virtual void save_vocabulary(H5Writer*) const {}
};

// Decodes tokens as they come; `begins`: from the beginning of a text. A piece that ends inside a
// character is held back until the character is complete. The tokenizer must outlive it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool begins)
      : tokenizer_(tokenizer), strips_space_(begins && tokenizer.strips_space()) {}
  std::string push(int32_t token);
  std::string finish() { return stream_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  bool strips_space_;
  Utf8Stream stream_;
};

// `code_points`: in the order of their ids, sorted, without repetition.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<int32_t> code_points);
std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// Reads `encoder.json` and `vocab.bpe` as OpenAI published them. Throws kData naming the file (and
// line) when a file is missing or malformed, or when the two do not belong together.
std::unique_ptr<Tokenizer> load_gpt2_tokenizer(const std::string& folder);

// Reads `tokenizer.json` as Hugging Face's library `tokenizers` writes it, and gives its ids. It
// must be the single characters that `tandem export` writes, or BPE, either byte-level or with
// model.byte_fallback, as SentencePiece's becomes: the normalizers NFC, Prepend, Replace of a text,
// the pre-tokenizers ByteLevel, Split, Digits, Metaspace, sequences of them or none, and the
// post-processors ByteLevel and TemplateProcessing. Special tokens are never found in text; other
// added tokens are, before it is cut into words. The end of text is `eos_token` of
// `tokenizer_config.json`, else the first `eos_token_id` of `generation_config.json`, else there is
// none. Throws kData naming the file and what is wrong or not supported.
std::unique_ptr<Tokenizer> load_hugging_face_tokenizer(const std::string& folder);

// Reads a tokenizer that save() wrote.
std::unique_ptr<Tokenizer> load_tokenizer(const H5Reader& file);

// The parts of load_tokenizer for the kinds "gpt2" and "bpe" (src/data/bpe/stored.cpp).
std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const H5Reader& file);
std::unique_ptr<Tokenizer> read_bpe_tokenizer(const H5Reader& file);

}  // namespace tandem
