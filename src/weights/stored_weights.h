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

// The settings stored in a checkpoint, or hugging_face_config().
Config config_of(const std::string& checkpoint);
Config config_of(const CheckpointReader& reader);

}  // namespace tandem
