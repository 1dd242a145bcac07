#include "src/settings/config.h"

#include <array>

#include "src/device/memory.h"

namespace tandem {

namespace {

void bind_train(Options& o, TrainConfig& train) {
  // Large enough for anything, small enough that no product of two overflows.
  constexpr int64_t kMostSteps = int64_t{1} << 40, kLargestBatch = 1 << 22;
  o.add("train.steps", train.steps, "optimizer steps", 1, kMostSteps);
  o.add("train.global_batch", train.global_batch, "sequences or images a step, over all ranks", 1,
        kLargestBatch);
  o.add("train.micro_batch", train.micro_batch,
        "sequences or images a rank takes at a time; 0: its whole share", 0, kLargestBatch);
  o.add_choice("train.precision", train.precision,
               {{"f32", DType::kF32}, {"bf16", DType::kBf16}, {"fp16", DType::kFp16}},
               "type of weights and activations");
  o.add_choice("train.recompute", train.recompute, {{"none", false}, {"block", true}},
               "keep only block inputs, run forward again");
  o.add_choice("train.graphs", train.graphs,
               {{"auto", Graphs::kAuto}, {"on", Graphs::kOn}, {"off", Graphs::kOff}},
               "on a GPU, start each step by one call, as a CUDA graph");
  o.add_choice(
      "train.offload", train.offload,
      {{"none", Offload::kNone},
       {"optimizer", Offload::kOptimizer},
       {"activations", Offload::kActivations},
       {"both", Offload::kBoth}},
      "on a GPU, what rests in the host's memory: masters and optimizer state; block inputs");
  o.add("train.eval_every", train.eval_every, "steps between validations; 0: at the end only");
  o.add("train.eval_batches", train.eval_batches,
        "batches a validation, of train.micro_batch samples or 65536 tokens; 0: the whole set");
  o.add("train.log_every", train.log_every, "steps between lines of metrics.jsonl", 1);
  o.add_choice("train.on_nonfinite", train.on_nonfinite,
               {{"stop", OnNonfinite::kStop}, {"skip", OnNonfinite::kSkip}},
               "when a gradient is not finite: end the run and say where, or skip the step");
  o.add("train.skip_batches", train.skip_batches,
        "steps whose batches are left out, without an update, such as 3-5,9");
}

void bind_optim(Options& o, OptimConfig& optim) {
  optim.kind.bind(o, "optim.kind", "update rule");
  o.add("optim.lr", optim.lr, "learning rate after warm-up");
  o.add("optim.min_lr", optim.min_lr, "learning rate at the last step");
  o.add("optim.warmup_steps", optim.warmup_steps, "steps of linear warm-up");
  o.add_choice("optim.schedule", optim.schedule,
               {{"cosine", ScheduleKind::kCosine},
                {"linear", ScheduleKind::kLinear},
                {"constant", ScheduleKind::kConstant},
                {"wsd", ScheduleKind::kWsd}},
               "after warm-up; wsd: constant, and linear over the last steps");
  o.only_if(
      "optim.schedule", [&optim] { return optim.schedule == ScheduleKind::kWsd; },
      [&] {
        o.add("optim.decay_steps", optim.decay_steps,
              "the last steps, in which the learning rate falls; 0: a fifth of train.steps");
      });
  o.add("optim.clip_norm", optim.clip_norm, "largest global gradient norm; 0: no clipping");
  o.add("optim.outer_lr", optim.outer.lr, "of the step by which islands come together", 0, 1e3);
  o.add("optim.outer_momentum", optim.outer.momentum, "Nesterov's, of that step", 0, 0.999999);
}

void bind_dist(Options& o, DistConfig& dist) {
  o.add("dist.zero", dist.zero, "ZeRO stage: what is sharded over ranks", 0, 3);
  o.add("dist.tensor", dist.tensor, "ranks that cut each layer of a gpt or llama", 1, 1024);
  o.add_choice("dist.backend", dist.backend,
               {{"auto", Backend::kAuto}, {"mpi", Backend::kMpi}, {"nccl", Backend::kNccl}},
               "library that moves gradients");
  o.add_choice("dist.reduce", dist.reduce, {{"ring", Reduce::kRing}, {"exact", Reduce::kExact}},
               "how gradients are summed");
  o.add_or("auto", "dist.bucket_mb", dist.bucket_mb,
           "MiB of gradients sent together; auto: 4 over MPI, 25 over NCCL", 0, 1e6);
  o.add_choice("dist.wire_dtype", dist.wire_dtype,
               {{"f32", DType::kF32}, {"bf16", DType::kBf16}, {"int8", DType::kI8}},
               "type of gradients on the wire");
  o.add_choice("dist.gather_dtype", dist.gather_int8, {{"auto", false}, {"int8", true}},
               "type of values on the wire; auto: their own");
  o.add_or("node", "dist.islands", dist.islands,
           "groups of neighbouring ranks that train apart; node: one a node", 1, 1 << 20);
  o.add("dist.sync_every", dist.sync_every, "steps between exchanges of islands", 1, 1 << 30);
  o.add("dist.sync_delay", dist.sync_delay, "steps until such an exchange takes effect", 0,
        1 << 30);
  o.add("dist.overlap", dist.overlap, "send gradients while backward goes on");
  o.add_choice("dist.shard", dist.shard, {{"world", Sharing::kWorld}, {"node", Sharing::kNode}},
               "ranks that share a sharded state");
  o.add("dist.node_size", dist.node_size, "ranks a node: auto, or a number for trials");
  o.add_choice("dist.unused", dist.unused, {{"error", Unused::kIsError}, {"zero", Unused::kIsZero}},
               "for a parameter without a gradient");
  o.add_or("auto", "dist.timeout_s", dist.timeout_s,
           "seconds to wait for a silent rank; auto: 300, and 60 after the first step", 0, 1e9);
  o.add("dist.min_gb_s", dist.min_gb_s,
        "least bus bandwidth of an all_reduce at the start, in GB/s; 0: not measured");
}

}  // namespace

std::string_view name_of(Offload offload) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "optimizer", "activations", "both"};
  return kNames[static_cast<size_t>(offload)];
}

