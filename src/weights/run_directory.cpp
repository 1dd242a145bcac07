#include "src/weights/run_directory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/data/image_dataset.h"
#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/file.h"
#include "src/settings/changes.h"

namespace tandem {

namespace {

// Whether the file has this content, or gets it in time. Looks are counted, because a clock goes on
// while a machine stands still.
bool is_seen(const std::string& path, const std::string& content,
             std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPause{20};
  for (;; patience -= kPause) {
    std::ifstream file(path);
    if (std::string(std::istreambuf_iterator<char>(file), {}) == content) {
      return true;
    }
    if (patience.count() <= 0) {
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
}

// The settings of the start before. If they are lost, they are made again from those of the newest
// checkpoint.
std::optional<Config> settings_before(const RunDirectory& run) {
  if (std::filesystem::exists(run.settings())) {
    return config_from_text(read_file(run.settings()), run.settings());
  }
  const std::string newest = find_latest(run.checkpoints()).path;
  if (newest.empty()) {
    return std::nullopt;
  }
  const Config config = config_from_text(read_manifest(newest).config, newest);
  run.keep_settings(config);
  return config;
}

void refuse_link(const std::string& folder) {
  std::error_code ignored;  // what cannot be looked at cannot be used either
  if (std::filesystem::is_symlink(folder, ignored)) {
    fail_data(folder, ": a symbolic link: what is written or removed there may be another run's; ",
              "make it a folder, or choose run.dir on the other disk");
  }
}

}  // namespace

void RunDirectory::lock() {
  make_directories(path_);
  folder_ = std::make_shared<const Descriptor>(path_, O_RDONLY | O_DIRECTORY);
  lock_ = std::make_shared<const FileLock>(path_ + "/lock", "run " + path_, folder());
}

void RunDirectory::require_in_place() const {
  if (!folder_) {
    return;
  }
  constexpr std::string_view kEnds =
      "; the run ends here, and goes on from the checkpoints that are there when it is started "
      "again";
  // A folder that is renamed takes its lock along, so the lock is looked at first.
  const bool has_lock = lock_->is_at(path_ + "/lock");
  if (!is_same_file(*folder_, path_)) {
    fail_data(path_, ": the folder of the run was renamed or removed while the run was writing to ",
              "it", kEnds);
  }
  if (!has_lock) {
    fail_data(path_, "/lock: renamed or removed, so that another job may write to the run", kEnds);
  }
  refuse_link(checkpoints());
}

void RunDirectory::prepare(Config& config, Device device, int64_t vocab) const {
  for (const std::string& folder : {checkpoints(), flight(), trace()}) {
    refuse_link(folder);
  }
  make_directories(checkpoints());
  const bool is_new = !std::filesystem::exists(metrics());
  if (const auto before = is_new ? std::nullopt : settings_before(*this)) {
    if (const std::string changes = changed_settings(*before, config, vocab); !changes.empty()) {
      fail(ExitCode::kConfig, "run ", config.run.name,
           " was started with other settings; choose another run.name, or remove ", path_, ":",
           changes);
    }
    config.dist.bucket_mb =
        config.dist.bucket_mb > 0 ? config.dist.bucket_mb : before->dist.bucket_mb;
  }
  config.dist.resolve_bucket_mb(device);
}

void RunDirectory::keep_settings(const Config& config) const {
  replace_file(settings(), config.ini_text(), folder());
}

bool RunDirectory::has_saved(const Config& config) const {
  const std::string newest = find_latest(checkpoints()).path;
  if (newest.empty()) {
    return false;
  }
  const Config then = config_from_text(read_manifest(newest).config, newest);
  return std::ranges::all_of(all_changes(then, config, 0), [](const std::string& change) {
    return change.starts_with("run.") || change.starts_with("dist.") || change.starts_with("log.");
  });
}

void RunDirectory::require_shared(Control& job, const std::string& host,
                                  std::chrono::milliseconds patience) const {
  if (job.size() == 1) {
    return;
  }
  const std::string file = path_ + "/shared";
  const std::string content = on_root(job, [&] {
    std::random_device random;
    const std::string text = str(random(), " ", random(), " ", random(), " ", random(), "\n");
    replace_file(file, text, folder());
    return text;
  });
  const std::vector<std::string> blind =
      job.all_gather(is_seen(file, content, patience) ? "" : host);
  const std::string place = on_root(job, [&] {
    remove_tree(file);
    return str(std::filesystem::absolute(path_).string(), " on ", host);
  });
  std::map<std::string, size_t> first_rank;  // by host
  for (size_t rank = 0; rank < blind.size(); ++rank) {
    first_rank.emplace(blind[rank], rank);
  }
  first_rank.erase("");
  const std::string hosts = joined(mapped(first_rank, [](const auto& named) {
    return str(named.first, " (rank ", named.second, ")");
  }));
  if (!hosts.empty()) {
    throw AgreedError(ExitCode::kData, "the folder of the run, ", place, ", is not seen on ", hosts,
                      "; put run.dir on storage that all hosts share");
  }
}

void RunDirectory::keep_vocabulary(const DatasetInfo& dataset) const {
  if (dataset.kind == DatasetKind::kImages) {
    return keep_classes(dataset, classes());
  }
  H5Writer tokenizer_file(tokenizer());
  load_tokenizer(H5Reader(dataset.path))->save(&tokenizer_file);
  tokenizer_file.commit();
}

RunDirectory RunDirectory::of(const std::string& checkpoint) {
  return RunDirectory(std::filesystem::canonical(checkpoint).parent_path().parent_path().string());
}

void RunDirectory::sync_metrics() const {
  if (std::error_code unknown; std::filesystem::exists(metrics(), unknown)) {
    sync_path(metrics());
  }
}

std::string RunDirectory::find(const std::string& file) const {
  namespace fs = std::filesystem;
  if (file.empty() || fs::path(file).is_absolute() || fs::exists(file)) {
    return file;
  }
  for (fs::path folder = fs::absolute(path_).lexically_normal();; folder = folder.parent_path()) {
    if (fs::exists(folder / file)) {
      return (folder / file).string();
    }
    if (folder == folder.root_path()) {
      return file;
    }
  }
}

}  // namespace tandem
