// The loss of a model over a validation set.
#pragma once

#include <functional>
#include <optional>

#include "comm/sharding/model_layout.h"
#include "layers/models/model.h"
#include "src/data/dataset.h"
#include "src/step/upload.h"

namespace tandem {

struct Evaluation {
  double loss = 0;      // mean over targets, nats
  double accuracy = 0;  // share of targets that have the largest logit
  int64_t targets = 0;
  std::optional<double> choices_acc{};  // RunQuestions::acc, of a run that has some
};

// Runs the model over the validation split, `micro_batch` samples at a time. The ranks that would
// take different samples take turns: those of groups.data, on one island after the other. All
// islands must hold the same values. `max_batches` 0 means the whole split. Sums are kept by batch
// and added in batch order, so that the result has the same bits for every number of ranks that
// take different samples. Blocks until all ranks are done. Error kData if the split is empty.
// `context` has no tape. `stops`, if any, is asked now and then, at the same batches on all ranks,
// and must tell all of them the same; once it says true, this ends and returns no losses (NaN).
Evaluation evaluate(Model& model, Context context, const Dataset& dataset, int64_t context_length,
                    int64_t micro_batch, int64_t max_batches, Uploader& uploader,
                    const ModelGroups& groups, const std::function<bool()>& stops = {});

}  // namespace tandem
