// What settings know of each kind of model: its name, what data it reads, which sizes fit together.
#pragma once

#include "layers/models/transformer.h"
#include "src/settings/config.h"

namespace tandem {

// The sizes of a gpt or llama whose embedding has `vocab` rows.
TransformerConfig transformer_config(const ModelConfig& model, int64_t vocab);

Choices<std::string> model_kinds();  // of model.kind

}  // namespace tandem
