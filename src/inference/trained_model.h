// A model with the weights of a checkpoint, for evaluation and generation.
#pragma once

#include <memory>
#include <string>

#include "comm/sharding/param_values.h"
#include "layers/module.h"
#include "src/data/dataset.h"
#include "src/io/checkpoint/checkpoint_reader.h"
#include "src/io/checkpoint/manifest.h"
#include "src/machine/machine.h"
#include "src/settings/config.h"
#include "src/step/batch_statistics.h"

namespace tandem {

// The folder of one checkpoint: `path` itself, or the newest checkpoint when `path` is a run's
// folder or a `checkpoints` folder. The folder of a Hugging Face model is one, too. Error kData
// when there is none.
std::string resolve_checkpoint(const std::string& path);

// Error kData if the dataset at `data` has another vocabulary_hash() than the one that the
// checkpoint was trained on, or, for a Hugging Face model, as require_same_tokens(). Checkpoints
// that do not know it pass.
void require_same_vocabulary(const std::string& checkpoint, const std::string& data);

struct TrainedModel {
  Config config{};  // of the run that trained it, or of config.json with defaults
  std::string checkpoint{};
  int64_t step = 0;  // 0 for a Hugging Face model
  std::unique_ptr<Model> model{};
  std::unique_ptr<BatchStatistics> statistics{};
  std::unique_ptr<ModelLayout> layout{};
  std::unique_ptr<ParamValues> values{};

  // For forward passes on the machine that it was loaded to.
  Context context(Machine& machine) const {
    return {.stream = machine.stream, .memory = machine.memory, .gate = values.get()};
  }
};

// Collective. Loads the model to the machine's device, with weights rounded to `dtype`. `data`
// gives the sizes that no setting gives, such as the vocabulary's. Error kData when the checkpoint
// is of another model.
TrainedModel load_trained_model(const std::string& checkpoint, const DatasetInfo& data, DType dtype,
                                Machine& machine, Control& control);

// Collective. The weights of a checkpoint or of a Hugging Face model. AgreedError as
// open_checkpoint(), or as HuggingFaceReader.
std::unique_ptr<TensorSource> open_weights(Control& control, const std::string& checkpoint);

// The settings stored in a checkpoint, or hugging_face_config().
Config config_of(const std::string& checkpoint);
Config config_of(const CheckpointReader& reader);

}  // namespace tandem
