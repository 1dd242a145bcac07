#include "src/data/loader.h"

#include <algorithm>
#include <utility>

#include "src/core/error.h"
#include "src/device/profiler_range.h"

namespace tandem {

Loader::Loader(const Dataset& dataset, const Options& options)
    : dataset_(dataset), options_(options) {
  require(options.micro_batch > 0 && options.share > 0 &&
              options.share % options.micro_batch == 0 && options.first_sample >= 0 &&
              options.prefetch > 0 && options.first_sample + options.share <= options.global_batch,
          "Loader: the parts of the global batch do not fit");
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

void Loader::run(std::stop_token stop) {
  const auto capacity = static_cast<size_t>(options_.prefetch);
  try {
    const int64_t per_step = options_.share / options_.micro_batch;
    // The numbers of this rank's micro-batches, counted from step 0.
    for (int64_t number = options_.first_step * per_step; !stop.stop_requested(); ++number) {
      const int64_t step = number / per_step;
      if (options_.skips && options_.skips(step)) {
        continue;
      }
      const int64_t first = options_.first_sample + number % per_step * options_.micro_batch;
      const auto read = [&] {
        const ProfilerRange range("loader");
        return dataset_.training_batch(
            {.seed = options_.seed, .context = options_.context, .augment = options_.augment},
            step * options_.global_batch + first, options_.micro_batch);
      };
      MicroBatch batch = read();
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return ready_.size() < capacity; })) {
        return;
      }
      ready_.push_back(std::move(batch));
      most_ready_ = std::max(most_ready_, ready_.size());
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

int64_t Loader::most_ready() {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(most_ready_);
}

MicroBatch Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || error_ != nullptr; });
  if (ready_.empty()) {
    std::rethrow_exception(error_);
  }
  MicroBatch batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

}  // namespace tandem
