// Whole training steps: forward, backward, clipping, update.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>

#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "src/device/cuda.h"
#include "src/estimate/cost_model.h"
#include "src/step/training_step.h"
#include "tests/bench/gpu/cases.h"
#include "tests/bench/gpu/profile.h"

namespace tandem::bench {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Steps {
 public:
  Steps(Bench& bench, const Case& model)
      : bench_(bench),
        model_(model.make_model()),
        staging_(bench.options.device == Device::kCuda ? Memory::pinned() : bench.memory),
        data_(control_, collectives_, bench.memory, {0}) {
    if (model.transformer) {
      const TransformerConfig& config = *model.transformer;
      samples_ = {bench.random_ints({model.batch, config.context}, config.vocab),
                  bench.random_ints({model.batch * config.context}, config.vocab)};
    } else {
      const ResNetConfig& config = *model.resnet;
      samples_ = {bench.random({model.batch, config.height, config.width, config.in_channels},
                               bench.options.precision),
                  bench.random_ints({model.batch}, config.classes)};
    }
    TrainingStep::Options options{
        .batch = {.global_batch = model.batch, .given_micro_batch = 0, .ranks = 1},
        .recompute = bench.options.recompute,
        .parks_inputs = bench.options.offload_activations,
        .graph = bench.options.graph,
        .attention = bench.options.attention,
        .clip_norm = model.transformer ? 1.0 : 0.0,
        .store = {.dtype = bench.options.precision,
                  .offload_run = bench.options.offload_optimizer ? kOffloadRun : 0}};
    options.optimizer = [&](std::span<const Shard> shards, const OptimizerMemory& memory) {
      return model.transformer
                 ? make_optimizer(AdamWOptions{.weight_decay = 0.1}, shards, memory)
                 : make_optimizer(SgdOptions{.momentum = 0.9, .weight_decay = 0.1}, shards, memory);
    };
    training_ = std::make_unique<TrainingStep>(*model_, data_, bench.stream, bench.memory, staging_,
                                               options);
    training_->store().values.initialize(1);
    lr_ = model.transformer ? 1e-4 : 0.01;
  }

  double flops() const {
    return model_->flops_per_sample() * static_cast<double>(samples_.input.shape()[0]);
  }
  double tokens() const { return static_cast<double>(samples_.targets.elements()); }

  // Takes the timeline of the step, as training does after each step.
  Timeline run() {
    training_->run({.step = number_++,
                    .lr = lr_,
                    .targets = tokens(),
                    .batch = [this](int64_t) { return samples_; },
                    .memory = samples_.input});
    return training_->timeline().take(bench_.stream);
  }
  int64_t copied_bytes() const { return training_->offloaded_bytes(); }  // to the device, so far

 private:
  Bench& bench_;
  std::unique_ptr<Model> model_;
  Memory staging_;
  LocalControl control_;
  SelfCollectives collectives_;
  Group data_;
  DeviceBatch samples_;
  std::unique_ptr<TrainingStep> training_;
  double lr_ = 0;
  int64_t number_ = 0;
};

// A line "run K" on standard input runs K steps and prints their seconds, so that a driver can
// alternate them with another program's steps on the same machine.
void take_turns(Bench& bench, Steps& steps) {
  std::fprintf(stderr, "flops_per_step %.6g\n", steps.flops());
  std::string word;
  int64_t count = 0;
  while (std::cin >> word >> count && word == "run") {
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) {
      steps.run();
    }
    bench.stream.synchronize();
    std::printf("%.9f\n", seconds_since(start));
    std::fflush(stdout);
  }
}

// Median seconds that the host takes for a step, while the GPU's queue is empty before it.
double host_seconds(Bench& bench, Steps& steps) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < bench.options.runs; ++i) {
    bench.stream.synchronize();
    const auto start = Clock::now();
    steps.run();
    seconds.push_back(seconds_since(start));
  }
  return median(seconds);
}

// How much of what offloaded steps copy is hidden: each way as much, at the speed of both at once.
void print_copies(Bench& bench, Steps& steps, const Table& table) {
  const int64_t before = steps.copied_bytes();
  std::vector<Timeline> timelines;
  for (int64_t i = 0; i < bench.options.runs; ++i) {
    timelines.push_back(steps.run());
  }
  bench.stream.synchronize();
  std::vector<double> waits;
  for (const Timeline& timeline : timelines) {
    waits.push_back(timeline.seconds()[static_cast<size_t>(Phase::kCopy)]);
  }
  const double waited_s = median(waits);
  const double bytes =
      static_cast<double>(steps.copied_bytes() - before) / static_cast<double>(bench.options.runs);
  constexpr int64_t kArray = int64_t{64} << 20;
  const double link = measure_host_link(bench, kArray).both;
  table.row("copied each way, GB", {number(bytes / 1e9)});
  table.row("link, both ways at once, GB/s", {number(link / 1e9)});
  table.row("waiting for copies, ms", {number(waited_s * 1e3)});
  table.row("copies hidden", {percent(1 - waited_s / (bytes / link))});
}

