// What is wrong with settings.
#include <functional>

#include "layers/attention/cudnn_attention.h"
#include "src/core/formatted.h"
#include "src/core/parse_number.h"
#include "src/core/visible_text.h"
#include "src/data/utf8.h"
#include "src/device/dispatch.h"
#include "src/settings/config.h"
#include "src/settings/step_ranges.h"

namespace tandem {

namespace {

constexpr int64_t kMostTracedSteps = 1000;  // a step has thousands of events

void find_unread_settings(Config config, std::vector<std::string>& problems) {
  Config defaults;
  Options options(""), otherwise("");
  config.bind(options);
  defaults.bind(otherwise);
  append(problems, options.unread(otherwise));
}

void find_missing_features(const Config& c, std::vector<std::string>& problems) {
  // Reports a setting that asks for a feature which is missing here.
  const auto refuse = [&](const std::string& setting, bool missing, const std::string& use) {
    if (missing) {
      add_problem(problems, setting, " is not in this build; use ", use);
    }
  };
  refuse("run.device = cuda", c.run.device == Device::kCuda && !kHasCuda, "cpu or auto");
  refuse("dist.backend = nccl", c.dist.backend == Backend::kNccl && !kHasCuda, "mpi or auto");
  refuse("kernels.attention = cudnn",
         c.kernels.attention == AttentionKernels::kCudnn && !cudnn_attention::in_build(),
         "own or auto");
}

// What computes attention must know documents and windows.
void find_attention_problems(const Config& c, std::vector<std::string>& problems) {
  const auto refuse = [&](bool is_unknown, const std::string& setting, const std::string& use) {
    if (is_unknown && c.kernels.attention == AttentionKernels::kCudnn) {
      add_problem(problems, "kernels.attention = cudnn is not possible with ", setting,
                  ", which cuDNN's kernels do not know; use own, or ", use);
    }
  };
  refuse(c.data.windows == WindowKind::kDocuments, "data.windows = documents",
         "data.windows = stream");
  const TransformerConfig model = c.model->transformer().value_or(TransformerConfig{});
  refuse(model.sliding_window > 0 && model.sliding_window < model.context,
         str("model.sliding_window = ", model.sliding_window), "model.sliding_window = 0");
}

void find_dist_problems(const DistConfig& dist, int ranks, std::vector<std::string>& problems) {
  const auto size = parse_number<int64_t>(dist.node_size);
  if (dist.node_size != "auto" && (!size || *size < 1 || ranks % *size != 0)) {
    add_problem(problems, "dist.node_size = ", dist.node_size,
                " must be auto, or a number that divides the ", ranks, " ranks");
  }
  if (dist.gather_int8 && dist.zero == 0) {
    problems.emplace_back(
        "dist.gather_dtype = int8 has no meaning with dist.zero = 0, which gathers no values; use "
        "auto, or dist.zero = 1 to 3");
  }
  if (dist.gather_int8 && dist.reduce == Reduce::kExact) {
    problems.emplace_back(
        "dist.gather_dtype = int8 has no meaning with dist.reduce = exact, whose values do not "
        "depend on ZeRO stages; use auto, or dist.reduce = ring");
  }
  if (dist.reduce == Reduce::kExact && dist.wire_dtype != DType::kF32) {
    add_problem(problems, "dist.wire_dtype = ", name_of(dist.wire_dtype),
                " has no meaning with dist.reduce = exact, which sends 64-bit integers; "
                "use f32, or dist.reduce = ring");
  }
}

// "; the nearest that works: 2 or 4": below and above `value`, from 1 to `most`; empty if none
// does.
std::string nearest(int64_t value, int64_t most, const std::function<bool(int64_t)>& works) {
  std::string found;
  for (int64_t other = 1; other <= most; ++other) {
    if (!works(other)) {
      continue;
    }
    if (other > value) {
      found += str(found.empty() ? "" : " or ", other);
      break;
    }
    found = str(other);
  }
  return found.empty() ? "" : "; the nearest that works: " + found;
}

// Names what `tensor` ranks cannot divide; empty: they can cut the model.
std::string why_not_cut(const Config& c, const TransformerConfig& model, int64_t tensor,
                        int ranks) {
  if (ranks % tensor != 0) {
    return "the " + counted(ranks, "rank");
  }
  if (const std::string why = model.why_not_cut(tensor); !why.empty()) {
    return why;
  }
  const int64_t samples =
      BatchPlan{c.train.global_batch, c.train.micro_batch, static_cast<int>(ranks / tensor)}
          .micro_batch();
  const int64_t rows = samples * model.context;
  return rows % tensor == 0
             ? ""
             : str("the ", rows, " rows of a micro-batch (", samples, " x ", model.context, ")");
}

// False if the model cannot be cut.
bool find_tensor_problems(const Config& c, int ranks, std::vector<std::string>& problems) {
  const int64_t tensor = c.dist.tensor;
  const std::optional<TransformerConfig> model = c.model->transformer();
  if (tensor == 1) {
    return true;
  }
  if (!model) {
    add_problem(problems, "dist.tensor = ", tensor,
                " cuts gpt and llama, and model.kind = ", c.model.kind.name(),
                "; use dist.tensor = 1");
    return false;
  }
  if (!model->problems().empty()) {
    return true;
  }
  const std::string why = why_not_cut(c, *model, tensor, ranks);
  if (why.empty()) {
    return true;
  }
  add_problem(problems, "dist.tensor = ", tensor, " does not divide ", why,
              nearest(tensor, ranks,
                      [&](int64_t other) { return why_not_cut(c, *model, other, ranks).empty(); }));
  return false;
}

// The settings of islands, where there are several. False if they do not divide the ranks.
bool find_island_problems(const Config& c, int ranks, std::vector<std::string>& problems) {
  const int64_t islands = c.dist.islands, every = c.dist.sync_every;
  if (islands == 1) {
    return true;
  }
  const std::string given = str("dist.islands = ", islands);
  const bool divides = ranks % islands == 0;
  if (!divides) {
    add_problem(problems, given, " does not divide the ", counted(ranks, "rank"),
                nearest(islands, ranks, [&](int64_t k) { return ranks % k == 0; }));
  } else if (ranks > islands && c.dist.zero == 0) {
    add_problem(problems, given, " with ", ranks / islands,
                " ranks each needs dist.zero = 1 to 3, "
                "so that each rank exchanges its own shard; dist.zero = 0 has none");
  }
  if (c.dist.tensor > 1) {
    add_problem(problems, given, " is not possible with dist.tensor = ", c.dist.tensor,
                "; set one of them to 1");
  }
  if (c.dist.shard == Sharing::kNode) {
    add_problem(problems, given,
                " is not possible with dist.shard = node, where several ranks of "
                "an island have the same shard; use dist.shard = world");
  }
  if (c.train.offloads_optimizer()) {
    add_problem(problems, given, " is not possible with train.offload = ", name_of(c.train.offload),
                ", because what islands exchange is on the GPU; use none");
  }
  if (c.dist.sync_delay >= every) {
    add_problem(problems, "dist.sync_delay = ", c.dist.sync_delay,
                " must be below "
                "dist.sync_every = ",
                every, "; use at most ", every - 1);
  }
  for (const auto& [key, steps] : {std::pair{"checkpoint.every_steps", c.checkpoint.every_steps},
                                   {"train.eval_every", c.train.eval_every}}) {
    if (steps % every != 0) {
      const int64_t below = steps / every * every;
      add_problem(problems, key, " = ", steps, " must be a multiple of dist.sync_every = ", every,
                  ", when all islands are alike; the nearest: ",
                  below > 0 ? str(below, " and ") : "", below + every);
    }
  }
  return divides;
}

// Returns a function that reports a setting which does not go with `chosen`.
auto exclusions_of(const std::string& chosen, const std::string& otherwise,
                   std::vector<std::string>& problems) {
  return [=, &problems](bool given, const std::string& setting, std::string_view instead) {
    if (given) {
      add_problem(problems, chosen, " is not possible with ", setting, "; use ", instead, ", or ",
                  otherwise);
    }
  };
}

// Reports what neither adapters nor an optimizer that needs whole matrices go with.
template <class Exclude>
void exclude_axes(const Config& c, Exclude exclude) {
  exclude(!c.model->transformer(), "model.kind = " + c.model.kind.name(), "gpt or llama");
  exclude(c.dist.tensor > 1, str("dist.tensor = ", c.dist.tensor), "dist.tensor = 1");
  exclude(c.dist.islands > 1, str("dist.islands = ", c.dist.islands), "dist.islands = 1");
  exclude(c.train.offload != Offload::kNone, str("train.offload = ", name_of(c.train.offload)),
          "train.offload = none");
}

void find_matrix_problems(const Config& c, std::vector<std::string>& problems) {
  if (c.optim.kind.chosen().needs_matrices()) {
    exclude_axes(
        c, exclusions_of("optim.kind = " + c.optim.kind.name(), "optim.kind = adamw", problems));
  }
}

void find_adapter_problems(const Config& c, std::vector<std::string>& problems) {
  if (c.model.lora.rank == 0) {
    return;
  }
  const std::string chosen = str("lora.rank = ", c.model.lora.rank);
  const auto exclude = exclusions_of(chosen, "lora.rank = 0", problems);
  exclude_axes(c, exclude);
  exclude(!c.model.freeze.empty(), str("model.freeze = ", c.model.freeze),
          "lora.targets, since all but adapters is frozen");
  exclude(c.optim.kind.chosen().needs_matrices(), "optim.kind = " + c.optim.kind.name(),
          "optim.kind = adamw");
  if (!c.is_self_contained() && c.checkpoint.init_from.empty()) {
    problems.push_back(chosen +
                       " needs checkpoint.init_from, the model that adapters are for; name it, or "
                       "set checkpoint.self_contained = true to begin with none");
  }
}

void find_question_problems(const Config& c, std::vector<std::string>& problems) {
  if (c.train.eval_choices.empty()) {
    return;
  }
  const std::string chosen = "train.eval_choices = " + visible(c.train.eval_choices);
  exclusions_of(chosen, "leave out train.eval_choices", problems)(
      c.dist.tensor > 1, str("dist.tensor = ", c.dist.tensor), "dist.tensor = 1");
  if (!c.checkpoint.at_end && (c.train.eval_every == 0 || c.train.eval_every > c.train.steps)) {
    problems.push_back(chosen +
                       " is for validations, and with checkpoint.at_end = false and "
                       "train.eval_every = " +
                       str(c.train.eval_every) + " there are none");
  }
}

void find_graph_problems(const Config& c, int ranks, std::vector<std::string>& problems) {
  if (c.train.graphs == Graphs::kOn) {
    const std::string why = c.why_no_graph(c.run.device.value_or(Device::kCuda), ranks);
    if (!why.empty()) {
      add_problem(problems, "train.graphs = on is not possible with ", why, "; use auto or off");
    }
  }
}

void find_offload_problems(const TrainConfig& train, std::vector<std::string>& problems) {
  if (train.offloads_activations() && !train.recompute) {
    add_problem(problems, "train.offload = ", name_of(train.offload),
                " moves the one input that a recomputed block keeps; set "
                "train.recompute = block, or use train.offload = ",
                train.offloads_optimizer() ? "optimizer" : "none");
  }
}

void find_checkpoint_problems(const CheckpointConfig& c, std::vector<std::string>& problems) {
  if (c.self_contained == false && c.init_from.empty()) {
    problems.push_back(
        "checkpoint.self_contained = false needs checkpoint.init_from, where the frozen weights "
        "stay; name it, or leave checkpoint.self_contained = true");
  }
}

// Finds text that would not read back from config.cfg, where # begins a comment and white space at
// the ends is dropped, and control characters, which nobody sees in a path.
void find_text_problems(const Config& c, std::vector<std::string>& problems) {
  const std::pair<const char*, const std::string&> texts[] = {
      {"run.name", c.run.name},
      {"run.dir", c.run.dir},
      {"run.choices", c.run.choices},
      {"run.stop_file", c.run.stop_file},
      {"data.path", c.data.path},
      {"model.freeze", c.model.freeze},
      {"train.eval_choices", c.train.eval_choices},
      {"lora.targets", c.model.lora.targets},
      {"checkpoint.resume", c.checkpoint.resume},
      {"checkpoint.init_from", c.checkpoint.init_from},
      {"checkpoint.base", c.checkpoint.base},
      {"log.prometheus", c.log.prometheus},
      {"log.emf", c.log.emf}};
  for (const auto& [key, text] : texts) {
    const auto is_bad = [](unsigned char letter) {
      return letter < ' ' || letter == 127 || letter == '#';
    };
    if (std::ranges::any_of(text, is_bad) || text.starts_with(' ') || text.ends_with(' ')) {
      add_problem(problems, key, " = \"", visible(text),
                  "\" must not hold # or a control character, nor begin or end in a "
                  "space");
    } else if (valid_utf8_prefix(text) < text.size()) {
      add_problem(problems, key, " = ", text,
                  " is not UTF-8, so no manifest can hold it; rename it");
    }
  }
}

}  // namespace

std::vector<std::string> problems_of(const Config& config, int ranks) {
  std::vector<std::string> problems;
  if (config.data.path.empty()) {
    problems.push_back(
        "data.path is empty; make a dataset with `tandem prepare` and name it with --data.path "
        "FILE.h5");
  }
  if (config.run.name.empty() || config.run.name.find('/') != std::string::npos ||
      config.run.name == "." || config.run.name == "..") {
    add_problem(problems, "run.name = \"", visible(config.run.name),
                "\" must be a plain folder name");
  }
  if (config.run.dir.empty()) {
    problems.push_back("run.dir is empty; name a folder, such as runs");
  }
  if (config.optim.min_lr > config.optim.lr && config.optim.schedule != ScheduleKind::kConstant) {
    add_problem(problems, "optim.min_lr = ", config.optim.min_lr,
                " is above optim.lr = ", config.optim.lr);
  }
  if (config.optim.decay_steps > config.train.steps &&
      config.optim.schedule == ScheduleKind::kWsd) {
    add_problem(problems, "optim.decay_steps = ", config.optim.decay_steps,
                " is above train.steps = ", config.train.steps);
  }
  append(problems, config.optim.kind.chosen().problems());
  if (config.dist.backend == Backend::kNccl && config.run.device == Device::kCpu) {
    problems.push_back("dist.backend = nccl moves GPU memory; with run.device = cpu use mpi");
  }
  if (!StepRanges::parse(config.train.skip_batches)) {
    add_problem(problems, "train.skip_batches = \"", visible(config.train.skip_batches),
                "\" must be steps, such as 7, 3-5 or 3-5,9; the first step is 1");
  }
  const std::optional<StepRanges> traced = StepRanges::parse(config.log.trace);
  if (!traced || traced->all().size() > 1 || traced->count() > kMostTracedSteps) {
    add_problem(problems, "log.trace = \"", visible(config.log.trace), "\" must be up to ",
                kMostTracedSteps, " steps in a row, such as 20-25; the first is 1");
  }
  if (!config.log.tensorboard && (config.log.sample_every > 0 || config.log.histograms)) {
    add_problem(problems, config.log.histograms ? "log.histograms = true" : "log.sample_every",
                " writes to TensorBoard; set log.tensorboard = true");
  }
  find_checkpoint_problems(config.checkpoint, problems);
  find_text_problems(config, problems);
  append(problems, config.model->problems());
  const bool is_divided = find_island_problems(config, ranks, problems);
  if (find_tensor_problems(config, ranks, problems) && is_divided) {
    append(problems, config.batch_plan(ranks).problems());
  }
  find_dist_problems(config.dist, ranks, problems);
  find_matrix_problems(config, problems);
  find_adapter_problems(config, problems);
  find_question_problems(config, problems);
  find_graph_problems(config, ranks, problems);
  find_offload_problems(config.train, problems);
  find_unread_settings(config, problems);
  find_missing_features(config, problems);
  find_attention_problems(config, problems);
  return problems;
}

}  // namespace tandem
