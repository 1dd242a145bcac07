#include "src/estimate/estimate.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <set>

#include "comm/mesh.h"
#include "comm/transport/local_control.h"
#include "src/core/formatted.h"
#include "src/machine/gpu_table.h"
#include "src/machine/machine.h"
#include "src/step/training_step.h"
#include "src/step/upload.h"
#include "src/weights/make_model.h"
#include "src/weights/snapshot.h"

namespace tandem {

namespace {

// For the driver's context, cuBLASLt's workspaces and NCCL's buffers.
constexpr int64_t kReservedOnGpu = int64_t{3} << 29;
// Ranks of one CPU machine share its memory bus and pass messages through it.
constexpr double kCpuBytes_per_s = 20e9;
constexpr Network kCpuNetwork = {{20e-6, 2e9}, {50e-6, 1e9}};

// At most this many ranks are tried: all ranks of a large job are nearly alike.
constexpr int kMostRanks = 8;
// The blocks of all micro-batches and tried ranks of a step; a search for the largest micro-batch
// counts as 16 of them.
constexpr int64_t kMostBlocks = 1 << 14, kSearch = 16;

// The memory check runs at most this many micro-batches of a step: the first, one between and the
// last. In all but the first a message of the one before is in flight.
constexpr int64_t kMostMicroBatches = 3;

// The first steps differ from later ones: buffers are allocated, and no message is in flight yet.
constexpr int64_t kFirstSteps = 2;

Hardware this_cpu(const Config& config, int ranks_here) {
  use_cpu_share(config.run.threads, ranks_here);
  const int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const double flops = measure_gemm_rate();
  return {.name = "cpu",
          .memory_bytes = bytes / ranks_here,
          .peak_flops = flops,
          .speed = {.flops_per_s = flops,
                    .bytes_per_s = kCpuBytes_per_s / ranks_here,
                    .attention_flops_per_s = flops},
          .network = kCpuNetwork};
}

std::vector<int> node_of_rank(const Job& job) {
  std::vector<int> nodes;
  for (int rank = 0; rank < job.ranks; ++rank) {
    nodes.push_back(rank / job.node_size);
  }
  return nodes;
}

// The options of the step.
TrainingStep::Options planned(Config config, const Job& job, int64_t most) {
  config.dist.resolve_bucket_mb(job.hardware.device);
  TrainingStep::Options options = config.training_step(job.hardware.device, job.ranks);
  options.most_micro_steps = most;
  options.document_length = job.document_length;
  return options;
}

// Returns the sizes of a step's micro-batches.
std::vector<BatchSizes> batch_sizes(const Config& config, const BatchPlan& plan) {
  const int64_t targets = config.model->reads_text() ? config.model->context() : 1;
  return std::vector<BatchSizes>(static_cast<size_t>(plan.accumulation()),
                                 {.samples = plan.micro_batch(),
                                  .targets = plan.micro_batch() * targets,
                                  .has_positions = config.data.windows == WindowKind::kDocuments});
}

// The estimate of one rank: runs kFirstSteps steps, then measures one more. It runs at most `most`
// micro-batches of a step; 0: all.
class DryRun {
 public:
  DryRun(const Config& config, const DatasetInfo& data, const Job& job, int rank, int64_t most = 0)
      : job_(job),
        rank_(rank),
        copies_apart_(config.checkpoint.async),
        stream_(Stream::dry(job.hardware.device, job.hardware.speed)),
        memory_(stream_),
        host_(Stream::dry(Device::kCpu, {})),
        staging_(stream_.device() == Device::kCpu ? memory_ : Memory(host_)),
        world_(rank, job.ranks, collectives_device(config, job), job.hardware.speed,
               job.hardware.network),
        control_(rank, job.ranks),
        mesh_(control_, world_, memory_, node_of_rank(job), config.dist.shard,
              mesh_shape(config.dist)),
        model_(make_model(config.model, data, mesh_.cut())),
        left_out_(config.is_self_contained() ? std::set<std::string>() : frozen_tensors(*model_)),
        training_(*model_, mesh_.model(), stream_, memory_, staging_, planned(config, job, most)),
        upload_(stream_, memory_, staging_, data, training_.store().values.dtype()),
        batches_(batch_sizes(config, training_.batch())) {
    training_.store().values.publish();  // as when a run has loaded them
  }

