// The values of model.kind: each binds its own settings and makes its model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layers/models/model.h"
#include "layers/models/transformer_config.h"
#include "src/data/dataset.h"
#include "src/options/kinds.h"

namespace tandem {

// How the files of another program hold a model's tensors.
struct ForeignNames {
  // Ours and theirs. In a name of ours each word is replaced once, in this order.
  std::vector<std::pair<std::string_view, std::string_view>> words{};
  bool is_conv1d = false;  // a parameter is one tensor, and a matrix is [inputs, outputs];
                           // otherwise each piece is one tensor
  std::vector<std::string_view> buffers{};  // ends of names that are no parameters
};

class ModelKind {
 public:
  virtual ~ModelKind() = default;
  virtual void bind(Options& options) = 0;
  // One line for each pair of sizes that do not fit together, with the settings' names.
  virtual std::vector<std::string> problems() const { return {}; }
  // "4 layers, 4 heads, width 128, context 64", without the kind's name
  virtual std::string description() const = 0;
  virtual bool reads_text() const = 0;           // otherwise images
  virtual int64_t context() const { return 1; }  // tokens a sample; 1 for images
  virtual int64_t blocks() const = 0;            // about so many are run, one after the other
  // The sizes of a gpt or llama, as the user gave them; nothing for other models.
  virtual std::optional<TransformerConfig> transformer() const { return {}; }
  // Names in Hugging Face's or torchvision's files; null if neither has this model.
  virtual const ForeignNames* foreign_names() const { return nullptr; }
  // The model for this dataset, which is of the right kind and has the vocabulary, the classes and
  // the size of images. Throws Error(kConfig) for sizes that do not fit together, Error(kData) for
  // data that does not fit the model.
  virtual std::unique_ptr<Model> make(const DatasetInfo& data) const = 0;
  // Makes a model of these sizes, which are transformer() with a cut or adapters. Called only for
  // kinds with transformer().
  virtual std::unique_ptr<Model> make_of(TransformerConfig, const DatasetInfo&) const {
    fail(ExitCode::kInternal, "this kind of model is no transformer");
  }
};

// All kinds, with the defaults of their settings: those in src/weights/kinds, and what
// register_model() added.
Kinds<ModelKind>& model_kinds();

// Adds a kind of one's own as model.kind = NAME, for a program that calls tandem::main(), whose
// commands end with kInternal if there are two of this name. T is derived from ModelKind and
// copyable.
template <class T>
void register_model(const std::string& name, T kind) {
  model_kinds().add(name, std::move(kind));
}

}  // namespace tandem
