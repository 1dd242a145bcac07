#include "src/train/run_directory.h"

#include <filesystem>

#include "src/core/error.h"
#include "src/data/tokenizer.h"
#include "src/io/file.h"
#include "src/settings/changes.h"

namespace tandem {

namespace {

void compare_fixed_settings(const Config& config, const std::string& path) {
  const std::string differences = changed_settings(config_from_text(read_file(path), path), config);
  if (!differences.empty()) {
    fail(ExitCode::kConfig,
         str("run ", config.run.name,
             " was started with other settings; choose another run.name, or ", "remove ",
             std::filesystem::path(path).parent_path().string(), ":", differences));
  }
}

}  // namespace

std::unique_ptr<FileLock> RunDirectory::lock() const {
  make_directories(path_);
  return std::make_unique<FileLock>(path_ + "/lock", "run " + path_);
}

void RunDirectory::prepare(const Config& config) const {
  make_directories(checkpoints());
  const std::string config_path = path_ + "/config.cfg";
  if (std::filesystem::exists(metrics())) {
    compare_fixed_settings(config, config_path);
  }
  replace_file(config_path, config.ini_text());
}

void RunDirectory::keep_tokenizer(const Config& config) const {
  if (config.model.reads_text()) {
    H5Writer tokenizer_file(tokenizer());
    load_tokenizer(H5Reader(config.data.path))->save(&tokenizer_file, "/tokenizer");
    tokenizer_file.commit();
  }
}

}  // namespace tandem
