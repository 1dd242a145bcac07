// The folder DIR/NAME of a run and the files in it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "src/device/ranks/control.h"
#include "src/io/file_lock.h"
#include "src/settings/config.h"

namespace tandem {

class RunDirectory {
 public:
  explicit RunDirectory(const RunConfig& run) : path_(run.dir + "/" + run.name) {}
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  // The run that a checkpoint RUN/checkpoints/step-... belongs to.
  static RunDirectory of(const std::string& checkpoint);

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string settings() const { return path_ + "/config.cfg"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string report() const { return path_ + "/report.json"; }
  std::string tokenizer() const { return path_ + "/tokenizer.h5"; }
  std::string classes() const { return path_ + "/classes.h5"; }
  std::string choices() const { return path_ + "/choices.json"; }
  std::string flight() const { return path_ + "/flight"; }  // a record of each rank
  std::string trace() const { return path_ + "/trace"; }    // a file of each rank
  std::string job_trace() const { return path_ + "/trace.json.gz"; }
  // Event files lie in the folder itself, because TensorBoard calls a run by its folder.
  const std::string& tensorboard() const { return path_; }

  // One rank calls this. It creates the folder, opens it, and locks it, so that no other job writes
  // into it. The folder stays open and locked as long as this or a copy of it lives. Errors: as
  // those of FileLock.
  void lock();
  // The folder that lock() opened, for the functions of file.h.
  int folder() const { return folder_ ? static_cast<int>(*folder_) : AT_FDCWD; }
  // Throws Error(kData) if that folder or the file of its lock has been renamed or removed, or its
  // checkpoints are a symbolic link by now: a run that went on would be in two places, or two runs
  // in one.
  void require_in_place() const;
  // One rank calls this. It creates the folders. An earlier start under the same name must have had
  // the same model, data and seed; if its config.cfg is lost, it is made again from the newest
  // checkpoint. Errors: kData if the folder cannot be written, kConfig with the settings that
  // differ. Sets a dist.bucket_mb of auto to that of the start before, or to what it means on
  // `device`. vocab: as in changed_settings.
  void prepare(Config& config, Device device, int64_t vocab) const;
  // Writes config.cfg. A start calls it when nothing can refuse it any more, so that a refused one
  // leaves the settings of the start before. Error kData if it cannot be written.
  void keep_settings(const Config& config) const;
  // Whether a start with these settings has saved the newest checkpoint. Those of the sections run,
  // dist and log do not count: launchers set some anew for other hosts.
  bool has_saved(const Config& config) const;
  // Collective, after lock(). Every rank writes its part of a checkpoint here. Throws
  // AgreedError(kData), with the names of the hosts, if a rank does not see a file that rank 0 has
  // just written. Network file systems may be slow, so a rank looks for `patience`.
  void require_shared(Control& job, const std::string& host,
                      std::chrono::milliseconds patience = std::chrono::seconds(5)) const;
  // Writes tokenizer.h5 or classes.h5 for a model of this text or these images, so that `generate`
  // and `serve` need nothing but this folder.
  void keep_vocabulary(const DatasetInfo& dataset) const;
  // Makes metrics.jsonl durable, if it is there. Error kData if that fails.
  void sync_metrics() const;
  // Where a file of the run is: `file` itself if that exists from the working directory or is an
  // absolute path; otherwise the first that exists of `file` in the run's folder and in each folder
  // above it. `file` itself if there is none.
  std::string find(const std::string& file) const;

 private:
  std::string path_;
  std::shared_ptr<const Descriptor> folder_;
  std::shared_ptr<const FileLock> lock_;
};

}  // namespace tandem
