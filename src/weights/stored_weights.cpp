#include "src/weights/stored_weights.h"

#include <filesystem>

#include "src/core/visible_text.h"
#include "src/data/dataset.h"
#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/weights/hugging_face/adapter_files.h"
#include "src/weights/hugging_face/reader.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/hugging_face/tokenizer_files.h"
#include "src/weights/piece_source.h"

namespace tandem {

std::string resolve_checkpoint(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::exists(path + "/manifest.json") || is_hugging_face(path)) {
    return path;
  }
  if (fs::is_regular_file(path)) {
    fail_data(path, ": a file; name the folder of a run, of a checkpoint or of a model");
  }
  for (const std::string& folder : {path + "/checkpoints", path}) {
    const LatestCheckpoint latest = find_latest(folder);
    for (const std::string& skipped : latest.skipped) {
      complain("passed over " + skipped);
    }
    if (!latest.path.empty()) {
      return latest.path;
    }
  }
  fail_data(path,
            ": no checkpoint here; name a run's folder, a step-... folder with a manifest.json, or "
            "a folder with a config.json and model.safetensors");
}

namespace {

// Settings that cannot be are the checkpoint's fault, not the user's.
Config config_of(const Manifest& manifest, const std::string& folder) {
  try {
    return config_from_text(manifest.config, folder + "/manifest.json");
  } catch (const Error& error) {
    fail_data(error.what());
  }
}

}  // namespace

Config config_of(const std::string& checkpoint) {
  if (is_hugging_face(checkpoint)) {
    return hugging_face_config(checkpoint);
  }
  return config_of(read_manifest(checkpoint), checkpoint);
}

Config config_of(const CheckpointReader& reader) {
  return config_of(reader.manifest(), reader.directory());
}

void require_same_vocabulary(const std::string& checkpoint, const std::string& data) {
  if (is_hugging_face(checkpoint)) {
    return require_same_tokens(checkpoint, data);
  }
  const std::string then = read_manifest(checkpoint).vocabulary_hash;
  if (!then.empty() && then != vocabulary_hash(data)) {
    fail_data(data, " has another tokenizer, or other classes, than the data that ", checkpoint,
              " was trained on; use those");
  }
}

std::unique_ptr<TensorSource> open_hugging_face(Control& control, const std::string& folder) {
  std::unique_ptr<HuggingFaceReader> reader;
  agree(control, [&] { reader = std::make_unique<HuggingFaceReader>(folder); });
  on_root(control, [&] {  // it reads much, and every rank would read the same
    reader->require_tied();
    return std::string();
  });
  return reader;
}

std::unique_ptr<TensorSource> open_weights(Control& control, const std::string& checkpoint,
                                           Model& model, const std::string& moved_to) {
  if (is_hugging_face(checkpoint)) {
    return open_hugging_face(control, checkpoint);
  }
  auto source = std::make_unique<PieceSource>(open_checkpoint(control, checkpoint, model));
  open_bases(control, *source, model, moved_to);
  return source;
}

StoredModel resolve_model(Control& control, const std::string& checkpoint, const std::string& base,
                          const std::string& adapter) {
  const std::string model = on_root(control, [&] { return resolve_checkpoint(checkpoint); });
  const std::string tuned = on_root(control, [&]() -> std::string {
    if (!base.empty() && (is_hugging_face(model) || read_manifest(model).bases.empty())) {
      fail(ExitCode::kConfig,
           str("--base ", base, ": ", model, " refers to no other weights; leave --base out"));
    }
    if (adapter.empty() || is_adapter_folder(adapter)) {
      return "";
    }
    if (!base.empty()) {
      fail(ExitCode::kConfig, "with --adapter RUN the model itself is the base; leave --base out");
    }
    const std::string found = resolve_checkpoint(adapter);
    if (config_of(found).model.lora.rank == 0) {
      fail(ExitCode::kConfig, "--adapter ", adapter,
           is_hugging_face(found)
               ? ": is a whole model, without adapter_config.json; name peft's folder or a run"
               : ": was trained without adapters; name a run with lora.rank above 0");
    }
    return found;
  });
  return tuned.empty() ? StoredModel{model, base, adapter} : StoredModel{tuned, model, ""};
}

Config config_of(const StoredModel& stored) {
  Config config = config_of(stored.checkpoint);
  if (!stored.adapter.empty()) {
    config.model.lora = adapter_settings(stored.adapter, config.model.kind.chosen());
  }
  return config;
}

std::unique_ptr<TensorSource> open_weights(Control& control, const StoredModel& stored,
                                           Model& model) {
  std::unique_ptr<TensorSource> weights =
      open_weights(control, stored.checkpoint, model, stored.base);
  if (!stored.adapter.empty()) {
    agree(control, [&] {
      const Config config = config_of(stored.checkpoint);
      weights = std::make_unique<AdapterReader>(std::move(weights), stored.adapter, model,
                                                *config.model->foreign_names());
    });
  }
  return weights;
}

}  // namespace tandem