  Estimate run() {
    run_first_steps();
    const DryClock before = stream_.clock();
    const WireCount sent = mesh_.wire();
    const int64_t copied = training_.offloaded_bytes();
    const Timeline timeline = step(kFirstSteps);
    const DryClock after = stream_.clock();
    const double exposed_copy_s =
        stream_.device() == Device::kCpu ? 0 : timeline.seconds()[size_t(Phase::kCopy)];
    Estimate result{.peak_bytes = memory_.total().peak_bytes,
                    .reserved_bytes = memory_.reserved_bytes(),
                    .blocks = memory_.system_allocations(),
                    .checkpoint_bytes = checkpoint_bytes(),
                    .host_bytes = host_bytes(),
                    .wire = (mesh_.wire() - sent).payload(),
                    .flops = (after.work.flops - before.work.flops + after.work.attention -
                              before.work.attention) *
                             job_.ranks,
                    .step_s = after.now_s - before.now_s,
                    .exposed_s = after.waited_s - before.waited_s - exposed_copy_s,
                    .copied_bytes = training_.offloaded_bytes() - copied,
                    .exposed_copy_s = exposed_copy_s};
    for (int i = 0; i < kMemoryClasses; ++i) {
      result.class_bytes[i] = memory_.use(static_cast<MemoryClass>(i)).peak_bytes;
    }
    if (const IslandSync* islands = training_.islands()) {
      const WireCount exchanged = islands->exchanged();
      result.sync_s = exchange(result.step_s);
      result.sync_wire = (islands->exchanged() - exchanged).payload();
    }
    return result;
  }
  int64_t peak_bytes() {
    run_first_steps();
    return memory_.total().peak_bytes;
  }
  int64_t checkpoint_bytes() {
    return snapshot_bytes(training_.store(), training_.optimizer(), *model_, rank_, copies_apart_,
                          left_out_);
  }
  int64_t host_bytes() const {
    return stream_.device() == Device::kCpu ? 0 : offloaded_bytes(staging_);
  }
  double flops_per_sample() const { return model_->flops_per_sample(); }

 private:
  static Device collectives_device(const Config& config, const Job& job) {
    return config.dist.backend == Backend::kMpi ? Device::kCpu : job.hardware.device;
  }

  void finish_steps(size_t running) {
    while (pending_.size() > running) {
      pending_.pop_front();
    }
  }

  void run_first_steps() {
    for (int64_t i = 0; i < kFirstSteps; ++i) {
      static_cast<void>(step(i));
    }
    if (IslandSync* islands = training_.islands()) {
      finish_steps(1);
      islands->settle(0);
      static_cast<void>(islands->take_drift());
      exchange(0);
      static_cast<void>(step(kFirstSteps - 1));  // beside what exchanges keep
    }
  }

  // Returns the seconds that an exchange adds to steps of `step_s`.
  double exchange(double step_s) {
    IslandSync& islands = *training_.islands();
    const int64_t every = islands.options().every, delay = islands.options().delay;
    const double begin_s = stream_.clock().now_s;
    const int64_t at = every * ++exchanges_;
    finish_steps(1);
    islands.end_step(at);
    if (delay > 0) {
      static_cast<void>(step(kFirstSteps));
      stream_.clock().advance(static_cast<double>(delay - 1) * step_s);
      finish_steps(1);
      islands.end_step(at + delay);
    }
    static_cast<void>(training_.timeline().take(stream_));
    pending_.back().drift = islands.take_drift();
    return stream_.clock().now_s - begin_s - static_cast<double>(delay) * step_s;
  }

  // Like a step of Trainer, which reads a step's record one step late.
  Timeline step(int64_t number) {
    finish_steps(1);
    pending_.push_back(
        {.record = training_.run({.step = number,
                                  .targets = 1,
                                  .batch = [this](int64_t i) { return upload_.fetch(i); },
                                  .memory = upload_.send(batches_)})});
    return training_.timeline().take(stream_);
  }