void RunConfig::bind_device(Options& o, const std::string& key) {
  device_key = key;
  o.add_choice(key, device,
               {{"auto", std::nullopt}, {"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
               "where to compute");
}

void Config::bind(Options& o) {
  o.add("run.name", run.name, "name of the run; the same name again resumes it");
  o.add("run.dir", run.dir, "folder of all runs");
  o.add("run.seed", run.seed, "of initial weights, sample order, dropout and augmentation");
  run.bind_device(o, "run.device");
  o.add("run.threads", run.threads, "CPU threads a rank; 0: its share of the cores", 0, 4096);
  o.add("run.choices", run.choices,
        "choices.json of another run, for a new one on the same GPUs: what it has is not measured");
  o.add("run.stop_file", run.stop_file,
        "when this file exists, save and stop; remove it before the run goes on");
  o.add_choice("run.watch_spot", run.watch_spot,
               {{"auto", WatchSpot::kAuto}, {"on", WatchSpot::kOn}, {"off", WatchSpot::kOff}},
               "save and stop when EC2 takes a spot machine back; auto: on machines of EC2");
  o.add("run.usd_per_node_hour", run.usd_per_node_hour,
        "dollars of a machine and an hour, for what the run costs; 0: not known", 0, 1e6);
  o.add("data.path", data.path, "dataset made by `tandem prepare`");
  o.only_if(
      "model.kind", [this] { return model->reads_text(); },
      [&] {
        o.add_choice("data.windows", data.windows,
                     {{"stream", WindowKind::kStream}, {"documents", WindowKind::kDocuments}},
                     "what a sample of text is: a piece of one stream, or whole documents side by "
                     "side, which do not see each other");
      });
  o.add("data.prefetch", data.prefetch, "micro-batches read ahead", 1, 1024);
  o.only_if(
      "model.kind", [this] { return !model->reads_text(); },
      [&] { o.add("data.augment", data.augment, "crop and flip images while training"); });
  o.add("data.verify", data.verify, "hash the whole dataset at the start, also above 512 MiB");
  model.kind.bind(o, "model.kind", "architecture");
  o.add("model.freeze", model.freeze,
        "parameters that keep their values: names, * for any characters, separated by commas");
  o.add("lora.rank", model.lora.rank,
        "of the adapters by which a gpt or llama is tuned; 0: it is trained itself", 0,
        LoraConfig::kLargestRank);
  o.only_if(
      "lora.rank", [this] { return model.lora.rank > 0; },
      [&] {
        o.add("lora.alpha", model.lora.alpha, "adapters are multiplied by alpha / rank", 0,
              LoraConfig::kLargestAlpha);
        o.add("lora.targets", model.lora.targets,
              "layers with adapters: all, or peft's names, such as q_proj,v_proj or c_attn");
      });
  bind_train(o, train);
  o.only_if(
      "model.kind", [this] { return model->reads_text(); },
      [&] {
        o.add("train.eval_choices", train.eval_choices,
              "questions asked at each validation: choices_acc is acc of `tandem eval --choices`");
        o.add_choice("kernels.attention", kernels.attention,
                     {{"auto", AttentionKernels::kAuto},
                      {"own", AttentionKernels::kOwn},
                      {"cudnn", AttentionKernels::kCudnn}},
                     "who computes attention in training; auto: the faster one, as measured");
      });
  bind_optim(o, optim);
  bind_dist(o, dist);
  o.add("checkpoint.every_steps", checkpoint.every_steps,
        "steps between checkpoints; 0: at the end only");
  o.add("checkpoint.every_minutes", checkpoint.every_minutes,
        "minutes between checkpoints; 0: by steps only");
  o.add("checkpoint.at_end", checkpoint.at_end,
        "save and validate after the last step; a run that is stopped saves in any case");
  o.add("checkpoint.keep", checkpoint.keep, "newest checkpoints to keep", 1);
  o.add("checkpoint.keep_every", checkpoint.keep_every,
        "also keep, for ever, checkpoints whose step is a multiple of this; 0: none");
  o.add("checkpoint.resume", checkpoint.resume,
        "auto: from the run's newest; none: start anew; or a checkpoint's folder, to begin there");
  o.add("checkpoint.init_from", checkpoint.init_from,
        "start with the weights of this checkpoint, run or Hugging Face model");
  o.add_choice("checkpoint.self_contained", checkpoint.self_contained,
               {{"auto", std::nullopt}, {"true", true}, {"false", false}},
               "false: frozen weights from checkpoint.init_from stay there; checkpoints refer to "
               "them; auto: true, false with adapters");
  o.add("checkpoint.base", checkpoint.base,
        "where the weights are now that a checkpoint refers to, if they were moved");
  o.add("checkpoint.async", checkpoint.async,
        "write while training goes on, from a copy in host memory");
  o.add_choice("log.progress", log.progress,
               {{"auto", ProgressMode::kAuto},
                {"bar", ProgressMode::kBar},
                {"plain", ProgressMode::kPlain},
                {"none", ProgressMode::kNone}},
               "how progress is shown");
  o.add("log.tensorboard", log.tensorboard, "write TensorBoard event files");
  o.add("log.sample_every", log.sample_every,
        "validations between samples in TensorBoard: text, or images with predictions; 0: none");
  o.add("log.histograms", log.histograms,
        "histograms of weights and gradients in TensorBoard at each validation");
  o.add("log.trace", log.trace,
        "steps of which trace.json.gz shows every moment, such as 20-25; empty: none");
  o.add("log.gpu_every_s", log.gpu_every_s,
        "seconds between looks at how the GPU of each rank is, for metrics; 0: none", 0, 3600);
  o.add("log.prometheus", log.prometheus,
        "folder for files of node exporter's textfile collector, one of each rank; empty: none");
  o.add("log.emf", log.emf,
        "file or pipe for lines in CloudWatch's embedded metric format; empty: none");
}

std::string Config::why_no_graph(Device device, int ranks) const {
  constexpr int64_t kMostMicroSteps = 32;  // a graph has about 300 nodes for each
  if (train.graphs == Graphs::kOff) {
    return "train.graphs = off";
  }
  if (device == Device::kCpu) {
    return "a CPU";
  }
  if (ranks > 1 && !dist.over_nccl(device)) {
    return "dist.backend = mpi";
  }
  if (dist.reduce == Reduce::kExact) {
    return "dist.reduce = exact";
  }
  if (dist.islands > 1) {
    return str("dist.islands = ", dist.islands);
  }
  if (train.offload != Offload::kNone) {
    return str("train.offload = ", name_of(train.offload));
  }
  if (!Memory::keeps_gpu_blocks()) {
    return "TANDEM_MEMORY_CACHE = 0";
  }
  // Ranks that do not divide the batch have no micro-steps.
  if (train.graphs == Graphs::kAuto && batch_plan(ranks).accumulation() > kMostMicroSteps) {
    return str(batch_plan(ranks).accumulation(), " micro-steps");
  }
  return "";
}

void DistConfig::set_islands(const std::vector<int>& node_of_rank) {
  islands = *std::ranges::max_element(node_of_rank) + 1;
  const int64_t ranks = std::ssize(node_of_rank);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (ranks % islands != 0 || node_of_rank[rank] != rank / (ranks / islands)) {
      fail(ExitCode::kConfig,
           "dist.islands = node needs nodes with equally many ranks, which are neighbours; place "
           "them so, or choose a number");
    }
  }
}

std::string Config::graph_text(Device device, int ranks) const {
  const std::string why = why_no_graph(device, ranks);
  return device == Device::kCpu ? ""
         : why.empty()          ? "one CUDA graph"
                                : "no CUDA graph, because of " + why;
}

TrainingStepOptions Config::training_step(Device device, int ranks) const {
  const bool on_gpu = device == Device::kCuda;
  return {.seed = static_cast<uint64_t>(run.seed),
          .batch = batch_plan(ranks),
          .recompute = train.recompute,
          .parks_inputs = on_gpu && train.offloads_activations(),
          .graph = why_no_graph(device, ranks).empty(),
          .attention = kernels.attention,
          .halts = train.on_nonfinite == OnNonfinite::kStop,
          .exact = dist.reduce == Reduce::kExact,
          .clip_norm = optim.clip_norm,
          .islands = {.every = dist.sync_every, .delay = dist.sync_delay, .outer = optim.outer},
          .store = {.bucket_bytes = static_cast<int64_t>(dist.bucket_mb * (1 << 20)),
                    .overlap = dist.overlap,
                    .zero = static_cast<int>(dist.zero),
                    .matrices = optim.kind.chosen().needs_matrices(),
                    .unused_is_error = dist.unused == Unused::kIsError,
                    .dtype = train.precision,
                    .wire_dtype = dist.wire_dtype,
                    .gather_int8 = dist.gather_int8,
                    .offload_run = on_gpu && train.offloads_optimizer() ? kOffloadRun : 0},
          .optimizer = [kind = optim.kind](std::span<const Shard> shards,
                                           const OptimizerMemory& memory) {
            return kind.chosen().make(shards, memory);
          }};
}

std::string Config::ini_text() const {
  Config copy = *this;
  Options options("");
  copy.bind(options);
  return options.ini_text();
}

Config config_from_text(const std::string& text, const std::string& origin) {
  Config config;
  Options options("");
  config.bind(options);
  fail_if_any(options.apply_stored(parse_ini(text, origin)));
  return config;
}

}  // namespace tandem
