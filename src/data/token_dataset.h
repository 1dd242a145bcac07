// Text as one stream of tokens per split.
#pragma once

#include <span>

#include "src/data/dataset.h"

namespace tandem {

class TokenDataset : public Dataset {
 public:
  // `info`: from inspect_dataset(), of kind text.
  explicit TokenDataset(DatasetInfo info);

  int64_t windows(Split split, int64_t context) const override;
  MicroBatch training_batch(const TrainingOptions& options, int64_t position,
                            int64_t count) const override;
  MicroBatch validation_batch(int64_t context, int64_t first, int64_t count) const override;

  // Reads the tokens from `start` on. Throws kData, naming place and id, on an id outside the
  // vocabulary.
  void read(Split split, int64_t start, std::span<int32_t> out) const;

  // The first token of each document, and the number of tokens; of a dataset with documents. Throws
  // kData, naming the first that is wrong, unless they rise strictly from 0 to the number of
  // tokens.
  std::vector<int64_t> document_starts(Split split) const;

 protected:
  const H5Reader& file() const { return file_; }

 private:
  const H5Dataset& tokens(Split split) const { return split == Split::kTrain ? train_ : val_; }

  // Reads context + 1 tokens (fewer at the end of the split) into row `row` of the batch.
  void read_window(Split split, int64_t start, int64_t context, int64_t row,
                   MicroBatch* batch) const;

  H5Reader file_;
  H5Dataset train_;
  H5Dataset val_;
};

}  // namespace tandem
