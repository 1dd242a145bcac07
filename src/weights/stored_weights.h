// Where trained weights are stored: a checkpoint, or the folder of a Hugging Face model.
#pragma once

#include <memory>
#include <string>

#include "src/device/ranks/control.h"
#include "src/io/checkpoint/checkpoint_reader.h"
#include "src/settings/config.h"

namespace tandem {

// The folder of one checkpoint: `path` itself, or the newest checkpoint when `path` is a run's
// folder or a `checkpoints` folder. The folder of a Hugging Face model is one, too. Error kData
// when there is none.
std::string resolve_checkpoint(const std::string& path);

// Error kData if the dataset at `data` has another vocabulary_hash() than the one that the
// checkpoint was trained on, or, for a Hugging Face model, as require_same_tokens(). Checkpoints
// that do not know it pass.
void require_same_vocabulary(const std::string& checkpoint, const std::string& data);

// Collective. The weights of a Hugging Face model. AgreedError as HuggingFaceReader.
std::unique_ptr<TensorSource> open_hugging_face(Control& control, const std::string& folder);

// Collective. The weights of a checkpoint or of a Hugging Face model, for `model`. AgreedError as
// open_checkpoint() and open_bases(), which says what `moved_to` is, or as open_hugging_face().
std::unique_ptr<TensorSource> open_weights(Control& control, const std::string& checkpoint,
                                           Model& model, const std::string& moved_to = "");

// A trained model and where its parts are.
struct StoredModel {
  std::string checkpoint{};  // as resolve_checkpoint() gives it
  std::string base{};        // where the weights are that it refers to; empty: where it says
  std::string adapter{};     // peft's folder with adapters for it; empty: none
};

// Collective. `adapter`: peft's folder, or a run or checkpoint with adapters, which is then the
// model, and `checkpoint` its base; empty: none. AgreedError as resolve_checkpoint(), and kConfig
// for a run without adapters, if `base` is given, too, and for a `base` of a model that has none.
StoredModel resolve_model(Control& control, const std::string& checkpoint, const std::string& base,
                          const std::string& adapter);
Config config_of(const StoredModel& stored);
// Collective, as open_weights(), and AgreedError as AdapterReader.
std::unique_ptr<TensorSource> open_weights(Control& control, const StoredModel& stored,
                                           Model& model);

// The settings stored in a checkpoint, or hugging_face_config().
Config config_of(const std::string& checkpoint);
Config config_of(const CheckpointReader& reader);

}  // namespace tandem
