#include "tests/step/device_job.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include "comm/transport/nccl_collectives.h"
#include "layers/batchnorm2d/running_statistics.h"
#include "layers/models/mlp.h"
#include "layers/models/resnet.h"
#include "layers/models/transformer.h"
#include "optim/adamw.h"
#include "optim/muon/muon.h"
#include "optim/sgd.h"
#include "src/core/ignore_target.h"
#include "src/device/copy.h"
#include "src/device/cuda.h"
#include "tests/step/two_heads.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kContext = 5, kVocab = 11, kClasses = 5, kImage = 6 * 6 * 3;

bool has_two_heads(const Plan& plan) { return plan.model == "two-heads"; }
bool reads_text(const Plan& plan) {
  return plan.model != "resnet" && plan.model != "mlp" && !has_two_heads(plan);
}

int64_t classes_of(const Plan& plan) {
  return plan.classes > 0 ? plan.classes : reads_text(plan) ? kVocab : kClasses;
}

std::unique_ptr<Model> new_model(const Plan& plan) {
  const int64_t classes = classes_of(plan);
  if (plan.model == "resnet") {
    return make_resnet({.depth = 8, .height = 6, .width = 6, .classes = classes});
  }
  if (plan.model == "mlp") {
    return std::make_unique<Mlp>(MlpConfig{.image_height = 6,
                                           .image_width = 6,
                                           .channels = 3,
                                           .layers = 1,
                                           .width = 12,
                                           .classes = classes});
  }
  if (has_two_heads(plan)) {
    return std::make_unique<TwoHeads>(kImage, classes);
  }
  const bool qwen = plan.model == "qwen", lora = plan.model == "lora";
  const bool llama = qwen || lora || plan.model == "llama";
  const LoraOptions adapters{.rank = 3, .targets = {"attn.q", "attn.v", "mlp.down"}};
  return std::make_unique<Transformer>(TransformerConfig{.style = llama ? kLlama : kGpt2,
                                                         .vocab = classes,
                                                         .context = kContext,
                                                         .layers = plan.layers,
                                                         .heads = 2,
                                                         .kv_heads = llama ? 1 : 0,
                                                         .head_width = plan.head_width,
                                                         .width = (qwen ? 1 : 2) * plan.head_width,
                                                         .ffn_width = 24,
                                                         .dropout = plan.dropout,
                                                         .tie_embeddings = !llama,
                                                         .qkv_bias = qwen,
                                                         .qk_norm = qwen,
                                                         .sliding_window = qwen ? 3 : 0,
                                                         .lora = lora ? adapters : LoraOptions()});
}

std::unique_ptr<Model> make_model(const Plan& plan) {
  std::unique_ptr<Model> model = new_model(plan);
  for (const Block& block : model->blocks()) {
    for (Parameter* parameter : block.parameters) {
      const bool is_frozen = plan.model == "lora" && !is_adapter(parameter->name);
      parameter->frozen = is_frozen || block.name == plan.frozen;
      parameter->classes = parameter->classes && plan.padded;
    }
  }
  return model;
}

std::unique_ptr<Collectives> nccl_for(const Plan& plan) {
  if constexpr (kHasCuda) {
    if (plan.device == Device::kCuda) {
      cuda::use_device(test_world().local_rank() % cuda::device_count());
      if (!plan.staged && !plan.alone) {
        return std::make_unique<NcclCollectives>(test_world().control(), test_world().timeout_s());
      }
    }
  }
  return nullptr;
}

Mesh mesh_for(const Plan& plan, Collectives* nccl, const Ranks& self, Memory& memory) {
  const Ranks ranks = plan.alone ? self
                      : nccl     ? Ranks{test_world().control(), *nccl}
                                 : test_ranks();
  return {ranks.control, ranks.collectives,
          memory,        nodes_of(ranks.control, "host", plan.alone ? 0 : plan.node_size),
          plan.sharing,  {.islands = plan.alone ? 1 : plan.islands}};
}

