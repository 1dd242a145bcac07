#include "src/settings/config.h"

#include <array>

#include "layers/attention/cudnn_attention.h"
#include "src/core/parse_number.h"
#include "src/core/visible_text.h"
#include "src/device/dispatch.h"
#include "src/settings/model_kinds.h"
#include "src/settings/step_ranges.h"

namespace tandem {

namespace {

void bind_model(Options& o, ModelConfig& model) {
  o.add_choice("model.kind", model.kind, model_kinds(), "architecture");
  o.add("model.layers", model.layers, "transformer blocks, or hidden layers of an mlp", 1, 10000);
  o.add("model.heads", model.heads, "attention heads", 1, 10000);
  o.add("model.kv_heads", model.kv_heads, "key and value heads of llama; 0: as many as heads", 0,
        10000);
  o.add("model.width", model.width, "size of the residual stream, or of an mlp's hidden layers", 1,
        1 << 20);
  o.add("model.ffn_width", model.ffn_width,
        "inner size of the feed-forward part; 0: 4 x width (llama 8/3)", 0, 1 << 24);
  o.add("model.context", model.context, "tokens a sequence", 1, 1 << 24);
  o.add("model.positions", model.positions, "learned positions of gpt; 0: as many as context", 0,
        1 << 24);
  o.add("model.vocab", model.vocab,
        "rows of the embedding; 0: the tokenizer's; more are never sampled", 0, 1 << 24);
  o.add("model.dropout", model.dropout, "probability of dropping an activation", 0, 0.99);
  o.add("model.tie_embeddings", model.tie_embeddings,
        "one matrix for the token embedding and the output");
  o.add("model.norm_eps", model.norm_eps, "added to the variance in norms", 1e-12, 1);
  o.add("model.rope_theta", model.rope_theta, "base of llama's rotary frequencies", 1, 1e12);
  o.add_choice("model.rope_scaling", model.rope_scaling,
               {{"none", RopeScaling::kNone},
                {"linear", RopeScaling::kLinear},
                {"llama3", RopeScaling::kLlama3}},
               "how rotary frequencies are lowered for long contexts");
  o.add("model.rope_factor", model.rope_factor, "by which scaling divides frequencies", 1, 1e6);
  o.add("model.rope_low_freq_factor", model.rope_low_freq_factor,
        "turns in the original context, up to which llama3 divides a frequency", 0, 1e6);
  o.add("model.rope_high_freq_factor", model.rope_high_freq_factor,
        "turns in the original context, from which llama3 keeps a frequency", 0, 1e6);
  o.add("model.rope_original_context", model.rope_original_context,
        "context of pretraining, before llama3 scaling", 1, 1 << 24);
  o.add("model.depth", model.depth, "layers of a resnet: 20, 32, 44 or 56", 8, 1202);
  o.add("model.freeze", model.freeze,
        "parameters that keep their values: names, * for any characters, separated by commas");
}

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
  o.add("train.eval_every", train.eval_every, "steps between validations; 0: at the end only");
  o.add("train.eval_batches", train.eval_batches,
        "micro-batches a validation; 0: the whole validation set");
  o.add("train.log_every", train.log_every, "steps between lines of metrics.jsonl", 1);
  o.add_choice("train.on_nonfinite", train.on_nonfinite,
               {{"stop", OnNonfinite::kStop}, {"skip", OnNonfinite::kSkip}},
               "when a gradient is not finite: end the run and say where, or skip the step");
  o.add("train.skip_batches", train.skip_batches,
        "steps whose batches are left out, without an update, such as 3-5,9");
}

void bind_optim(Options& o, OptimConfig& optim) {
  o.add_choice("optim.kind", optim.kind,
               {{"adamw", OptimizerKind::kAdamW}, {"sgd", OptimizerKind::kSgd}}, "update rule");
  o.add("optim.lr", optim.lr, "learning rate after warm-up");
  o.add("optim.min_lr", optim.min_lr, "learning rate at the last step");
  o.add("optim.warmup_steps", optim.warmup_steps, "steps of linear warm-up");
  o.add_choice("optim.schedule", optim.schedule,
               {{"cosine", ScheduleKind::kCosine},
                {"linear", ScheduleKind::kLinear},
                {"constant", ScheduleKind::kConstant}},
               "after warm-up");
  o.add("optim.beta1", optim.beta1, "decay of AdamW's first moment", 0, 0.999999);
  o.add("optim.beta2", optim.beta2, "decay of AdamW's second moment", 0, 0.9999999);
  o.add("optim.eps", optim.eps, "added to AdamW's denominator");
  o.add("optim.momentum", optim.momentum, "of SGD", 0, 0.999999);
  o.add("optim.nesterov", optim.nesterov, "Nesterov's form of momentum");
  o.add("optim.weight_decay", optim.weight_decay,
        "on matrices only; decoupled with adamw, in the gradient with sgd");
  o.add("optim.clip_norm", optim.clip_norm, "largest global gradient norm; 0: no clipping");
}

void bind_dist(Options& o, DistConfig& dist) {
  o.add("dist.zero", dist.zero, "ZeRO stage: what is sharded over ranks", 0, 3);
  o.add_choice("dist.backend", dist.backend,
               {{"auto", Backend::kAuto}, {"mpi", Backend::kMpi}, {"nccl", Backend::kNccl}},
               "library that moves gradients");
  o.add_choice("dist.reduce", dist.reduce, {{"ring", Reduce::kRing}, {"exact", Reduce::kExact}},
               "how gradients are summed");
  o.add("dist.bucket_mb", dist.bucket_mb,
        "MiB of gradients sent together; 0: planned from a probe of the link", 0, 1e6);
  o.add_choice("dist.wire_dtype", dist.wire_dtype, {{"f32", DType::kF32}, {"bf16", DType::kBf16}},
               "type of gradients on the wire");
  o.add("dist.overlap", dist.overlap, "send gradients while backward goes on");
  o.add_choice("dist.shard", dist.shard, {{"world", Sharing::kWorld}, {"node", Sharing::kNode}},
               "ranks that share a sharded state");
  o.add("dist.node_size", dist.node_size, "ranks a node: auto, or a number for trials");
  o.add_choice("dist.unused", dist.unused, {{"error", Unused::kIsError}, {"zero", Unused::kIsZero}},
               "for a parameter without a gradient");
  o.add("dist.timeout_s", dist.timeout_s, "seconds to wait for another rank", 0.1);
  o.add("dist.min_gb_s", dist.min_gb_s,
        "least bus bandwidth of an all_reduce at the start, in GB/s; 0: not measured");
}

// A value of a setting, and the other settings that nothing reads when it is chosen.
struct Choice {
  const char *key, *value;
  std::array<const char*, 14> ignores;
};

constexpr Choice kChoices[] = {
    {"model.kind",
     "gpt",
     {"data.augment", "model.kv_heads", "model.rope_theta", "model.rope_scaling", "model.depth"}},
    {"model.kind", "llama", {"data.augment", "model.positions", "model.depth"}},
    {"model.kind",
     "resnet",
     {"model.layers", "model.heads", "model.kv_heads", "model.width", "model.ffn_width",
      "model.context", "model.positions", "model.vocab", "model.dropout", "model.tie_embeddings",
      "model.norm_eps", "model.rope_theta", "model.rope_scaling", "kernels.attention"}},
    {"model.kind",
     "mlp",
     {"model.heads", "model.kv_heads", "model.ffn_width", "model.context", "model.positions",
      "model.vocab", "model.dropout", "model.tie_embeddings", "model.norm_eps", "model.rope_theta",
      "model.rope_scaling", "model.depth", "kernels.attention"}},
    {"model.rope_scaling",
     "none",
     {"model.rope_factor", "model.rope_low_freq_factor", "model.rope_high_freq_factor",
      "model.rope_original_context"}},
    {"model.rope_scaling",
     "linear",
     {"model.rope_low_freq_factor", "model.rope_high_freq_factor", "model.rope_original_context"}},
    {"optim.kind", "adamw", {"optim.momentum", "optim.nesterov"}},
    {"optim.kind", "sgd", {"optim.beta1", "optim.beta2", "optim.eps"}}};

// Calls visit(choice, key, default) for each setting that is ignored because of a choice in
// `options` and yet differs from its default.
template <class F>
void for_each_ignored(const Options& options, F&& visit) {
  Config defaults;
  Options otherwise("");
  defaults.bind(otherwise);
  for (const Choice& choice : kChoices) {
    if (options.text(choice.key) != choice.value) {
      continue;
    }
    for (const char* key : choice.ignores) {
      if (key && options.text(key) != otherwise.text(key)) {
        visit(choice, key, otherwise.text(key));
      }
    }
  }
}

void find_ignored_settings(Config config, std::vector<std::string>& problems) {
  Options options("");
  config.bind(options);
  for_each_ignored(options, [&](const Choice& choice, const char* key, const std::string&) {
    problems.push_back(str(key, " = ", options.text(key), " has no meaning with ", choice.key,
                           " = ", choice.value, "; remove it"));
  });
}

void find_missing_features(const Config& c, std::vector<std::string>& problems) {
  // Reports a setting that asks for a feature which is missing here.
  const auto refuse = [&](const std::string& setting, bool missing, const std::string& use) {
    if (missing) {
      problems.push_back(str(setting, " is not in this build; use ", use));
    }
  };
  refuse("run.device = cuda", c.run.device == Device::kCuda && !kHasCuda, "cpu or auto");
  refuse("dist.backend = nccl", c.dist.backend == Backend::kNccl && !kHasCuda, "mpi or auto");
  refuse("kernels.attention = cudnn",
         c.kernels.attention == AttentionKernels::kCudnn && !cudnn_attention::in_build(),
         "own or auto");
  refuse("log.trace = true", c.log.trace, "false");
}

void find_dist_problems(const DistConfig& dist, int ranks, std::vector<std::string>& problems) {
  const auto size = parse_number<int64_t>(dist.node_size);
  if (dist.node_size != "auto" && (!size || *size < 1 || ranks % *size != 0)) {
    problems.push_back(str("dist.node_size = ", dist.node_size,
                           " must be auto, or a number that divides the ", ranks, " ranks"));
  }
  if (dist.reduce == Reduce::kExact && dist.wire_dtype != DType::kF32) {
    problems.push_back(str("dist.wire_dtype = ", name_of(dist.wire_dtype),
                           " has no meaning with dist.reduce = exact, which sends 64-bit integers; "
                           "use f32, or dist.reduce = ring"));
  }
}

// Finds text that would not read back from config.cfg, where # begins a comment and white space at
// the ends is dropped, and control characters, which nobody sees in a path.
void find_text_problems(const Config& c, std::vector<std::string>& problems) {
  const std::pair<const char*, const std::string&> texts[] = {
      {"run.name", c.run.name},
      {"run.dir", c.run.dir},
      {"run.gemm_plans", c.run.gemm_plans},
      {"run.stop_file", c.run.stop_file},
      {"data.path", c.data.path},
      {"model.freeze", c.model.freeze},
      {"checkpoint.resume", c.checkpoint.resume},
      {"checkpoint.init_from", c.checkpoint.init_from}};
  for (const auto& [key, text] : texts) {
    const auto is_bad = [](unsigned char letter) {
      return letter < ' ' || letter == 127 || letter == '#';
    };
    if (std::ranges::any_of(text, is_bad) || text.starts_with(' ') || text.ends_with(' ')) {
      problems.push_back(str(key, " = \"", visible(text),
                             "\" must not hold # or a control character, nor begin or end in a "
                             "space"));
    }
  }
}

}  // namespace

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
  o.add("run.gemm_plans", run.gemm_plans,
        "table of `tandem bench gemm`, for products on GPUs; the run keeps a copy");
  o.add("run.stop_file", run.stop_file,
        "when this file exists, save and stop; remove it before the run goes on");
  o.add_choice("run.watch_spot", run.watch_spot,
               {{"auto", WatchSpot::kAuto}, {"on", WatchSpot::kOn}, {"off", WatchSpot::kOff}},
               "save and stop when EC2 takes a spot machine back; auto: on machines of EC2");
  o.add("data.path", data.path, "dataset made by `tandem prepare`");
  o.add("data.prefetch", data.prefetch, "micro-batches read ahead", 1, 1024);
  o.add("data.augment", data.augment, "crop and flip images while training");
  o.add("data.verify", data.verify, "hash the whole dataset at the start, also above 512 MiB");
  bind_model(o, model);
  bind_train(o, train);
  o.add_choice("kernels.attention", kernels.attention,
               {{"auto", AttentionKernels::kAuto},
                {"own", AttentionKernels::kOwn},
                {"cudnn", AttentionKernels::kCudnn}},
               "who computes attention in training; auto: own, until a GPU has measured both");
  bind_optim(o, optim);
  bind_dist(o, dist);
  o.add("checkpoint.every_steps", checkpoint.every_steps,
        "steps between checkpoints; 0: at the end only");
  o.add("checkpoint.every_minutes", checkpoint.every_minutes,
        "minutes between checkpoints; 0: by steps only");
  o.add("checkpoint.at_end", checkpoint.at_end,
        "validate and save after the last step; a run that is stopped saves in any case");
  o.add("checkpoint.keep", checkpoint.keep, "newest checkpoints to keep", 1);
  o.add("checkpoint.keep_every", checkpoint.keep_every,
        "also keep, for ever, checkpoints whose step is a multiple of this; 0: none");
  o.add("checkpoint.resume", checkpoint.resume,
        "auto: from the run's newest; none: start anew; or a checkpoint's folder");
  o.add("checkpoint.init_from", checkpoint.init_from,
        "start with the weights of this checkpoint, run or Hugging Face model");
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
  o.add("log.trace", log.trace, "write trace.json");
}

