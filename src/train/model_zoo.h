// From settings to a model.
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

int64_t parameter_count(Model& model);

}  // namespace tandem
