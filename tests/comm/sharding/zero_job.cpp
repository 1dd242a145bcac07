#include "tests/comm/sharding/zero_job.h"

#include <algorithm>

#include "optim/adamw.h"
#include "optim/sgd.h"
#include "src/kernels/reduce.h"
#include "tests/support/small_transformer.h"

namespace tandem::testing {

namespace {

constexpr int64_t kSamples = 2;  // of a leaf
constexpr int64_t kTokens = 6;   // of a sample

std::unique_ptr<Model> make_model(const ZeroPlan& plan) {
  if (!plan.links.empty()) {
    return std::make_unique<ChainModel>(plan.links);
  }
  return std::make_unique<Transformer>(small(false));
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& kind, std::span<const Shard> shards,
                                          Memory& memory) {
  if (kind == "sgd") {
    return make_optimizer(SgdOptions{.momentum = 0.9, .weight_decay = 0.1}, shards, memory);
  }
  return kind == "gradient" ? make_optimizer(AdamWOptions{.beta1 = 0, .beta2 = 0}, shards, memory)
                            : make_optimizer(AdamWOptions{}, shards, memory);
}

std::vector<int> nodes_in(const ZeroPlan& plan, const Ranks& ranks) {
  return plan.nodes.empty() ? std::vector<int>(static_cast<size_t>(ranks.size()), 0) : plan.nodes;
}

}  // namespace

class ZeroJob::WatchedGate final : public Gate {
 public:
  explicit WatchedGate(ZeroJob& job) : job_(job) {}
  void acquire(Context& context, BlockId block, Pass pass) override {
    job_.store().gradients.acquire(context, block, pass);
    tell(block, pass, true);
  }
  void release(Context& context, BlockId block, Pass pass) override {
    tell(block, pass, false);
    job_.store().gradients.release(context, block, pass);
  }

