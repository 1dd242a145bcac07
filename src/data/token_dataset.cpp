#include "src/data/token_dataset.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/data/sampler.h"

namespace tandem {
namespace {

template <class Stored>
void read_tokens(const H5Reader& file, const H5Dataset& tokens, int64_t start,
                 std::span<int32_t> out, int64_t vocab_size) {
  thread_local std::vector<Stored> stored;
  stored.resize(out.size());
  file.read(tokens, start, std::span<Stored>(stored));
  for (size_t i = 0; i < out.size(); ++i) {
    if (static_cast<int64_t>(stored[i]) >= vocab_size) [[unlikely]] {
      fail_data(file.path(), ": ", tokens.name, ": token id ", stored[i], " at position ",
                start + static_cast<int64_t>(i), " is outside the vocabulary of ", vocab_size,
                "; prepare the data again");
    }
    out[i] = static_cast<int32_t>(stored[i]);
  }
}

}  // namespace

TokenDataset::TokenDataset(DatasetInfo info) : Dataset(std::move(info)), file_(info_.path) {
  require(info_.kind == DatasetKind::kText, "TokenDataset: not a text dataset");
  const int64_t vocab_size = load_tokenizer(file_)->vocab_size();
  if (vocab_size != info_.vocab_size) {
    fail_data(info_.path, ": vocab_size = ", info_.vocab_size, ", but its tokenizer has ",
              vocab_size, "; prepare the data again");
  }
  train_ = file_.dataset("/train/tokens");
  val_ = file_.dataset("/val/tokens");
  for (const H5Dataset* tokens : {&train_, &val_}) {
    if (tokens->type != H5Type::kU16 && tokens->type != H5Type::kU32) {
      fail_data(info_.path, ": ", tokens->name, " must hold u16 or u32, not ",
                name_of(tokens->type));
    }
  }
}

int64_t TokenDataset::windows(Split split, int64_t context) const {
  require(context > 0, "TokenDataset: the context must be positive");
  return split == Split::kTrain ? training_windows(train_.count, context)
                                : validation_windows(val_.count, context);
}

void TokenDataset::read(Split split, int64_t start, std::span<int32_t> out) const {
  const H5Dataset& from = tokens(split);
  if (from.type == H5Type::kU16) {
    read_tokens<uint16_t>(file_, from, start, out, info_.vocab_size);
  } else {
    read_tokens<uint32_t>(file_, from, start, out, info_.vocab_size);
  }
}

std::vector<int64_t> TokenDataset::document_starts(Split split) const {
  require(info_.has_documents(), "TokenDataset: no documents");
  const std::string name = str("/", name_of(split), "/starts");
  const auto stored = file_.read_all<uint64_t>(name);
  const auto end = static_cast<uint64_t>(tokens(split).count);
  if (stored.empty()) {
    fail_data(info_.path, ": ", name, " is empty; prepare the data again");
  }
  for (size_t i = 0; i < stored.size(); ++i) {
    const bool is_last = i + 1 == stored.size();
    const bool follows = i == 0 ? stored[i] == 0 : stored[i] > stored[i - 1];
    if (!follows || (is_last ? stored[i] != end : stored[i] >= end)) {
      fail_data(info_.path, ": ", name, " has ", stored[i], " at place ", i,
                "; they must rise from 0 to the number of tokens, ", end,
                "; prepare the data again");
    }
  }
  return {stored.begin(), stored.end()};
}

void TokenDataset::read_window(Split split, int64_t start, int64_t context, int64_t row,
                               MicroBatch* batch) const {
  const int64_t length = std::min(context + 1, tokens(split).count - start);
  thread_local std::vector<int32_t> window;
  window.resize(static_cast<size_t>(length));
  read(split, start, window);
  const int64_t at = row * context;
  std::copy(window.begin(), window.end() - 1, batch->tokens.begin() + at);
  std::copy(window.begin() + 1, window.end(), batch->targets.begin() + at);
  batch->target_count += length - 1;
}

MicroBatch TokenDataset::training_batch(const TrainingOptions& options, int64_t position,
                                        int64_t count) const {
  const auto elements = static_cast<size_t>(count * options.context);
  MicroBatch batch{.samples = count,
                   .tokens = std::vector<int32_t>(elements),
                   .targets = std::vector<int32_t>(elements)};
  const int64_t per_epoch = windows(Split::kTrain, options.context);
  for (int64_t i = 0; i < count; ++i) {
    const Sample sample = sample_at(options.seed, per_epoch, position + i);
    const int64_t start = training_window_start(options.seed, sample.epoch, sample.index,
                                                train_.count, options.context);
    read_window(Split::kTrain, start, options.context, i, &batch);
  }
  return batch;
}

MicroBatch TokenDataset::validation_batch(int64_t context, int64_t first, int64_t count) const {
  count = std::clamp<int64_t>(windows(Split::kVal, context) - first, 0, count);
  const auto elements = static_cast<size_t>(count * context);
  MicroBatch batch{.samples = count,
                   .tokens = std::vector<int32_t>(elements, 0),
                   .targets = std::vector<int32_t>(elements, kIgnoreTarget)};
  for (int64_t i = 0; i < count; ++i) {
    read_window(Split::kVal, (first + i) * context, context, i, &batch);
  }
  return batch;
}

}  // namespace tandem
