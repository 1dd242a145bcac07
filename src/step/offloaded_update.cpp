#include "src/step/offloaded_update.h"

#include <algorithm>

#include "src/device/profiler_range.h"

namespace tandem {

namespace {

int64_t longest(std::span<const Shard> shards) {
  int64_t most = 0;
  for (const Shard& shard : shards) {
    most = std::max(most, shard.value.elements());
  }
  return most;
}

bool is_on_host(const Tensor& tensor) { return tensor.device() == Device::kCpu; }

}  // namespace

std::vector<OffloadedUpdate::Run> OffloadedUpdate::runs_of(const ParamStore& store,
                                                           const Optimizer& optimizer) {
  std::vector<Run> runs;
  for (size_t i = 0; i < store.shards.all().size(); ++i) {
    Run& run =
        runs.emplace_back(Run{.bucket = store.shards.bucket(i), .shard = store.shards.all()[i]});
    if (is_on_host(run.shard.value)) {
      run.resting.push_back(run.shard.value);
    }
  }
  optimizer.visit([&](std::string_view, size_t shard, const Tensor& state) {
    runs[shard].resting.push_back(state);
  });
  return runs;
}

OffloadedUpdate::OffloadedUpdate(const ParamStore& store, Optimizer& optimizer, Stream& compute,
                                 Memory& memory)
    : optimizer_(optimizer),
      compute_(compute),
      runs_(runs_of(store, optimizer)),
      work_(Stream::beside(compute)),
      window_(work_, memory, runs_.empty() ? 0 : runs_[0].resting.size(),
              longest(store.shards.all())) {}

void OffloadedUpdate::bring_until(size_t end) {
  const auto brought = [this] { return next_ + static_cast<size_t>(window_.inside()); };
  while (brought() < std::min(end, runs_.size())) {
    window_.bring(runs_[brought()].resting);
  }
}

void OffloadedUpdate::prefetch() { bring_until(HostWindow::kPlaces - 1); }

Event OffloadedUpdate::update(int64_t bucket) {
  const ProfilerRange range("update");
  if (next_ == 0) {
    work_.wait(compute_.record());  // gradients and verdict
  }
  for (; next_ < runs_.size() && runs_[next_].bucket == bucket; ++next_) {
    bring_until(next_ + HostWindow::kPlaces);
    update_run(runs_[next_]);
  }
  if (next_ == runs_.size()) {
    next_ = 0;
  }
  return work_.record();
}

void OffloadedUpdate::update_run(const Run& run) {
  const std::vector<Tensor> arrays = window_.open();
  Shard shard = run.shard;
  std::span<const Tensor> state = arrays;
  if (is_on_host(run.shard.value)) {
    shard.value = state.front();
    state = state.subspan(1);
  }
  optimizer_.update(work_, shard, state);
  window_.close();
}

}  // namespace tandem
