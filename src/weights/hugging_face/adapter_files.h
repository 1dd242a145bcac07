// Adapters in the files of peft, Hugging Face's library for them: adapter_config.json and
// adapter_model.safetensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layers/models/transformer_config.h"
#include "src/device/slab.h"
#include "src/io/safetensors/safetensors.h"
#include "src/settings/config.h"

namespace tandem {

// The layers of a block that peft's target_modules would mean: "all" (peft: all-linear), or names
// of modules separated by commas, of which the last parts are enough: "q_proj,mlp.c_proj". Returns
// our names, in forward order. Error kConfig, with the names that there are, for another name.
std::vector<std::string> adapter_targets(const std::string& targets, const TransformerConfig& sizes,
                                         const ForeignNames& names);

// peft's names of these layers in any block: "attn.q" -> "self_attn.q_proj".
std::vector<std::string> modules_of(const std::vector<std::string>& layers,
                                    const ForeignNames& names);
// peft's name of a tensor of ours, which belongs to adapters.
std::string adapter_name(const std::string& ours, const ForeignNames& names);

bool is_adapter_folder(const std::string& path);  // has an adapter_config.json

// The settings lora.* of peft's folder, for a model of this kind. The targets are the layers for
// which its file has tensors. Error kData for settings that change results and are missing here,
// such as other methods (use_dora), ranks of single layers and initializations that change the base
// (PiSSA), and for any key that is neither known nor off; for target_modules that leave out tensors
// of the file; for a rank below 1 or above 65,536; and for files that cannot be read.
LoraConfig adapter_settings(const std::string& folder, const ModelKind& kind);

// Serves a model's weights with the adapters of peft's folder. Functions throw Error(kData).
class AdapterReader final : public TensorSource {
 public:
  // `model` has adapters as adapter_settings() says, `base` its other weights. Throws unless the
  // file has the adapters of each block, with their shapes and as F32, F16 or BF16, and no others.
  // read() throws for numbers that are not finite.
  AdapterReader(std::unique_ptr<TensorSource> base, const std::string& folder, Model& model,
                const ForeignNames& names);

  void require_tensor(const std::string& name, const Shape& shape) const override;
  void read(const Slab& slab) const override;
  std::string home_of(const std::string& name) const override;

 private:
  struct Entry {
    std::string theirs;
    Shape shape;
  };
  std::unique_ptr<TensorSource> base_;
  SafetensorsReader file_;
  std::map<std::string, Entry> entries_;  // by our name
};

}  // namespace tandem
