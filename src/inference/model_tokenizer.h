// The tokenizer of a trained model.
#pragma once

#include <memory>
#include <string>

#include "src/data/tokenizer.h"
#include "src/settings/config.h"

namespace tandem {

// Says where the tokenizer is: `given` unless that is empty; else a Hugging Face model's folder, or
// RUN/tokenizer.h5 beside RUN/checkpoints/step-..., or the dataset that the model was trained on.
// Error kConfig for a Hugging Face model without one, kData for a `given` file with another than
// the model's, as require_same_vocabulary().
std::string tokenizer_path(const std::string& given, const std::string& checkpoint,
                           const Config& config);

// Reads a file with a tokenizer, or a folder with tokenizer.json. Error kData as load_tokenizer()
// and load_hugging_face_tokenizer().
std::unique_ptr<Tokenizer> tokenizer_at(const std::string& path);

}  // namespace tandem
