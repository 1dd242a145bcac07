// tandem inspect: what is in a dataset, a checkpoint or a run.
#include <cstdio>
#include <filesystem>

#include "comm/agreement.h"
#include "src/commands/commands.h"
#include "src/device/memory.h"
#include "src/inference/trained_model.h"
#include "src/io/checkpoint.h"
#include "src/io/content_hash.h"
#include "src/report/run_report.h"
#include "src/train/run_directory.h"

namespace tandem {

namespace {

constexpr const char* kUsage = R"(tandem inspect: what is in a dataset, a checkpoint or a run

  tandem inspect data/shakespeare_char.h5
  tandem inspect runs/NAME                  the newest checkpoint of a run, and what the run used
  tandem inspect runs/NAME/checkpoints/step-00000100 --verify
)";

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

void inspect_data(const std::string& path, bool verify) {
  const DatasetInfo info = inspect_dataset(path);
  std::printf("dataset     %s (%s)\n", path.c_str(), format_bytes(info.file_bytes).c_str());
  std::printf("kind        %s\n", std::string(name_of(info.kind)).c_str());
  const char* unit = info.kind == DatasetKind::kText ? "tokens" : "images";
  std::printf("train       %ld %s\nval         %ld %s\n", info.train_count, unit, info.val_count,
              unit);
  if (info.kind == DatasetKind::kText) {
    std::printf("tokenizer   %s, %ld tokens in the vocabulary\n", info.tokenizer.c_str(),
                info.vocab_size);
  } else {
    std::printf("image       %ld x %ld x %ld (channels, height, width)\n", info.channels,
                info.height, info.width);
    std::printf("classes     %zu: %s\n", info.classes.size(), joined(info.classes).c_str());
  }
  std::printf("hash        %s\n", info.content_hash.c_str());
  if (verify) {
    verify_content(info, true);
    std::printf("verified    every byte is as prepared\n");
  }
}

// The hash of the whole tensor, which does not depend on how many ranks wrote it.
std::string content_hash_of(const CheckpointReader& reader, const CheckpointReader::Entry& tensor) {
  const int64_t elements = tensor.shape.elements();
  Memory host(Device::kCpu);
  const Tensor data = Tensor::empty(host, {elements}, DType::kF32, MemoryClass::kData);
  reader.read({tensor.name, tensor.shape, 0, data});
  return hash_of(data.raw(), elements * size_of(DType::kF32)).hex();
}

void inspect_checkpoint(const std::string& path, bool verify) {
  const std::string folder = resolve_checkpoint(path);
  const CheckpointReader reader(folder);
  const Manifest& manifest = reader.manifest();
  std::printf("checkpoint  %s\n", folder.c_str());
  std::printf("step        %ld (sample %ld), written by %ld ranks\n", manifest.step,
              manifest.sampler_position, static_cast<int64_t>(manifest.world_size));
  if (manifest.validation_loss) {
    std::printf("val_loss    %.6f\n", *manifest.validation_loss);
  }
  int64_t elements = 0;
  for (const CheckpointReader::Entry& tensor : reader.tensors()) {
    std::printf("  %-48s %s%s\n", tensor.name.c_str(), tensor.shape.text().c_str(),
                verify ? ("  " + content_hash_of(reader, tensor)).c_str() : "");
    elements += tensor.name.starts_with("param/") ? tensor.shape.elements() : 0;
  }
  std::printf("parameters  %ld\n", elements);
  if (verify) {
    std::printf("verified    every byte is as it was written\n");
  }
  std::printf("\n%s", manifest.config.c_str());
}

// Shows a run, a folder of checkpoints, or one checkpoint. A new run may not have a checkpoint yet.
void inspect_folder(const std::string& path, bool verify) {
  const bool within_run = std::filesystem::exists(path + "/manifest.json");
  const std::string run = within_run ? "" : describe_run(RunDirectory(path));
  if (run.empty() || !list_checkpoints(path + "/checkpoints").empty()) {
    inspect_checkpoint(path, verify);
  } else {
    std::printf("checkpoint  none yet in %s\n", path.c_str());
  }
  if (!run.empty()) {
    std::printf("\n%s\n", run.c_str());
  } else if (!within_run) {
    std::printf("\nrun         no metrics.jsonl and no report.json in %s\n", path.c_str());
  }
}

}  // namespace

ExitCode inspect_command(const Words& words, World& world, Memory&) {
  if (world.size() > 1) {
    throw AgreedError(ExitCode::kConfig,
                      "tandem inspect runs as one process; start it without mpirun");
  }
  bool verify = false, help = false;
  Options options(kUsage);
  options.add("verify", verify,
              "read everything and compare hashes; shows those of a checkpoint's tensors");
  options.add("help", help, "print this");
  // `--verify PATH` would take PATH as its value; here it is a switch.
  Words reordered;
  for (const std::string& word : words) {
    reordered.push_back(word == "--verify" ? "--verify=true" : word);
  }
  const CommandLine line = parse_command_line(reordered);
  std::vector<std::string> problems = options.apply(line.assignments);
  if (!help && line.positional.size() != 1) {
    problems.push_back("tandem inspect takes one file or folder; --help shows examples");
  }
  fail_if_any(problems);
  if (help) {
    std::fputs(options.help().c_str(), stdout);
  } else if (std::filesystem::is_directory(line.positional[0])) {
    inspect_folder(line.positional[0], verify);
  } else {
    inspect_data(line.positional[0], verify);
  }
  return ExitCode::kOk;
}

}  // namespace tandem
