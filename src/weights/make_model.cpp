#include "src/weights/make_model.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "src/weights/hugging_face/adapter_files.h"

namespace tandem {

std::unique_ptr<Model> make_model(const ModelConfig& config, const DatasetInfo& data,
                                  const Cut& cut) {
  require_kind(data, config->reads_text() ? DatasetKind::kText : DatasetKind::kImages,
               config.kind.name());
  const LoraOptions lora = lora_options(config);
  std::unique_ptr<Model> model;
  if (cut.count > 1 || lora.rank > 0) {
    std::optional<TransformerConfig> sizes = config->transformer();
    if (!sizes) {
      fail(ExitCode::kConfig, "ranks cannot cut model.kind = ", config.kind.name(),
           ", only gpt and llama");
    }
    sizes->cut = cut;
    sizes->lora = lora;
    model = config->make_of(*sizes, data);
  } else {
    model = config->make(data);
  }
  if (lora.rank > 0) {
    for (Parameter* parameter : parameters_of(*model)) {
      parameter->frozen = !is_adapter(parameter->name);
    }
  }
  freeze(*model, config.freeze);
  return model;
}

LoraOptions lora_options(const ModelConfig& config) {
  if (config.lora.rank == 0) {
    return {};
  }
  const std::optional<TransformerConfig> sizes = config->transformer();
  if (!sizes || !config->foreign_names()) {
    fail(ExitCode::kConfig, "lora.rank = ", config.lora.rank,
         " is not possible with model.kind = ", config.kind.name(),
         "; use gpt or llama, or lora.rank = 0");
  }
  return {config.lora.rank, config.lora.alpha,
          adapter_targets(config.lora.targets, *sizes, *config->foreign_names())};
}

void freeze(Model& model, const std::string& patterns) {
  const std::vector<Parameter*> parameters = parameters_of(model);
  std::istringstream list(patterns);
  for (std::string pattern; std::getline(list, pattern, ',');) {
    const auto fits = [&](const std::string& name) {
      return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
    };
    bool is_used = false;
    for (Parameter* parameter : parameters) {
      std::string in, out;
      for (const Piece& piece : pieces_of(*parameter)) {
        std::string& names = fits(piece.name) ? in : out;
        names += (names.empty() ? "" : ", ") + piece.name;
      }
      if (!in.empty() && !out.empty() && !fits(parameter->name)) {
        fail(ExitCode::kConfig, "model.freeze: ", pattern, " fits ", in, ", but not ", out,
             ", which one product reads with it; freeze all of ", parameter->name, " or none");
      }
      if (out.empty() || fits(parameter->name)) {
        parameter->frozen = is_used = true;
      }
    }
    if (!is_used) {
      fail(ExitCode::kConfig, "model.freeze: ", pattern, " names no parameter; the first is ",
           parameters.front()->name, ", the last ", parameters.back()->name);
    }
  }
  if (std::ranges::none_of(parameters, &Parameter::wanted)) {
    fail(ExitCode::kConfig, "model.freeze = ", patterns, " leaves nothing to train");
  }
}

ParameterCount parameter_count(Model& model) {
  ParameterCount count;
  for (const Parameter* parameter : parameters_of(model)) {
    for (const Piece& piece : pieces_of(*parameter)) {
      const int64_t elements = piece.slice.whole().elements();
      count.all += elements;
      count.trained += parameter->wanted() ? elements : 0;
    }
  }
  return count;
}

}  // namespace tandem
