// A model with the weights of a checkpoint, for evaluation and generation.
#pragma once

#include <memory>
#include <string>

#include "comm/sharding/param_values.h"
#include "layers/models/model.h"
#include "src/data/dataset.h"
#include "src/machine/machine.h"
#include "src/settings/config.h"
#include "src/step/batch_statistics.h"
#include "src/weights/stored_weights.h"

namespace tandem {

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
    return {.stream = machine.stream,
            .memory = machine.memory,
            .gate = values.get(),
            .tensor = machine.mesh()->model().exchange()};
  }
};

// Collective. Loads the model to the machine's device, with weights rounded to `dtype`. `data`
// gives the sizes that no setting gives, such as the vocabulary's. Error kData when the checkpoint
// is of another model.
TrainedModel load_trained_model(const StoredModel& stored, const DatasetInfo& data, DType dtype,
                                Machine& machine, Control& control);

// Throws Error(kConfig) for a model that does not read text.
void require_text_model(const Config& config, const std::string& checkpoint);

// The decoder of a model that reads text, as Model::decoder. Error kConfig if it has none.
std::unique_ptr<Decoder> decoder_of(const TrainedModel& trained, Machine& machine, int64_t slots,
                                    int64_t window = 0);

}  // namespace tandem
