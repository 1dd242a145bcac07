#include "src/options/hints.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "src/core/parse_number.h"
#include "src/data/utf8.h"

namespace tandem {

namespace {

using Pair = std::pair<std::string_view, std::string_view>;

constexpr std::string_view
    kAccumulation =
        "set train.micro_batch: a step has global_batch / (micro_batch x ranks) of them",
    kEpochs = "set train.steps: an epoch has samples / train.global_batch steps",
    kRanks = "mpirun -np RANKS, or launch/run.sh, says how many";

// A setting, or a sentence.
constexpr Pair kNames[] = {{"batch_size", "train.global_batch"},
                           {"learning_rate", "optim.lr"},
                           {"max_iters", "train.steps"},
                           {"max_steps", "train.steps"},
                           {"eval_interval", "train.eval_every"},
                           {"eval_steps", "train.eval_every"},
                           {"eval_iters", "train.eval_batches"},
                           {"log_interval", "train.log_every"},
                           {"logging_steps", "train.log_every"},
                           {"save_steps", "checkpoint.every_steps"},
                           {"dtype", "train.precision"},
                           {"grad_clip", "optim.clip_norm"},
                           {"max_grad_norm", "optim.clip_norm"},
                           {"warmup_iters", "optim.warmup_steps"},
                           {"n_layer", "model.layers"},
                           {"num_layers", "model.layers"},
                           {"num_hidden_layers", "model.layers"},
                           {"n_head", "model.heads"},
                           {"num_heads", "model.heads"},
                           {"num_attention_heads", "model.heads"},
                           {"num_key_value_heads", "model.kv_heads"},
                           {"n_embd", "model.width"},
                           {"hidden_size", "model.width"},
                           {"block_size", "model.context"},
                           {"seq_len", "model.context"},
                           {"max_position_embeddings", "model.context"},
                           {"out_dir", "run.dir"},
                           {"output_dir", "run.dir"},
                           {"model_name_or_path", "checkpoint.init_from"},
                           {"dataset", "data.path"},
                           {"max_new_tokens", "tokens"},
                           {"num_samples", "samples"},
                           {"sample", "generate"},
                           {"max_lr", "optim.lr"},
                           {"lr_scheduler", "optim.schedule"},
                           {"lr_scheduler_type", "optim.schedule"},
                           {"fp16", "train.precision"},
                           {"bf16", "train.precision"},
                           {"gradient_checkpointing", "train.recompute"},
                           {"tensor_parallel_size", "dist.tensor"},
                           {"train_micro_batch_size_per_gpu", "train.micro_batch"},
                           {"per_device_train_batch_size", "train.micro_batch"},
                           {"zero_stage", "dist.zero"},
                           {"zero_optimization.stage", "dist.zero"},
                           {"deepspeed", "dist.zero"},
                           {"fsdp", "dist.zero"},
                           {"data", "data.path"},
                           {"gradient_accumulation_steps", kAccumulation},
                           {"lr_decay_iters", "the learning rate falls until train.steps"},
                           {"epochs", kEpochs},
                           {"max_epochs", kEpochs},
                           {"num_train_epochs", kEpochs},
                           {"devices", kRanks},
                           {"num_nodes", kRanks},
                           {"wandb_log", "launch/track.py feeds runs to W&B"},
                           {"compile", "kernels need no compilation; leave it out"}};

constexpr Pair kValues[] = {{"fp32", "f32"},      {"float32", "f32"}, {"float", "f32"},
                            {"float16", "fp16"},  {"f16", "fp16"},    {"half", "fp16"},
                            {"bfloat16", "bf16"}, {"gpt2", "gpt"},    {"gpu", "cuda"}};

std::string_view partner(const auto& pairs, const std::string& word) {
  const auto found = std::ranges::find(pairs, word, &Pair::first);
  return found == std::end(pairs) ? std::string_view() : found->second;
}

}  // namespace

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates) {
  const auto leaf = [](const std::string& name) { return name.substr(name.find('.') + 1); };
  std::string best;
  size_t best_distance = std::min<size_t>(4, word.size() / 2 + 1);
  for (const std::string& candidate : candidates) {
    const size_t letters = edit_distance(word, candidate);
    const size_t distance = leaf(word) == leaf(candidate) ? std::min<size_t>(1, letters) : letters;
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string known_elsewhere(const std::string& key) {
  std::string name = key.substr(key.rfind('.') + 1);
  std::ranges::replace(name, '-', '_');
  const std::string_view found = partner(kNames, key);
  return std::string(found.empty() ? partner(kNames, name) : found);
}

std::vector<std::string> other_spellings(const std::string& value) {
  const std::string lower = lower_case(value);
  std::vector<std::string> spellings = {std::string(partner(kValues, lower)), lower};
  const auto number = parse_number<double>(value);
  // Whole numbers below 2^53 are exact in a double.
  if (number && std::abs(*number) < 0x1p53 && *number == std::trunc(*number)) {
    spellings.push_back(std::to_string(static_cast<int64_t>(*number)));
  }
  return spellings;
}

}  // namespace tandem
