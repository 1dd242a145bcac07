// What differs between the settings of a checkpoint and those of the run that goes on from it.
#pragma once

#include <string>
#include <vector>

#include "src/settings/config.h"

namespace tandem {

// The settings that may not change when a run is resumed, in the order of `tandem train --help`.
std::vector<std::string> fixed_keys();

// One indented line `was key = value, now value` for each of these settings that differs; empty
// when all are equal. A setting that only one of the two reads is no difference, nor is one of
// `except`, nor a 0 in place of the size that it stands for. vocab: the tokenizer's, for which a
// model.vocab of 0 stands; 0 for images. A last line says if checkpoint.init_from is gone, because
// the folder of a Hugging Face model says settings.
std::string changed_settings(const Config& then, const Config& now, int64_t vocab,
                             const std::vector<std::string>& except = {});

// One text `key value -> value` for each setting that differs, whether or not it may.
std::vector<std::string> all_changes(const Config& then, const Config& now, int64_t vocab);

}  // namespace tandem