TrainingStep::Options Config::training_step(int ranks) const {
  return {.seed = static_cast<uint64_t>(run.seed),
          .batch = train.batch_plan(ranks),
          .recompute = train.recompute,
          .attention = kernels.attention,
          .halts = train.on_nonfinite == OnNonfinite::kStop,
          .exact = dist.reduce == Reduce::kExact,
          .clip_norm = optim.clip_norm,
          .store = {.bucket_bytes = static_cast<int64_t>(dist.bucket_mb * (1 << 20)),
                    .overlap = dist.overlap,
                    .zero = static_cast<int>(dist.zero),
                    .unused_is_error = dist.unused == Unused::kIsError,
                    .dtype = train.precision,
                    .wire_dtype = dist.wire_dtype},
          .optimizer = optim.optimizer()};
}

std::string ModelConfig::description() const {
  const std::string shape =
      reads_text() ? str(layers, " layers, ", heads, " heads, width ", width, ", context ", context)
      : kind == "resnet" ? str("depth ", depth)
                         : str(layers, " layers, width ", width);
  return kind + ": " + shape;
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
  fail_if_any(options.apply(parse_ini(text, origin)));
  return config;
}

std::vector<std::string> problems_of(const Config& config, int ranks) {
  std::vector<std::string> problems;
  const auto append = [&](const std::vector<std::string>& found) {
    problems.insert(problems.end(), found.begin(), found.end());
  };
  if (config.data.path.empty()) {
    problems.push_back(
        "data.path is empty; make a dataset with `tandem prepare` and name it with --data.path "
        "FILE.h5");
  }
  if (config.run.name.empty() || config.run.name.find('/') != std::string::npos ||
      config.run.name == "." || config.run.name == "..") {
    problems.push_back(
        str("run.name = \"", visible(config.run.name), "\" must be a plain folder name"));
  }
  if (config.run.dir.empty()) {
    problems.push_back("run.dir is empty; name a folder, such as runs");
  }
  if (config.optim.min_lr > config.optim.lr && config.optim.schedule != ScheduleKind::kConstant) {
    problems.push_back(
        str("optim.min_lr = ", config.optim.min_lr, " is above optim.lr = ", config.optim.lr));
  }
  if (config.optim.kind == OptimizerKind::kSgd) {
    append(std::get<SgdOptions>(config.optim.optimizer()).problems());
  }
  if (config.dist.backend == Backend::kNccl && config.run.device == Device::kCpu) {
    problems.push_back("dist.backend = nccl moves GPU memory; with run.device = cpu use mpi");
  }
  if (!StepRanges::parse(config.train.skip_batches)) {
    problems.push_back(str("train.skip_batches = \"", visible(config.train.skip_batches),
                           "\" must be steps, such as 7, 3-5 or 3-5,9; the first step is 1"));
  }
  if (!config.log.tensorboard && (config.log.sample_every > 0 || config.log.histograms)) {
    problems.push_back(str(config.log.histograms ? "log.histograms = true" : "log.sample_every",
                           " writes to TensorBoard; set log.tensorboard = true"));
  }
  find_text_problems(config, problems);
  append(config.train.batch_plan(ranks).problems());
  append(config.model.problems());
  find_dist_problems(config.dist, ranks, problems);
  find_ignored_settings(config, problems);
  find_missing_features(config, problems);
  return problems;
}

Config without_ignored_settings(const Config& config) {
  Config copy = config;
  Options options("");
  copy.bind(options);
  for_each_ignored(options, [&](const Choice&, const char* key, const std::string& default_text) {
    options.apply({{key, default_text, "defaults"}});
  });
  return copy;
}

}  // namespace tandem