 private:
  void tell(BlockId block, Pass pass, bool acquired) const {
    if (job_.watch) {
      job_.watch(block, pass, acquired);
    }
  }
  ZeroJob& job_;
};

ZeroJob::ZeroJob(const Ranks& ranks, const ZeroPlan& plan)
    : plan_(plan),
      data_(ranks.control, ranks.collectives, scratch_memory_, nodes_in(plan, ranks), plan.sharing),
      model_(make_model(plan)),
      gate_(std::make_unique<WatchedGate>(*this)),
      tape_([this](Context& context, Parameter& parameter) {
        if (before_final) {
          before_final();
        }
        store_->gradients.on_final(context, parameter);
      }) {
  StoreOptions options = plan.store;
  options.exact_micro_batches = plan.exact ? leaves() : 0;
  store_ =
      std::make_unique<ParamStore>(parameters_by_block(*model_), data_, stream_, memory_, options);
  optimizer_ = make_optimizer(plan.optimizer, store_->shards.all(), memory_);
  store_->values.initialize(1);
  store_->values.gather();
}

Variable ZeroJob::losses(Context& context, int64_t leaf) {
  context.numbers = &numbers_;
  context.gate = gate_.get();
  context.recompute = plan_.recompute;
  if (!plan_.links.empty()) {
    const Tensor samples =
        Tensor::empty(scratch_memory_, {kSamples}, DType::kF32, MemoryClass::kData);
    return model_->loss(context, samples, {}).losses;
  }
  const int64_t count = kSamples * kTokens, first = leaf * count;
  const std::vector<int32_t> tokens = some_tokens(first + count + 1);
  const std::span<const int32_t> own = std::span(tokens).subspan(first, count + 1);
  const Tensor input = int_tensor({kSamples, kTokens}, own.first(count));
  return model_->loss(context, input, int_tensor({count}, own.last(count))).losses;
}

bool ZeroJob::micro_step(int64_t leaf, bool last) {
  Context context{.stream = stream_, .memory = scratch_memory_, .tape = &tape_, .training = true};
  numbers_ = {.seed = plan_.seed, .step = steps_, .lr = 0.02, .first_sample = leaf * kSamples};
  store_->gradients.begin_backward(last, &numbers_);
  const Variable y = losses(context, leaf);
  tape_.backward(context, y, 1.0 / static_cast<double>(y.elements() * leaves()));
  return store_->gradients.finish_backward();
}

bool ZeroJob::run_micro_steps() {
  store_->gradients.begin_step();
  bool fits = true;
  for (int i = 0; i < plan_.micro_steps; ++i) {
    const bool last = i + 1 == plan_.micro_steps;
    fits = micro_step(data_.rank() * plan_.micro_steps + i, last);
  }
  return fits;
}

void ZeroJob::gradients() {
  if (!run_micro_steps()) {
    require(run_micro_steps(), "exact sums do not fit exponents of the same step");
  }
}

std::vector<double> ZeroJob::leaf_gradient(int64_t leaf) {
  store_->gradients.begin_step();
  micro_step(leaf, true);
  return summed_gradients();
}

double ZeroJob::squared_norm() {
  Memory host(Device::kCpu);
  const Tensor figures = Tensor::empty(host, {1 + kReduceScratch}, DType::kF64, MemoryClass::kData);
  store_->gradients.squared_norm(figures.slice(0, 1), figures.slice(1, kReduceScratch));
  return data_.control().sum({figures.data<double>(), 1})[0];
}

void ZeroJob::step() {
  gradients();
  state_.squared_norm = squared_norm();
  state_ = decided(state_, {.clip_norm = plan_.clip_norm});
  optimizer_->step(stream_, store_->shards.all(), {.numbers = &numbers_, .state = &state_});
  store_->values.outdate();
  store_->values.gather();
  ++steps_;
}

void ZeroJob::train(int steps) {
  for (int i = 0; i < steps; ++i) {
    step();
  }
}

void ZeroJob::evaluate() {
  Context context{.stream = stream_, .memory = scratch_memory_};
  losses(context, 0);
}

void ZeroJob::read(BlockId block, std::vector<double>& all) const {
  const std::vector<int64_t> first = first_elements();
  all.resize(static_cast<size_t>(first.back()));
  for (const Segment& segment : store_->layout.flat().segments()) {
    if (segment.block == block) {
      const std::vector<double> values =
          values_of(store_->layout.parameters()[segment.parameter]->value);
      std::ranges::copy(values, all.begin() + first[segment.parameter]);
    }
  }
}

WireCount ZeroJob::wire() {
  data_.stream().synchronize();
  return data_.wire();
}

std::vector<int64_t> ZeroJob::first_elements() const {
  std::vector<int64_t> first = {0};
  for (const Parameter* parameter : store_->layout.parameters()) {
    first.push_back(first.back() + parameter->shape.elements());
  }
  return first;
}

// One rank has each element; the others add zero, which changes no bit.
std::vector<double> ZeroJob::collect(const std::function<Tensor(size_t)>& flat_of_shard) const {
  const std::vector<int64_t> first = first_elements();
  std::vector<double> all(static_cast<size_t>(first.back()), 0.0);
  for (size_t shard = 0; shard < store_->shards.all().size(); ++shard) {
    const Tensor flat = flat_of_shard(shard);
    for (const Extent& extent : store_->shards.saved_extents(shard)) {
      const std::vector<double> values = values_of(flat.slice(extent.in_flat, extent.count));
      std::ranges::copy(values, all.begin() + first[extent.parameter] + extent.in_parameter);
    }
  }
  return data_.control().sum(all);
}

std::vector<double> ZeroJob::summed_gradients() const {
  return collect([&](size_t shard) { return store_->shards.all()[shard].grad; });
}

std::vector<double> ZeroJob::state(std::string_view slot) const {
  std::vector<Tensor> states(store_->shards.all().size());
  optimizer_->visit([&](std::string_view name, size_t shard, const Tensor& state) {
    if (name == slot) {
      states[shard] = state;
    }
  });
  return collect([&](size_t shard) { return states[shard]; });
}

std::vector<double> ZeroJob::weights() const {
  const std::vector<int64_t> first = first_elements();
  std::vector<double> all(static_cast<size_t>(first.back()), 0.0);
  for (const ParamValues::Weights& weights : store_->values.saved_weights()) {
    std::ranges::copy(values_of(weights.data),
                      all.begin() + first[weights.parameter->id] + weights.offset);
  }
  return data_.control().sum(all);
}

}  // namespace tandem::testing
