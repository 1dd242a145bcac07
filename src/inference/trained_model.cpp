#include "src/inference/trained_model.h"

#include <cstdio>
#include <filesystem>

#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/weights/hugging_face/reader.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/hugging_face/tokenizer_files.h"
#include "src/weights/model_zoo.h"
#include "src/weights/snapshot.h"

namespace tandem {

std::string resolve_checkpoint(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::exists(path + "/manifest.json") || is_hugging_face(path)) {
    return path;
  }
  for (const std::string& folder : {path + "/checkpoints", path}) {
    const LatestCheckpoint latest = find_latest(folder);
    for (const std::string& skipped : latest.skipped) {
      std::fprintf(stderr, "tandem: passed over %s\n", skipped.c_str());
    }
    if (!latest.path.empty()) {
      return latest.path;
    }
  }
  fail(ExitCode::kData,
       str(path,
           ": no checkpoint here; name a run's folder, a step-... folder with a manifest.json, or "
           "a folder with a config.json and model.safetensors"));
}

Config config_of(const std::string& checkpoint) {
  if (is_hugging_face(checkpoint)) {
    return hugging_face_config(checkpoint);
  }
  return config_from_text(read_manifest(checkpoint).config, checkpoint + "/manifest.json");
}

Config config_of(const CheckpointReader& reader) {
  return config_from_text(reader.manifest().config, reader.directory() + "/manifest.json");
}

void require_same_vocabulary(const std::string& checkpoint, const std::string& data) {
  if (is_hugging_face(checkpoint)) {
    return require_same_tokens(checkpoint, data);
  }
  const std::string then = read_manifest(checkpoint).vocabulary_hash;
  if (!then.empty() && then != vocabulary_hash(data)) {
    fail(ExitCode::kData, str(data, " has another tokenizer, or other classes, than the data that ",
                              checkpoint, " was trained on; prepare it with those"));
  }
}

std::unique_ptr<TensorSource> open_weights(Control& control, const std::string& checkpoint) {
  std::unique_ptr<TensorSource> weights;
  if (is_hugging_face(checkpoint)) {
    agree(control, [&] { weights = std::make_unique<HuggingFaceReader>(checkpoint); });
  } else {
    weights = std::make_unique<CheckpointReader>(open_checkpoint(control, checkpoint));
  }
  return weights;
}

TrainedModel load_trained_model(const std::string& checkpoint, const DatasetInfo& data, DType dtype,
                                Machine& machine, Control& control) {
  const std::unique_ptr<TensorSource> weights = open_weights(control, checkpoint);
  TrainedModel trained{.config = config_of(checkpoint), .checkpoint = checkpoint};
  trained.step = is_hugging_face(checkpoint) ? 0 : read_manifest(checkpoint).step;
  trained.model = make_model(trained.config.model, data);
  for (Parameter* parameter : parameters_of(*trained.model)) {
    parameter->frozen = true;  // no gradient; only values, in the type that layers compute with
  }
  trained.layout =
      std::make_unique<ModelLayout>(parameters_by_block(*trained.model), machine.mesh()->data(),
                                    machine.device(), StoreOptions{});
  trained.values =
      std::make_unique<ParamValues>(*trained.layout, machine.stream, machine.memory, dtype);
  trained.statistics =
      std::make_unique<BatchStatistics>(*trained.model, machine.stream, machine.memory);
  load(machine.stream, *weights, weights_here(*trained.values, *trained.model));
  trained.values->publish();
  return trained;
}

}  // namespace tandem