TrainingStep::Options options_of(const Plan& plan, int ranks) {
  return {.batch = {.global_batch = plan.global_batch,
                    .given_micro_batch = plan.micro_batch,
                    .ranks = ranks},  // each island has a global batch of its own
          .recompute = plan.recompute,
          .parks_inputs = plan.parks_inputs,
          .graph = plan.graph,
          .halts = plan.halts,
          .exact = plan.exact,
          .clip_norm = 1,
          .islands = plan.exchange.value_or(IslandOptions()),
          .store = {.bucket_bytes = plan.bucket_bytes,
                    .overlap = plan.overlap,
                    .zero = plan.zero,
                    .matrices = plan.optimizer == "muon",
                    .unused_is_error = !has_two_heads(plan),
                    .dtype = plan.dtype,
                    .wire_dtype = plan.wire,
                    .gather_int8 = plan.gather_int8,
                    .offload_run = plan.offload_run},
          .optimizer = [name = plan.optimizer](std::span<const Shard> shards,
                                               const OptimizerMemory& memory) {
            if (name == "muon") {
              return make_optimizer(MuonOptions{.adamw = {.weight_decay = 0.1}}, shards, memory);
            }
            if (name != "adamw") {
              return make_optimizer(SgdOptions{.momentum = name == "momentum" ? 0.9 : 0}, shards,
                                    memory);
            }
            return make_optimizer(AdamWOptions{.weight_decay = 0.1}, shards, memory);
          }};
}

Tensor numbers(int64_t first, int64_t count, int64_t limit) {
  std::vector<int32_t> values;
  for (int64_t i = first; i < first + count; ++i) {
    values.push_back(static_cast<int32_t>((i * i + 3 * i) % limit));
  }
  return int_tensor({count}, values);
}

}  // namespace

int64_t small_micro_batch() {
  const int64_t share = kGlobalBatch / test_world().size();
  return share % 2 == 0 ? share / 2 : share / 3;
}

Job::Job(const Plan& plan)
    : plan_(plan),
      nccl_(nccl_for(plan)),
      stream_(test_stream(plan.device)),
      memory_(stream_),
      staging_(plan.device == Device::kCuda ? Memory::pinned() : Memory(Device::kCpu)),
      mesh_(mesh_for(plan, nccl_.get(), self_, memory_)),
      data_(mesh_.data()),
      model_(make_model(plan)),
      training_(*model_, plan.exchange ? mesh_.model() : ModelGroups(data_), stream_, memory_,
                staging_, options_of(plan, data_.size())) {
  training_.store().values.initialize(1);
  const int64_t share = plan.global_batch / data_.size();
  const int64_t samples = plan.micro_batch > 0 ? plan.micro_batch : share;
  for (int64_t i = 0; i < share; i += samples) {
    batches_.push_back(make_batch(data_.rank() * share + i, samples));
  }
  move_input();
  targets_ = data_.control().sum(std::vector<double>{targets_})[0];
}

void Job::move_input() {
  slot_ = {to_device(to_host(batches_[0].input), plan_.device),
           to_device(to_host(batches_[0].targets), plan_.device)};
}

Job::~Job() {
  data_.stream().synchronize();
  stream_.synchronize();
}

TrainingStep::Input Job::input(int64_t number, bool poison, double lr) {
  return {.step = number,
          .lr = lr,
          .targets = poison ? poisoned_targets : targets_,
          .batch = [this](int64_t i) { return batch(i); },
          .memory = slot_.input};
}

void Job::step(int64_t number, bool poison, double lr) {
  record_ = training_.run(input(number, poison, lr));
}

LostStep Job::run_again(int64_t number, const StepRecord::Copy& first, bool poison) {
  return training_.run_again(input(number, poison, 0.01), first);
}

void Job::spoil(const std::string& parameter) {
  for (const ParamValues::Weights& piece : training_.store().values.weights()) {
    const int64_t at = piece.parameter->shape.elements() - 1 - piece.offset;
    if (piece.parameter->name == parameter && at >= 0 && at < piece.data.elements()) {
      const Tensor infinite = random_tensor({1}, DType::kF32, 1, kInfinity);
      copy(stream_, rounded_to(infinite, piece.data.dtype()), piece.data.slice(at, 1));
    }
  }
  training_.store().values.publish();
}

DeviceBatch Job::batch(int64_t micro_step) {
  before_micro_step();
  const DeviceBatch& batch = batches_[static_cast<size_t>(micro_step)];
  copy(stream_, batch.input, slot_.input);
  copy(stream_, batch.targets, slot_.targets);
  change(micro_step, slot_);
  return slot_;
}

double Job::loss_of(const StepRecord::Copy& copy) {
  data_.wait(copy.done);
  return copy.loss() / targets_;
}

