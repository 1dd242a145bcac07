// From settings to a model, and the memory of what a model observes.
#pragma once

#include <memory>

#include "layers/module.h"
#include "src/data/dataset.h"
#include "src/train/config.h"

namespace tandem {

// Sizes that the settings leave open (vocabulary, classes, image size) come from the dataset. Error
// kData when the dataset is of the wrong kind for the model.
std::unique_ptr<Model> make_model(const ModelConfig& model, const DatasetInfo& data,
                                  bool recompute);

// The running statistics of a model in one piece each: f32 [all channels twice].
struct StatisticsMemory {
  Tensor sum{}, running{};  // nothing for a model without statistics
};

// Gives the model's running statistics memory: mean 0 and variance 1, as before any training.
StatisticsMemory allocate_statistics(Model& model, Stream& stream, Memory& memory);

int64_t parameter_count(Model& model);

}  // namespace tandem
