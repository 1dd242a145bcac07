// Prefetches training micro-batches on one thread of its own.
//
// Responsible for order and for clean ends: batches come in the order of steps and micro-steps,
// whatever the timing; an error of the thread is thrown by next(); destruction stops it at once.
// Assumes that only one thread calls next().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "src/data/batch.h"
#include "src/data/dataset.h"

namespace tandem {

class Loader {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t context = 0;       // text: tokens in a window
    int64_t global_batch = 0;  // samples of one step over all ranks
    int64_t first_sample = 0;  // this rank's part of the global batch: `share` samples from here on
    int64_t share = 0;
    int64_t micro_batch = 0;  // samples of one micro-batch; divides `share`
    int64_t first_step = 0;   // where to begin
    int64_t prefetch = 2;     // micro-batches prepared ahead, at least 1
    bool augment = false;     // images
  };

  // The dataset must outlive the loader and have at least one training window.
  Loader(const Dataset& dataset, const Options& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch of this rank: those of one step, then those of the next. Throws what went
  // wrong while it was prepared.
  MicroBatch next();
  // The most micro-batches that ever lay ready at once: at most Options::prefetch.
  int64_t most_ready();

 private:
  void run(std::stop_token stop);
  MicroBatch prepare(int64_t number) const;

  const Dataset& dataset_;
  const Options options_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<MicroBatch> ready_;
  size_t most_ready_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;  // the last member: it stops before the others are destroyed
};

}  // namespace tandem
