#include "src/report/metrics_window.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <ranges>
#include <utility>

#include "src/core/mapped.h"

namespace tandem {

namespace {

// Adds up the ranks of each node; returns the largest sum.
int64_t largest_host_bytes(std::span<const RankUse> ranks, const std::vector<int>& node_of_rank) {
  std::map<int, int64_t> nodes;
  for (size_t i = 0; i < ranks.size(); ++i) {
    nodes[node_of_rank[i]] += ranks[i].host_bytes;
  }
  return std::ranges::max(nodes | std::views::values);
}

// Local ranks count the ranks of a host in the order of the job.
std::unique_ptr<GpuWatch> watch_own_gpu(const Machine& machine, const Config& config) {
  const int rank = machine.mesh()->job().rank();
  const auto own = machine.hosts().begin() + rank;
  const auto local_rank = static_cast<int>(std::count(machine.hosts().begin(), own, *own));
  return watch_gpu(config.log.gpu_every_s, machine.device(), rank, local_rank, *own,
                   xid_export(config, *own));
}

}  // namespace

MetricsWindow::MetricsWindow(Machine& machine, const Model& model, DType dtype,
                             const Config& config, const WireCount* exchanged)
    : machine_(machine),
      mesh_(*machine.mesh()),
      model_(model),
      global_batch_(config.train.global_batch),
      exchanged_(exchanged),
      peak_flops_(machine.peak_flops(dtype)),
      gpu_(watch_own_gpu(machine, config)),
      exports_(config, mesh_.job().rank(), machine.hosts(), gpu_ ? gpu_->gpu() : "") {}

MetricsWindow::Mark MetricsWindow::mark() {
  // The clock comes first: what follows wakes another thread, which may take this one's core.
  Mark mark{.enqueued = Clock::now()};
  mark.sent = std::make_shared<WireCount>();
  const auto read = [mesh = machine_.mesh(), sent = mark.sent] { *sent = mesh->wire(); };
  Stream& communication = mesh_.data().stream();
  if (communication.device() == Device::kCpu) {
    communication.submit(read);
    mark.there = communication.record();
  } else {
    read();  // NCCL's messages are counted when they are enqueued
  }
  mark.exchanged = exchanged_ ? *exchanged_ : WireCount();
  mark.left_out = left_out_;
  return mark;
}

WireCount MetricsWindow::wire_at(const Mark& mark) {
  mesh_.data().wait(mark.there);
  WireCount sent = *mark.sent;
  return sent += mark.exchanged;
}

void MetricsWindow::begin() {
  wire_ = wire_at(mark());
  start_ = Clock::now();
  left_out_before_ = left_out_;
}

void MetricsWindow::add(const Mark& end, const PhaseSeconds& parts) {
  const WireCount wire = wire_at(end);
  sent_ = wire - std::exchange(wire_, wire);
  std::ranges::transform(parts_, parts, parts_.begin(), std::plus());
  ++steps_;
}

void MetricsWindow::close(const Mark& end, bool by_all, StepMetrics& metrics) {
  Control& among = by_all ? mesh_.job() : mesh_.stage().control();
  first_rank_ = mesh_.job().rank() - among.rank();
  RankTime own{.parts = std::exchange(parts_, PhaseSeconds{})};
  if (machine_.device() == Device::kCpu) {  // a step ends when it is enqueued
    const Clock::duration time = end.enqueued - std::exchange(start_, end.enqueued) -
                                 (end.left_out - std::exchange(left_out_before_, end.left_out));
    own.seconds = std::chrono::duration<double>(time).count();
  } else {  // the host may see the end of a step late
    own.seconds = own.own() + own.of(Phase::kCommunication);
  }
  const std::vector<RankTime> times = gather_times(among, own);
  for (const RankTime& rank : times) {
    metrics.exposed_comm_s = std::max(metrics.exposed_comm_s, rank.of(Phase::kCommunication));
    metrics.exposed_copy_s = std::max(metrics.exposed_copy_s, rank.of(Phase::kCopy));
    metrics.own_s.push_back(rank.own());
  }
  metrics.slowest = slowest_rank(times);
  const std::vector<RankUse> use = gather_use(among, sent_);
  metrics.use = use[largest_rank(use)];
  metrics.use.wire = use[busiest_rank(use)].wire;
  metrics.gpus = mapped(use, &RankUse::gpu);
  if (by_all) {
    metrics.host_bytes = largest_host_bytes(use, machine_.node_of_rank());
  }
  metrics.seconds = own.seconds;
  metrics.steps = std::exchange(steps_, 0);
  metrics.samples = metrics.steps * global_batch_;
  if (peak_flops_ > 0) {
    metrics.mfu = model_.flops_per_sample() * static_cast<double>(metrics.samples) /
                  metrics.seconds / (peak_flops_ * static_cast<double>(mesh_.job().size()));
  }
}

std::vector<RankUse> MetricsWindow::gather_use(Control& among, const WireCount& wire,
                                               int64_t saved_copy_bytes) {
  const Memory& memory = machine_.memory;
  RankUse own{.wire = wire,
              .peak_bytes = memory.total().peak_bytes,
              .reserved_bytes = memory.reserved_bytes(),
              .saved_copy_bytes = saved_copy_bytes};
  if (machine_.device() != Device::kCpu) {
    own.host_bytes = offloaded_bytes(machine_.staging);
  }
  if (gpu_) {
    own.gpu = gpu_->take();
  }
  for (size_t i = 0; i < own.memory_peak.size(); ++i) {
    own.memory_peak[i] = memory.use(static_cast<MemoryClass>(i)).peak_bytes;
  }
  return mapped(among.all_gather(own.text()), RankUse::from_text);
}

}  // namespace tandem
