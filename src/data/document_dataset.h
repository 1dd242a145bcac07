// Text as windows of whole documents (src/data/packing.h), which do not see each other.
#pragma once

#include <span>

#include "src/data/packing.h"
#include "src/data/token_dataset.h"

namespace tandem {

// A token is predicted from those before it in its document, or in the part of a document that its
// window has; so the first one never is. Nor are those that a dataset with a mask only reads. Its
// documents are not cut: what is too long for a window has only its last tokens.
class DocumentDataset final : public TokenDataset {
 public:
  // `info`: of a text that says where its documents begin. Throws kData if it says so wrongly.
  DocumentDataset(DatasetInfo info, const Windows& windows);

  // `context` and `seed` must be those of the constructor. A validation window has several
  // documents, too.
  int64_t windows(Split split, int64_t context) const override;
  std::optional<PackingCosts> packing_costs() const override;
  MicroBatch training_batch(const TrainingOptions& options, int64_t position,
                            int64_t count) const override;
  MicroBatch validation_batch(int64_t context, int64_t first, int64_t count) const override;

 private:
  struct Part {
    Packing packing;
    H5Dataset loss;  // which tokens are predicted; empty: all
  };
  Part part(Split split) const;
  const Part& of(Split split) const { return split == Split::kTrain ? train_ : val_; }
  MicroBatch batch(Split split, std::span<const int64_t> windows) const;
  // Leaves out those of tokens [start, start + targets.size()) that are only read.
  void mask(const H5Dataset& loss, int64_t start, std::span<int32_t> targets) const;
  void read_window(Split split, int64_t window, int64_t row, MicroBatch* batch) const;

  Windows windows_;
  Part train_, val_;
};

}  // namespace tandem