struct Total {
  double seconds = 0, calls = 0;
};

std::vector<std::pair<std::string, Total>> longest_first(
    const std::map<std::string, Total>& totals) {
  std::vector<std::pair<std::string, Total>> rows(totals.begin(), totals.end());
  std::ranges::stable_sort(rows, std::ranges::greater(),
                           [](const auto& row) { return row.second.seconds; });
  return rows;
}

void print_profile(Bench& bench, Steps& steps, const Case& model) {
  constexpr int64_t kMostSteps = 5;
  const int64_t count = std::min(bench.options.runs, kMostSteps);
  std::map<std::string, Total> places, groups;
  Total all;
  {
    Profile profile(bench.stream);
    for (int64_t i = 0; i < count; ++i) {
      steps.run();
    }
    const double each = 1.0 / static_cast<double>(count);
    for (const Profile::Call& call : profile.take()) {
      for (Total* total : {&places[call.group + "/" + call.place], &groups[call.group], &all}) {
        total->seconds += call.seconds * each;
        total->calls += each;
      }
    }
  }
  std::printf("\nIn one step, mean of %ld:\n", count);
  const Table by_place({"calls of kernels from", "ms", "of all", "calls"}, 64);
  for (const auto& [place, total] : longest_first(places)) {
    by_place.row(place, {number(total.seconds * 1e3), percent(total.seconds / all.seconds),
                         number(total.calls)});
  }
  by_place.row("all", {number(all.seconds * 1e3), "", number(all.calls)});
  std::map<std::string, double> floors;
  if (bench.gpu() && model.transformer) {
    for (const OpCost& op :
         transformer_costs(*model.transformer, model.batch, bench.options.precision)) {
      floors[std::string(op.group)] += floor_seconds(op, bench.gpu()->ceilings());
    }
  }
  std::printf("\n");
  const Table by_group({"folder", "ms", "floor ms", "of floor"}, 24);
  for (const auto& [group, total] : longest_first(groups)) {
    const bool known = floors.contains(group);
    by_group.row(group, {number(total.seconds * 1e3), known ? number(floors[group] * 1e3) : "-",
                         known ? percent(floors[group] / total.seconds) : "-"});
  }
}

}  // namespace

void step_bench(const Options& options) {
  const Case model = case_of(options);
  if (options.graph && options.device == Device::kCpu) {
    fail(ExitCode::kConfig, "--graph: steps on the CPU are no CUDA graphs");
  }
  const bool offloads = options.offload_optimizer || options.offload_activations;
  if (offloads && (options.device == Device::kCpu || options.graph)) {
    fail(ExitCode::kConfig, "--offload: it needs a GPU, and steps that are no CUDA graphs");
  }
  if (options.offload_activations && !options.recompute) {
    fail(ExitCode::kConfig, "--offload: activations need --recompute");
  }
  Bench bench(options);
  if (options.choose) {
    const ChoiceRecorder recorder;
    Steps(bench, model).run();
    bench.choose(recorder.noted());
  }
  Steps steps(bench, model);
  if (options.turns) {
    return take_turns(bench, steps);
  }
  const double step_s = bench.seconds([&] { steps.run(); });
  std::printf("%s, %s, %s, batch %ld%s%s%s\n", bench.device_name().c_str(), model.name.c_str(),
              std::string(name_of(options.precision)).c_str(), model.batch,
              options.recompute ? ", recomputing" : "", options.graph ? ", one graph" : "",
              options.attention == AttentionKernels::kCudnn ? ", cuDNN's attention" : "");
  const Table table({"step", "value"}, 36);
  table.row("median ms", {number(step_s * 1e3)});
  table.row(model.transformer ? "tokens/s" : "images/s", {number(steps.tokens() / step_s)});
  table.row("model TFLOP/s", {rate(steps.flops(), step_s)});
  if (bench.gpu()) {
    table.row("MFU, of the data sheet's peak",
              {percent(steps.flops() / step_s / bench.gpu()->peak_flops(options.precision))});
    if (model.transformer) {
      double floor_s = 0;
      for (const OpCost& op :
           transformer_costs(*model.transformer, model.batch, options.precision)) {
        floor_s += floor_seconds(op, bench.gpu()->ceilings());
      }
      table.row("floor, ms", {number(floor_s * 1e3)});
    }
  }
  if (offloads) {
    print_copies(bench, steps, table);
  }
  table.row("host enqueues a step in, ms", {number(host_seconds(bench, steps) * 1e3)});
  table.row("peak of tensors, GiB",
            {number(static_cast<double>(bench.memory.total().peak_bytes) / (1 << 30))});
  if constexpr (kHasCuda) {
    if (options.device == Device::kCuda) {
      const int64_t taken = cuda::device_bytes().all - cuda::device_bytes().free;
      table.row("taken of the GPU, GiB", {number(static_cast<double>(taken) / (1 << 30))});
    }
  }
  if (options.profile) {
    print_profile(bench, steps, model);
  }
}

}  // namespace tandem::bench
