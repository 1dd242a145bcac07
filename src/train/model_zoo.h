// From settings to a model.
#pragma once

#include <memory>

#include "layers/module.h"
#include "src/data/dataset.h"
#include "src/settings/config.h"

namespace tandem {

// Frozen as model.freeze says. Sizes that the settings leave open (vocabulary, classes, image size)
// come from the dataset. Error kData when the dataset is of the wrong kind for the model.
std::unique_ptr<Model> make_model(const ModelConfig& model, const DatasetInfo& data);

Choices<std::string> model_kinds();  // of model.kind

// Freezes the parameters that a pattern names: comma-separated names, where * stands for any
// characters. Error kConfig when one names no parameter, or when nothing is left to train.
void freeze(Model& model, const std::string& patterns);

// Elements of all parameters, and of those that are trained.
struct ParameterCount {
  int64_t all = 0;
  int64_t trained = 0;
};
ParameterCount parameter_count(Model& model);

}  // namespace tandem
