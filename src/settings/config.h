// Every setting of a run, with its default as the member's initialiser. Each section is one small
// struct, and a component receives only the structs that it needs.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optim/outer.h"
#include "optim/schedule.h"
#include "src/core/parse_number.h"
#include "src/data/dataset.h"
#include "src/settings/model_kind.h"
#include "src/step/rules.h"
#include "src/step/training_step_options.h"
#include "src/stop/spot_watch.h"

namespace tandem {

enum class OnNonfinite : uint8_t { kStop, kSkip };
enum class Backend : uint8_t { kAuto, kMpi, kNccl };
enum class Reduce : uint8_t { kRing, kExact };
enum class Unused : uint8_t { kIsError, kIsZero };

enum class ProgressMode : uint8_t {
  kAuto,   // kBar on a terminal, otherwise kPlain
  kBar,    // one line, drawn again at most ten times a second
  kPlain,  // a line every log_every steps
  kNone,
};

struct RunConfig {
  std::string name = "run";
  std::string dir = "runs";
  int64_t seed = 1;
  std::optional<Device> device;  // empty: CUDA where there is a GPU
  std::string device_key = "run.device";
  int64_t threads = 0;
  std::string choices{};
  std::string stop_file{};
  WatchSpot watch_spot = WatchSpot::kAuto;
  double usd_per_node_hour = 0;  // 0: not known

  // Binds `device` as the setting `key`, which messages will name.
  void bind_device(Options& options, const std::string& key);
};

struct DataConfig {
  std::string path;
  WindowKind windows = WindowKind::kStream;
  int64_t prefetch = 2;
  bool augment = false;
  bool verify = false;
};

struct LoraConfig {
  static constexpr int64_t kLargestRank = 1 << 16;
  static constexpr double kLargestAlpha = 1e6;
  int64_t rank = 0;  // 0: no adapters
  double alpha = 16;
  std::string targets = "all";
};

struct ModelConfig {
  Kinds<ModelKind> kind = model_kinds();
  std::string freeze{};
  LoraConfig lora{};

  const ModelKind* operator->() const { return &kind.chosen(); }
  // "gpt: 4 layers, 4 heads, width 128, context 64"
  std::string description() const { return kind.name() + ": " + kind.chosen().description(); }
};

enum class Graphs : uint8_t { kAuto, kOn, kOff };
enum class Offload : uint8_t { kNone, kOptimizer, kActivations, kBoth };
std::string_view name_of(Offload offload);  // as users type it

struct TrainConfig {
  int64_t steps = 1000;
  int64_t global_batch = 12;
  int64_t micro_batch = 0;
  DType precision = DType::kF32;
  bool recompute = false;  // run each block's forward again in backward
  Graphs graphs = Graphs::kAuto;
  Offload offload = Offload::kNone;
  bool offloads_optimizer() const {
    return offload == Offload::kOptimizer || offload == Offload::kBoth;
  }
  bool offloads_activations() const {
    return offload == Offload::kActivations || offload == Offload::kBoth;
  }
  int64_t eval_every = 0;
  int64_t eval_batches = 0;
  int64_t log_every = 10;
  OnNonfinite on_nonfinite = OnNonfinite::kStop;
  std::string skip_batches{};
  std::string eval_choices{};
};

struct KernelsConfig {
  AttentionKernels attention = AttentionKernels::kAuto;
};

struct OptimConfig {
  Kinds<UpdateRule> kind = update_rules();
  double lr = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup_steps = 100;
  ScheduleKind schedule = ScheduleKind::kCosine;
  int64_t decay_steps = 0;
  double clip_norm = 1.0;
  OuterOptions outer;  // where dist.islands is above 1
};

struct DistConfig {
  int64_t zero = 0;
  int64_t tensor = 1;
  Backend backend = Backend::kAuto;
  Reduce reduce = Reduce::kRing;
  double bucket_mb = 0;  // 0: auto
  DType wire_dtype = DType::kF32;
  bool gather_int8 = false;
  int64_t islands = 1;  // 0: node
  int64_t sync_every = 20;
  int64_t sync_delay = 0;
  bool overlap = true;
  Sharing shard = Sharing::kWorld;
  std::string node_size = "auto";
  Unused unused = Unused::kIsError;
  double timeout_s = 0;  // 0: auto
  static constexpr double kFirstTimeout_s = 300, kLaterTimeout_s = 60;
  double min_gb_s = 0;