  const Job& job_;
  int rank_;
  bool copies_apart_;
  Stream stream_;
  Memory memory_;
  Stream host_;
  Memory staging_;
  DryCollectives world_;
  LocalControl control_;
  Mesh mesh_;
  std::unique_ptr<Model> model_;
  std::set<std::string> left_out_;
  TrainingStep training_;
  Uploader upload_;
  std::vector<BatchSizes> batches_;
  struct Pending {
    StepRecord::Copy record{};
    std::optional<IslandSync::Drift> drift{};
  };
  std::deque<Pending> pending_;
  int64_t exchanges_ = 0;
};

}  // namespace

Hardware hardware_of(const GpuModel* gpu, const Config& config, int ranks_here) {
  if (!gpu) {
    return this_cpu(config, ranks_here);
  }
  const DType dtype = config.train.precision;
  const std::optional<TransformerConfig> model = config.model->transformer();
  const int64_t head_width = model ? model->head_layout().width : 128;  // others have no heads
  Speed speed = gpu->reached(dtype, config.kernels.attention, head_width);
  speed.host_bytes_per_s = gpu->host_bytes_per_s[ranks_here > 1];
  const double sustained = gpu->sustained_flops(dtype);
  return {.name = std::string(gpu->name),
          .device = Device::kCuda,
          .memory_bytes = gpu->memory_bytes - kReservedOnGpu,
          .reserved_bytes = kReservedOnGpu,
          .peak_flops = gpu->peak_flops(dtype),
          .speed = speed,
          .basis = formatted(
              " (%.0f %% of the %.3g that a long run sustains; short bursts reach %.3g)",
              100 * speed.flops_per_s / sustained, sustained / 1e12,
              gpu->peak_flops(dtype) * gpu->ceilings().flops_per_s / gpu->half_flops / 1e12),
          .network = gpu->network};
}

std::vector<std::string> too_long(const Config& config, int ranks) {
  const int64_t micro_batches = config.batch_plan(ranks).accumulation();
  if (micro_batches * std::min(ranks, kMostRanks) + kSearch <=
      kMostBlocks / config.model->blocks()) {
    return {};
  }
  return {str("a model of ", config.model->description(), " with ", micro_batches,
              " micro-batches a rank would take minutes to estimate; take fewer layers, a larger "
              "train.micro_batch or a smaller train.global_batch")};
}

Estimate estimate(const Config& config, const DatasetInfo& data, const Job& job) {
  Estimate all;
  const int looks = std::min(job.ranks, kMostRanks);
  for (int i = 0; i < looks; ++i) {
    DryRun rank(config, data, job, static_cast<int>(int64_t{i} * job.ranks / looks));
    const Estimate one = rank.run();
    if (one.peak_bytes > all.peak_bytes) {
      all.peak_bytes = one.peak_bytes;
      all.reserved_bytes = one.reserved_bytes;
      all.class_bytes = one.class_bytes;
      all.blocks = one.blocks;
    }
    all.checkpoint_bytes = std::max(all.checkpoint_bytes, one.checkpoint_bytes);
    all.host_bytes = std::max(all.host_bytes, one.host_bytes);
    all.copied_bytes = std::max(all.copied_bytes, one.copied_bytes);
    if (one.wire.total() > all.wire.total()) {
      all.wire = one.wire;
    }
    if (one.step_s > all.step_s) {
      all.step_s = one.step_s;
      all.exposed_s = one.exposed_s;
      all.exposed_copy_s = one.exposed_copy_s;
    }
    if (one.sync_wire.total() > all.sync_wire.total()) {
      all.sync_wire = one.sync_wire;
    }
    all.sync_s = std::max(all.sync_s, one.sync_s);
    all.flops = std::max(all.flops, one.flops);
    all.model_flops = rank.flops_per_sample() * static_cast<double>(config.train.global_batch);
  }
  all.mfu = all.model_flops / (all.step_s * job.hardware.peak_flops * job.ranks);
  return all;
}

Estimate memory_of_rank(const Config& config, const DatasetInfo& data, const Job& job, int rank) {
  DryRun run(config, data, job, rank, kMostMicroBatches);
  return {.peak_bytes = run.peak_bytes(),
          .checkpoint_bytes = run.checkpoint_bytes(),
          .host_bytes = run.host_bytes()};
}

// So many samples have rows that dist.tensor ranks can divide; every such number is a multiple.
int64_t fewest_samples(const Config& config) {
  return config.dist.tensor / std::gcd(config.dist.tensor, config.model->context());
}

int64_t largest_micro_batch(const Config& config, const DatasetInfo& data, const Job& job) {
  const int64_t unit = fewest_samples(config);
  const auto fits = [&](int64_t units) {
    Config tried = config;
    tried.train.micro_batch = units * unit;
    const BatchPlan plan = config.batch_plan(job.ranks);
    tried.train.global_batch = units * unit * plan.ranks * plan.islands;
    return DryRun(tried, data, job, 0).peak_bytes() <= job.hardware.memory_bytes;
  };
  int64_t fit = 0, too_large = 1;
  while (fit < kMostSamples && fits(too_large)) {
    fit = too_large;
    too_large *= 2;
  }
  if (fit >= kMostSamples) {
    return fit * unit;
  }
  while (too_large - fit > 1) {
    const int64_t middle = fit + (too_large - fit) / 2;
    (fits(middle) ? fit : too_large) = middle;
  }
  return fit * unit;
}

int64_t usable_micro_batch(const Config& config, const Job& job, int64_t most) {
  BatchPlan plan = config.batch_plan(job.ranks);
  plan.given_micro_batch = std::min(most, plan.share());
  const int64_t unit = fewest_samples(config);
  while (plan.given_micro_batch > 0 &&
         (plan.given_micro_batch % unit != 0 || !plan.problems().empty())) {
    --plan.given_micro_batch;
  }
  return plan.given_micro_batch;
}

}  // namespace tandem
