// One function for each file in this folder: adds its kinds of models.
#pragma once

#include "src/settings/model_kind.h"

namespace tandem {

void add_transformers(Kinds<ModelKind>& kinds);
void add_resnet(Kinds<ModelKind>& kinds);
void add_mlp(Kinds<ModelKind>& kinds);

}  // namespace tandem
