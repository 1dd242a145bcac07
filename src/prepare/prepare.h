// `tandem prepare`: turns raw text and images into datasets.
//
// Responsible for what is written; the command line is read elsewhere. Both functions print what
// they did to standard output, bad records to standard error, and throw Error(kData) with nothing
// left behind when the input cannot be used. The output appears under its name only when it is
// complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

enum class TokenizerKind : uint8_t { kChar, kBytes, kGpt2 };

struct PrepareTextOptions {
  std::vector<std::string> input;  // --input: plain text, .jsonl, .ndjson, .csv; each may be .gz
  std::string output;              // --output
  TokenizerKind tokenizer = TokenizerKind::kChar;  // --tokenizer
  std::string vocab;                  // --vocab: folder with encoder.json and vocab.bpe (gpt2)
  double val_fraction = 0.1;          // --val-fraction, in [0, 1)
  std::optional<std::string> field;   // --field of .jsonl; "text" when not given
  std::optional<std::string> column;  // --column of .csv; required for those
  int64_t max_bad = 0;                // --max-bad: records that may be left out
};

struct PrepareImagesOptions {
  std::string input;          // --input: a folder, or a .tar or .tar.gz of one
  std::string output;         // --output
  double val_fraction = 0.1;  // --val-fraction, in [0, 1); used when the input has no split
  int64_t max_bad = 0;        // --max-bad: images that may be left out
};

struct PrepareReport {
  int64_t train_count = 0;  // tokens or images
  int64_t val_count = 0;
  int64_t vocab_size = 0;      // text
  int64_t class_count = 0;     // images
  int64_t unused_classes = 0;  // images: without a training image
  int64_t documents = 0;       // text: files, lines or rows
  int64_t characters = 0;      // text
  int64_t broken_utf8 = 0;     // text: sequences replaced by U+FFFD
  int64_t empty = 0;           // text: records without text, left out
  int64_t bad = 0;             // records or images left out
  int64_t leaked = 0;          // validation records or images that are in the training part too
  int64_t ignored_files = 0;   // images: files that are none (README and the like)
  std::string content_hash;
};

// Error kConfig when the output would replace one of the inputs.
void check_output(const std::string& output, const std::vector<std::string>& inputs);

// Text is one stream of characters. Plain files are joined by a line end where the earlier one does
// not end in one, records by a line end; a tokenizer with an end-of-text token has that between
// documents instead. The validation part is the end of the stream: from character
// floor((1 - f) n) of n on. Records are kept whole: the first one that reaches past that place, and
// all after it, are validation (but the first record is always training).
// Writes /train/tokens and /val/tokens, uint16 when the vocabulary fits and uint32 otherwise.
PrepareReport prepare_text(const PrepareTextOptions& options);

// Reads JPEG and PNG files in class folders (the folder below train/, and test/ or val/; or the
// folder of the image, when there is no such split), MNIST-style IDX files, or CIFAR-10 binary
// batches. All images must have the size of the first one. Grey images give one channel; as soon as
// one image has colour all become RGB. Alpha is dropped, and 16-bit PNG keeps its high byte.
// With val/ and test/ both there, val/ is used and test/ left out. Without a split, of each class
// the fraction f whose names have the smallest hashes is the validation part.
// Classes are numbered in the order of their names, images are stored in the order of theirs, so
// that a folder and an archive of it give the same dataset.
PrepareReport prepare_images(const PrepareImagesOptions& options);

}  // namespace tandem
