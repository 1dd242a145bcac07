// `tandem prepare`: turns raw text and images into datasets.
//
// Responsible for what is written; the command line is read elsewhere, where each option is checked
// by itself. Both functions print a report to standard output and bad records to standard error.
// When the input cannot be used they throw Error(kData) and leave no file. The output appears under
// its name only when it is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/io/record_limit.h"

namespace tandem {

enum class TokenizerKind : uint8_t { kChar, kBytes, kGpt2, kHuggingFace, kBpe };

struct PrepareTextOptions {
  std::vector<std::string> input;  // --input: plain text, lines of JSON, .csv; each may be .gz
  std::string output;              // --output
  TokenizerKind tokenizer = TokenizerKind::kChar;  // --tokenizer
  // --vocab: folder with encoder.json and vocab.bpe (gpt2), or with tokenizer.json (kHuggingFace)
  std::string vocab;
  int64_t vocab_size = 0;             // --vocab-size of a trained tokenizer (bpe)
  int threads = 0;                    // that count words for bpe; 0: one for each core
  double val_fraction = 0.1;          // --val-fraction, in [0, 1)
  std::optional<std::string> field;   // --field of .jsonl; "text" when not given
  std::optional<std::string> column;  // --column of .csv; required for those
  int64_t max_bad = 0;                // --max-bad: records that may be left out
  RecordLimit limit{};                // --max-record-mb
  // --shuffle-records, with --seed: each line of plain text is a record, and all records are put
  // into a random order before the split. Holds the text of all records in memory.
  std::optional<uint64_t> shuffle_seed{};
};

struct PrepareSftOptions {
  std::vector<std::string> input;          // --input: lines of JSON, .csv; each may be .gz
  std::string output;                      // --output
  std::string tokenizer;                   // --tokenizer: folder with tokenizer.json
  std::string form = "plain";              // --template: plain, chatml, llama3
  double val_fraction = 0.1;               // --val-fraction, in [0, 1)
  int64_t max_bad = 0;                     // --max-bad: records that may be left out
  RecordLimit limit{};                     // --max-record-mb
  std::optional<uint64_t> shuffle_seed{};  // --shuffle-records, with --seed
};

struct PrepareImagesOptions {
  std::string input;          // --input: a folder, or a .tar or .tar.gz of one
  std::string output;         // --output
  double val_fraction = 0.1;  // --val-fraction, in [0, 1); used when the input has no split
  int64_t height = 0;         // --height, --width: of all images; 0: as the first one has them
  int64_t width = 0;
  int64_t max_bad = 0;  // --max-bad: images that may be left out
  RecordLimit limit{};  // --max-record-mb
};

struct PrepareReport {
  int64_t train_count = 0;  // tokens or images
  int64_t val_count = 0;
  int64_t vocab_size = 0;      // text
  int64_t class_count = 0;     // images
  int64_t unused_classes = 0;  // images: classes without a training image
  int64_t documents = 0;       // text: files, lines or rows
  int64_t learned = 0;         // instruction data: tokens that are predicted
  int64_t longest = 0;         // instruction data: tokens of the longest record
  int64_t characters = 0;      // text
  int64_t broken_utf8 = 0;     // text: sequences replaced by U+FFFD
  int64_t empty = 0;           // text: records without text, left out
  int64_t bad = 0;             // records or images left out
  int64_t leaked = 0;          // validation records or images that are in the training split too
  int64_t ignored_files = 0;   // images: files that are not images, such as a README
  std::vector<int32_t> first_tokens;  // text: the first ten of the training part
  std::string content_hash;
};

// Text is one stream of characters. A line end joins records, and plain files where the earlier one
// does not end in one. A tokenizer with an end-of-text token puts this token after each document
// instead, and one with a template (BOS, EOS) puts its tokens around each document of a split. The
// validation split is the end of the stream: it begins at character floor((1 - f) n) of n, with f =
// val_fraction. Records are kept whole: the first record that reaches past that character, and all
// later ones, are validation. The first record is always training. Writes /train/tokens and
// /val/tokens, uint16 when the vocabulary fits and uint32 otherwise, and /train/starts and
// /val/starts: the first token of each document, and the end. The line end after a document belongs
// to it, and what the split cuts off is a document of its own. Memory does not grow with the input,
// only with its longest record or stretch without white space; tokens and long texts wait in
// temporary files.
PrepareReport prepare_text(const PrepareTextOptions& options);

// Instruction data: each record (src/prepare/sft_record.h) is a document, and /train/loss and
// /val/loss say which of its tokens are learned: the completion or what the assistant says, with
// the token that ends it. "plain" puts the tokenizer's tokens before a text (BOS) and its end of
// text around a record; a chat template has all of its marks. The last records, val_fraction of
// them, are validation. Holds the tokens of all records in memory.
PrepareReport prepare_sft(const PrepareSftOptions& options);

// Reads JPEG and PNG files in class folders, MNIST-style IDX files, or CIFAR-10 binary batches. The
// class folder is the one below train/, test/ or val/, or, without these, the folder of the image.
// All images must have the size of the first one, unless a size is given, to which they are fitted
// (images/fit.h). Grey images give one channel; as soon as one
// image has colour, all become RGB. Alpha is dropped, and 16-bit PNG keeps its high byte.
// If val/ and test/ both exist, val/ is used and test/ is left out. If neither exists, the fraction
// val_fraction of each class becomes the validation split: the images whose names have the smallest
// hashes.
// Class folders and images are ordered by their names, so that a folder and an archive of it give
// the same dataset.
PrepareReport prepare_images(const PrepareImagesOptions& options);

}  // namespace tandem
