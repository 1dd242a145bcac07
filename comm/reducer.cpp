#include "comm/reducer.h"

#include <algorithm>
#include <chrono>

#include "src/core/convert.h"
#include "src/core/error.h"
#include "src/core/profiler_range.h"

namespace tandem {

double Exposure::seconds() const {
  return on_gpu ? std::max(0.0, communication_end.seconds_since(compute_end)) : host_s;
}

Reducer::Reducer(Communicator& communicator, std::vector<FlatBuffer> partial,
                 std::vector<FlatBuffer> reduced, bool overlap, std::vector<Tensor> gradients)
    : communicator_(communicator),
      partial_(std::move(partial)),
      reduced_(std::move(reduced)),
      overlap_(overlap),
      gradients_(std::move(gradients)) {
  require(partial_.size() == reduced_.size() &&
              (gradients_.empty() || gradients_.size() == partial_.size()),
          "Reducer: as many buckets before as after");
}

void Reducer::begin() {
  require(left_ == 0, "Reducer: begin() before finish()");
  left_ = static_cast<int64_t>(partial_.size());
  ready_.assign(partial_.size(), false);
}

void Reducer::ready(Stream& compute, int64_t bucket) {
  require(bucket >= 0 && bucket < static_cast<int64_t>(ready_.size()) && !ready_[bucket],
          [&] { return str("Reducer: bucket ", bucket, " is ready twice, or does not exist"); });
  ready_[bucket] = true;
  while (overlap_ && left_ > 0 && ready_[left_ - 1]) {
    start_next(compute);
  }
}

void Reducer::start_next(Stream& compute) {
  --left_;
  const ProfilerRange range(str("bucket ", left_));
  if (!gradients_.empty()) {
    convert(compute, gradients_[left_], partial_[left_].data);
  }
  communicator_.stream().wait(compute.record());
  redistribute(communicator_, partial_[left_], reduced_[left_]);
}

Exposure Reducer::finish(Stream& compute) {
  const auto begin = std::chrono::steady_clock::now();
  Exposure exposure{.compute_end = compute.record(),
                    .on_gpu = communicator_.stream().device() == Device::kCuda};
  while (left_ > 0) {
    start_next(compute);
  }
  exposure.communication_end = communicator_.stream().record();
  compute.wait(exposure.communication_end);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    convert(compute, reduced_[i].data, gradients_[i]);
  }
  exposure.host_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return exposure;
}

}  // namespace tandem
