// Writes trained models as PyTorch's programs read them: gpt and llama as GPT2LMHeadModel and
// LlamaForCausalLM of Hugging Face, resnet with the names of torchvision.
#pragma once

#include <cstdint>
#include <string>

#include "layers/models/transformer.h"
#include "src/io/checkpoint/checkpoint_reader.h"
#include "src/weights/hugging_face/names.h"
#include "src/weights/hugging_face/tokenizer_files.h"

namespace tandem {

struct ExportOptions {
  DType dtype = DType::kF32;  // f32, bf16 or fp16; rounds to nearest even
  int64_t shard_bytes = 5'000'000'000;
  TextTokens around_text{};
};

// Writes config.json, generation_config.json and the weights into `folder`, which exists. `names`
// are those of the model's kind. Memory holds one tensor. Error kData as `weights` and
// SafetensorsWriter.
void write_hugging_face(const TensorSource& weights, Transformer& model, const ForeignNames& names,
                        const ExportOptions& options, const std::string& folder);

// Writes the adapters of the model, and nothing else of it, as peft reads them:
// adapter_config.json and adapter_model.safetensors, which is one file of any size. `base`: the
// path of the model that they are for, which its reader may replace.
void write_adapters(const TensorSource& weights, Transformer& model, const ForeignNames& names,
                    const ExportOptions& options, const std::string& base,
                    const std::string& folder);

// Writes the weights and the running statistics of a ResNet: conv1, bn1, layer1.0.conv1, fc.
// Convolutions become [out, in, 3, 3]. Shortcuts have no parameters (option A of He et al.), so a
// model of torchvision's BasicBlock takes every second pixel there, and appends channels of zeros.
void write_torchvision(const CheckpointReader& checkpoint, const ForeignNames& names,
                       const ExportOptions& options, const std::string& folder);

}  // namespace tandem
