// What a user probably meant by a word that is not known here.
#pragma once

#include <string>
#include <vector>

namespace tandem {

// The number of letters to insert, leave out or replace to turn one word into the other.
size_t edit_distance(const std::string& a, const std::string& b);

// The candidate with the smallest edit distance, if that is at most 3; otherwise an empty text. The
// right name in the wrong section ("train.lr" for "optim.lr") counts as one wrong letter.
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);

// What nanoGPT, PyTorch and Hugging Face call otherwise: "train.global_batch" for "batch_size",
// with or without a section before it; for what is no setting here, a sentence. Empty for other
// names. A command for a command: "generate" for "sample".
std::string known_elsewhere(const std::string& key);

// How a value may be written here: "bf16" for "bfloat16", "10000" for "1e4", "true" for "True". The
// first is the likeliest; a setting need not take any of them.
std::vector<std::string> other_spellings(const std::string& value);

}  // namespace tandem
