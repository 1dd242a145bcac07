// From settings to a model.
#pragma once

#include <memory>

#include "layers/models/model.h"
#include "src/data/dataset.h"
#include "src/settings/config.h"

namespace tandem {

// Makes the model of the settings. Frozen are the parameters of model.freeze, or, if there are
// adapters, all but these. Vocabulary, classes and image size come from the dataset. `cut`: what
// this rank has of the model. Error kConfig if the model cannot be cut like that; kData if the
// dataset is of the wrong kind for it.
std::unique_ptr<Model> make_model(const ModelConfig& model, const DatasetInfo& data,
                                  const Cut& cut = {});

// The settings lora.*, with the names that the model's kind gives to layers. Error kConfig for a
// model that cannot have adapters, and for a target that is no layer of it.
LoraOptions lora_options(const ModelConfig& model);

// Freezes parameters by their names or by those of all their pieces. `patterns` are names separated
// by commas, in which * stands for any characters. Error kConfig if one fits no parameter or only
// some pieces of one, or if nothing is left to train.
void freeze(Model& model, const std::string& patterns);

// Elements of all parameters of the whole model, and of those that are trained.
struct ParameterCount {
  int64_t all = 0;
  int64_t trained = 0;
};
ParameterCount parameter_count(Model& model);

}  // namespace tandem
