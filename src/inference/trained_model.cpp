#include "src/inference/trained_model.h"

#include <cstdio>
#include <filesystem>

#include "src/estimate/gemm_rate.h"
#include "src/io/checkpoint.h"
#include "src/train/model_zoo.h"
#include "src/train/snapshot.h"

namespace tandem {

std::string resolve_checkpoint(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::exists(path + "/manifest.json")) {
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
           ": no checkpoint here; name a run's folder or a step-... folder with a manifest.json"));
}

Config config_of(const std::string& checkpoint) {
  return config_from_text(read_manifest(checkpoint).config, checkpoint + "/manifest.json");
}

Config config_of(const CheckpointReader& reader) {
  return config_from_text(reader.manifest().config, reader.directory() + "/manifest.json");
}

void require_same_vocabulary(const std::string& checkpoint, const Manifest& manifest,
                             const std::string& data) {
  const std::string& then = manifest.vocabulary_hash;
  if (!then.empty() && then != vocabulary_hash(data)) {
    fail(ExitCode::kData, str(data, " has another tokenizer, or other classes, than the data that ",
                              checkpoint, " was trained on; prepare it with those"));
  }
}

TrainedModel load_trained_model(const std::string& checkpoint, const DatasetInfo& data, DType dtype,
                                World& world, Memory& memory) {
  claim_gemm_buffers();
  const CheckpointReader reader = open_checkpoint(world.control(), checkpoint);
  TrainedModel trained{
      .config = config_of(reader), .checkpoint = checkpoint, .step = reader.manifest().step};
  trained.model = make_model(trained.config.model, data);
  for (Parameter* parameter : parameters_of(*trained.model)) {
    parameter->frozen = true;  // no gradient; only values, in the type that layers compute with
  }
  trained.stream = std::make_unique<Stream>(Stream::compute(Device::kCpu));
  trained.data =
      std::make_unique<Hierarchy>(world.control(), world.collectives(), memory,
                                  std::vector<int>(static_cast<size_t>(world.size()), 0));
  trained.layout = std::make_unique<ModelLayout>(parameters_by_block(*trained.model), *trained.data,
                                                 ModelLayout::Options{});
  trained.values = std::make_unique<ParamValues>(*trained.layout, *trained.stream, memory, dtype);
  trained.statistics = std::make_unique<BatchStatistics>(*trained.model, *trained.stream, memory);
  load(*trained.stream, reader, weights_here(*trained.values, *trained.model));
  trained.values->publish();
  return trained;
}

}  // namespace tandem
