#include "src/data/document_dataset.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/data/sampler.h"

namespace tandem {

DocumentDataset::DocumentDataset(DatasetInfo info, const Windows& windows)
    : TokenDataset(std::move(info)),
      windows_(windows),
      train_(part(Split::kTrain)),
      val_(part(Split::kVal)) {}

DocumentDataset::Part DocumentDataset::part(Split split) const {
  Packing::Options options{.context = windows_.context, .cuts = !info_.is_masked};
  if (split == Split::kTrain) {
    options.seed = windows_.seed;
  }
  return {Packing(document_starts(split), options),
          info_.is_masked ? file().dataset(str("/", name_of(split), "/loss")) : H5Dataset{}};
}

int64_t DocumentDataset::windows(Split split, int64_t context) const {
  require(context == windows_.context, "DocumentDataset: opened for another context");
  return of(split).packing.windows();
}

std::optional<PackingCosts> DocumentDataset::packing_costs() const {
  const Packing& packing = train_.packing;
  const int64_t tokens = packing.windows() * (windows_.context + 1);
  return PackingCosts{static_cast<double>(packing.padding()) / static_cast<double>(tokens),
                      packing.cuts()};
}

MicroBatch DocumentDataset::training_batch(const TrainingOptions& options, int64_t position,
                                           int64_t count) const {
  require(options.seed == windows_.seed, "DocumentDataset: opened for another seed");
  const int64_t per_epoch = windows(Split::kTrain, options.context);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back(sample_at(options.seed, per_epoch, position + i).index);
  }
  return batch(Split::kTrain, chosen);
}

MicroBatch DocumentDataset::validation_batch(int64_t context, int64_t first, int64_t count) const {
  std::vector<int64_t> chosen;
  for (int64_t i = first; i < std::min(first + count, windows(Split::kVal, context)); ++i) {
    chosen.push_back(i);
  }
  return batch(Split::kVal, chosen);
}

MicroBatch DocumentDataset::batch(Split split, std::span<const int64_t> windows) const {
  const int64_t samples = std::ssize(windows);
  const auto elements = static_cast<size_t>(samples * windows_.context);
  MicroBatch batch{.samples = samples,
                   .tokens = std::vector<int32_t>(elements, 0),
                   .targets = std::vector<int32_t>(elements, kIgnoreTarget),
                   .positions = std::vector<int32_t>(elements, 0)};
  for (int64_t row = 0; row < samples; ++row) {
    read_window(split, windows[static_cast<size_t>(row)], row, &batch);
  }
  return batch;
}

void DocumentDataset::mask(const H5Dataset& loss, int64_t start, std::span<int32_t> targets) const {
  std::vector<uint8_t> is_target(targets.size());
  file().read(loss, start, std::span(is_target));
  for (size_t i = 0; i < targets.size(); ++i) {
    if (is_target[i] > 1) {
      fail_data(info_.path, ": ", loss.name, " has ", int{is_target[i]}, " at place ",
                start + static_cast<int64_t>(i),
                ", where 0 and 1 are possible; prepare the data again");
    }
    targets[i] = is_target[i] == 1 ? targets[i] : kIgnoreTarget;
  }
}

// Each token of padding is a document of its own, at position 0, so that nothing attends to it.
void DocumentDataset::read_window(Split split, int64_t window, int64_t row,
                                  MicroBatch* batch) const {
  thread_local std::vector<int32_t> tokens;
  const int64_t context = windows_.context;
  int64_t place = 0;  // in the window
  const Part& part = of(split);
  for (const PackedPiece& piece : part.packing.window(window)) {
    tokens.resize(static_cast<size_t>(piece.length));
    read(split, piece.start, tokens);
    // A window has one token more than places of inputs: its last one is a target only.
    const int64_t inputs = std::min(piece.length, context - place), at = row * context + place;
    std::copy_n(tokens.begin(), inputs, batch->tokens.begin() + at);
    const std::span targets = std::span(tokens).subspan(1);
    if (info_.is_masked) {
      mask(part.loss, piece.start + 1, targets);
    }
    std::ranges::copy(targets, batch->targets.begin() + at);
    for (int64_t i = 0; i < inputs; ++i) {
      batch->positions[static_cast<size_t>(at + i)] = static_cast<int32_t>(i);
    }
    batch->target_count += std::ssize(targets) - std::ranges::count(targets, kIgnoreTarget);
    place += piece.length;
  }
}

}  // namespace tandem