std::vector<double> Job::weights() {
  training_.settle();
  stream_.synchronize();
  const ParamStore& store = training_.store();
  std::vector<size_t> places;  // of the parameters, by id
  size_t elements = 0;
  for (const Parameter* parameter : store.layout.parameters()) {
    places.push_back(elements);
    elements += static_cast<size_t>(parameter->shape.elements());
  }
  const auto place = [&](const ParamValues::Weights& piece) {
    return static_cast<int64_t>(places[piece.parameter->id]) + piece.offset;
  };
  std::vector<double> own(elements, 0), holders(elements, 0);
  for (const ParamValues::Weights& piece : store.values.weights()) {
    std::ranges::copy(values_of(piece.data), own.begin() + place(piece));
    std::fill_n(holders.begin() + place(piece), piece.data.elements(), 1);
  }
  std::vector<double> all = data_.control().sum(own);  // equal f32 numbers and zeros: exact
  holders = data_.control().sum(holders);
  for (size_t i = 0; i < elements; ++i) {
    all[i] /= holders[i];
  }
  for (const ParamValues::Weights& piece : store.values.weights()) {
    const std::vector<double> here = values_of(piece.data);
    EXPECT_TRUE(std::equal(here.begin(), here.end(), all.begin() + place(piece)))
        << piece.parameter->name << " on rank " << data_.rank();
  }
  return all;
}

std::vector<double> Job::padding() {
  const OptimizerShards& shards = training_.store().shards;
  std::vector<double> all;
  const auto add = [&](size_t shard, const Tensor& flat) {
    const std::vector<double> values = values_of(flat);
    auto from = values.begin();
    for (const Extent& extent : shards.extents(shard)) {
      all.insert(all.end(), from, values.begin() + extent.in_flat);
      from = values.begin() + extent.in_flat + extent.count;
    }
    all.insert(all.end(), from, values.end());
  };
  for (size_t i = 0; i < shards.all().size(); ++i) {
    const Shard& shard = shards.all()[i];
    add(i, shard.value);
    add(i, shard.grad);
    if (shard.working) {
      add(i, shard.working);
    }
  }
  training_.optimizer().visit(
      [&](std::string_view, size_t shard, const Tensor& state) { add(shard, state); });
  return all;
}

std::vector<double> Job::statistics() const {
  std::vector<double> all;
  for (const RunningStatistics* statistics : model_->statistics()) {
    const std::vector<double> values = values_of(statistics->running);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Makes a batch, and adds its targets to targets_.
DeviceBatch Job::make_batch(int64_t first_sample, int64_t samples) {
  const int64_t each = reads_text(plan_) ? kContext : 1;
  const int group = plan_.samples_of >= 0 ? plan_.samples_of : mesh_.index(Axis::kIslands);
  const int64_t first = (group * plan_.global_batch + first_sample) * each;
  const Tensor targets = numbers(first + 1, samples * each, classes_of(plan_));
  const auto target = targets.as<int32_t>();
  for (int64_t i = 0; i < samples * each; ++i) {
    const int64_t sample = first_sample + i / each;
    const bool is_few = sample < plan_.global_batch / 2 || i % each > sample % each;
    const bool is_ignored = plan_.uneven && is_few;
    target[static_cast<size_t>(i)] = is_ignored ? kIgnoreTarget : target[static_cast<size_t>(i)];
    targets_ += is_ignored ? 0 : 1;
  }
  Tensor input;
  if (reads_text(plan_)) {
    input = numbers(first, samples * each, classes_of(plan_));
    input = input.reshape({samples, kContext});
  } else {
    const Tensor all = random_tensor({plan_.global_batch * kImage}, DType::kF64, 5 + group);
    input = rounded_to(all.slice(first_sample * kImage, samples * kImage), plan_.dtype);
    input = input.reshape({samples, 6, 6, 3});
  }
  return {to_device(input, plan_.device), to_device(targets, plan_.device)};
}

void PrintTo(const Outcome& outcome, std::ostream* out) {
  const auto print = [&](const char* what, const std::vector<double>& values) {
    *out << what << std::hexfloat;
    for (const double value : values) {
      *out << " " << value;
    }
  };
  print("losses", outcome.losses);
  print(", norms", outcome.norms);
  print(", statistics", outcome.statistics);
  print(", weights", outcome.weights);
}

Outcome train(const Plan& plan, int steps) {
  Job job(plan);
  Outcome outcome;
  std::vector<StepRecord::Copy> copies;
  const auto read = [&](const StepRecord::Copy& copy) {
    outcome.losses.push_back(job.loss_of(copy));
    const double norm = copy.step_state().grad_norm;
    outcome.norms.push_back(std::isnan(norm) ? kInfinity : norm);
  };
  for (int step = 0; step < steps; ++step) {
    job.step(step, step == plan.poisoned_step, plan.lr);
    copies.push_back(job.record());
    if (step > 0) {
      read(copies[step - 1]);
    }
  }
  read(copies.back());
  outcome.skipped = copies.back().step_state().skipped;
  outcome.weights = job.weights();
  outcome.statistics = job.statistics();
  return outcome;
}

}  // namespace tandem::testing