  // Says whether gradients on such a device go over NCCL.
  bool over_nccl(Device device) const {
    return device == Device::kCuda && backend != Backend::kMpi;
  }
  int ranks_a_node() const { return parse_number<int>(node_size).value_or(0); }  // 0: auto
  // Makes each node an island. Throws Error(kConfig) unless all nodes have equally many ranks,
  // which are neighbours.
  void set_islands(const std::vector<int>& node_of_rank);
  // Replaces auto. An NCCL call costs the host 50 to 150 us, so that few and large ones pay.
  void resolve_bucket_mb(Device device) {
    bucket_mb = bucket_mb > 0 ? bucket_mb : over_nccl(device) ? 25 : 4;
  }
};

struct CheckpointConfig {
  int64_t every_steps = 0;
  double every_minutes = 0;
  bool at_end = true;
  int64_t keep = 2;
  int64_t keep_every = 0;
  std::string resume = "auto";
  std::string init_from;
  std::optional<bool> self_contained;  // empty: unless there are adapters
  std::string base;
  bool async = true;
};

struct LogConfig {
  ProgressMode progress = ProgressMode::kAuto;
  bool tensorboard = true;
  int64_t sample_every = 0;
  bool histograms = false;
  std::string trace{};
  double gpu_every_s = 1;
  std::string prometheus{}, emf{};  // a folder and a file
};

// The amount whose price is told.
struct PriceUnit {
  std::string key;   // "usd_per_1e9_tokens", "usd_per_1e6_images"
  std::string text;  // "10^9 tokens", "10^6 images"
  double units = 0;

  // The price of the amount when `bought` tokens or images cost `usd`.
  double price(double usd, double bought) const { return usd / bought * units; }
};

struct Config {
  RunConfig run;
  DataConfig data;
  ModelConfig model;
  TrainConfig train;
  KernelsConfig kernels;
  OptimConfig optim;
  DistConfig dist;
  CheckpointConfig checkpoint;
  LogConfig log;

  // False: checkpoints are without frozen weights.
  bool is_self_contained() const {
    return checkpoint.self_contained.value_or(model.lora.rank == 0);
  }
  // Binds all settings, with the help text that documents them. `options` must not outlive this
  // object.
  void bind(Options& options);
  // In what follows `ranks` are those of the job.
  BatchPlan batch_plan(int ranks) const {
    const int tensor = static_cast<int>(dist.tensor), islands = static_cast<int>(dist.islands);
    return {train.global_batch, train.micro_batch, std::max(1, ranks / (tensor * islands)), tensor,
            islands};
  }
  Windows windows() const {
    return {data.windows, model->context(), static_cast<uint64_t>(run.seed)};
  }
  // What is trained on: "tokens" or "images", and how many are in one sample.
  const char* unit() const { return model->reads_text() ? "tokens" : "images"; }
  int64_t units_per_sample() const { return model->reads_text() ? model->context() : 1; }
  // Samples of a batch for validation: train.micro_batch, or where that is 0 what has 64 Ki units,
  // since no rank must hold the global batch. Independent of the number of ranks, so that
  // validation losses have the same bits on any number.
  int64_t eval_batch() const {
    return train.micro_batch > 0
               ? train.micro_batch
               : std::clamp<int64_t>((1 << 16) / units_per_sample(), 1, train.global_batch);
  }
  PriceUnit price_unit() const {
    return model->reads_text() ? PriceUnit{"usd_per_1e9_tokens", "10^9 tokens", 1e9}
                               : PriceUnit{"usd_per_1e6_images", "10^6 images", 1e6};
  }
  TrainingStepOptions training_step(Device device, int ranks) const;
  // Why a step is not one CUDA graph on such a device; empty if it is.
  std::string why_no_graph(Device device, int ranks) const;
  std::string graph_text(Device device, int ranks) const;  // for a GPU: "one CUDA graph"
  ScheduleOptions schedule() const {
    return {.kind = optim.schedule,
            .lr = optim.lr,
            .min_lr = optim.min_lr,
            .warmup_steps = optim.warmup_steps,
            .steps = train.steps,
            .decay_steps = optim.decay_steps};
  }
  std::string ini_text() const;  // all settings that are read; reads back as an equal Config
};

// Reads a configuration from INI text that ini_text() wrote, of this or an older program (a run's
// config.cfg, a checkpoint's manifest).
Config config_from_text(const std::string& text, const std::string& origin);

// Everything that is wrong with the values or their combination on `ranks` ranks, including
// features that this build lacks. Empty when nothing is wrong.
std::vector<std::string> problems_of(const Config& config, int ranks);
}  // namespace tandem
