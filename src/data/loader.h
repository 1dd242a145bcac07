// Prefetches training micro-batches on one thread of its own.
//
// Responsible for order and for a clean shutdown. Batches come in the order of steps and
// micro-steps, whatever the timing. next() throws an error of the thread. Destruction stops the
// thread. Assumes that only one thread calls next().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
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
    int64_t first_sample = 0;  // this rank's samples of the global batch: `share` from here on
    int64_t share = 0;
    int64_t micro_batch = 0;                    // samples of one micro-batch; divides `share`
    int64_t first_step = 0;                     // the step to begin with
    int64_t prefetch = 2;                       // micro-batches prepared ahead, at least 1
    bool augment = false;                       // images
    std::function<bool(int64_t step)> skips{};  // true: leave out the batches of this step
  };

  // The dataset must outlive the loader and have at least one training window.
  Loader(const Dataset& dataset, const Options& options);

  // The next micro-batch of this rank, in the order of steps and micro-steps. Throws the error that
  // occurred while it was prepared.
  MicroBatch next();
  // The largest number of micro-batches that were ready at once so far; at most Options::prefetch.
  int64_t most_ready();

 private:
  void run(std::stop_token stop);

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
