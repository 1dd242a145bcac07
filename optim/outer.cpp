#include "optim/outer.h"

#include "src/core/range.h"
#include "src/device/copy.h"
#include "src/kernels/map.h"

namespace tandem {

OuterOptimizer::OuterOptimizer(std::unique_ptr<Optimizer> inner, const OuterOptions& options,
                               std::span<const Shard> shards, Memory& memory)
    : inner_(std::move(inner)), options_(options), begins_{0} {
  require_in_range("optim.outer_lr", options.lr, INFINITY);
  require_in_range("optim.outer_momentum", options.momentum, 1);
  for (const Shard& shard : shards) {
    begins_.push_back(begins_.back() + shard.value.elements());
  }
  for (Tensor* state : {&anchor_, &momentum_}) {
    *state = Tensor::zeros(memory, {begins_.back()}, DType::kF32, MemoryClass::kOptimizer);
  }
}

template <class F>
void OuterOptimizer::for_each(std::span<const Shard> shards, F work) const {
  require(shards.size() + 1 == begins_.size(), "OuterOptimizer: ", shards.size(),
          " shards, made for ", begins_.size() - 1);
  for (size_t i = 0; i < shards.size(); ++i) {
    const Range here{begins_[i], begins_[i + 1]};
    require(shards[i].value.elements() == here.count(), "OuterOptimizer: shard ", i, " has ",
            shards[i].value.elements(), " values, made for ", here.count());
    work(shards[i].value, [here](const Tensor& all) {
      return all ? all.slice(here.begin, here.count()) : Tensor();
    });
  }
}

void OuterOptimizer::start(Stream& stream, std::span<const Shard> shards) const {
  for_each(shards, [&](const Tensor& value, auto part) { copy(stream, value, part(anchor_)); });
}

void OuterOptimizer::measure(Stream& stream, std::span<const Shard> shards,
                             const Tensor& moved) const {
  for_each(shards, [&](const Tensor& value, auto part) {
    const Tensor anchor = part(anchor_), to = part(moved);
    on_device(stream, touching(anchor, value, to), [&](auto device) {
      kernels::difference(device, to.elements(), anchor.data<float>(), value.data<float>(),
                          to.template data<float>());
    });
  });
}

void OuterOptimizer::outer_step(Stream& stream, std::span<const Shard> shards, const Tensor& d,
                                const Tensor& before) const {
  const kernels::OuterScalars scalars{.lr = static_cast<float>(options_.lr),
                                      .momentum = static_cast<float>(options_.momentum)};
  for_each(shards, [&](const Tensor& value, auto part) {
    const Tensor from = part(d), then = part(before), anchor = part(anchor_),
                 momentum = part(momentum_);
    on_device(stream, touching(from, then, anchor, anchor, momentum, momentum, value, value),
              [&](auto device) {
                kernels::outer_step(device, scalars, value.elements(), from.data<float>(),
                                    then ? then.data<float>() : nullptr, anchor.data<float>(),
                                    momentum.data<float>(), value.data<float>());
              });
  });
}

void OuterOptimizer::visit(const StateVisitor& visitor) const {
  inner_->visit(visitor);
  for (size_t i = 0; i + 1 < begins_.size(); ++i) {
    visitor("outer_m", i, momentum_.slice(begins_[i], begins_[i + 1] - begins_[i]));
  }
}

namespace kernels {

void difference(Cpu device, int64_t n, const float* a, const float* b, float* to) {
  transform(device, n, to, Minus{}, a, b);
}

void mean(Cpu device, int64_t n, const float* sum, float count, float* to) {
  transform(device, n, to, Over{count}, sum);
}

void outer_step(Cpu device, const OuterScalars& scalars, int64_t n, const float* d,
                const float* before, float* anchor, float* momentum, float* value) {
  map(device, n, [=](int64_t i) {
    const float moved_since = before ? value[i] - before[i] : 0;
    outer_step_of(scalars, d[i], moved_since, anchor[i], momentum[i], value[i]);
  });
}

}  // namespace kernels

}  // namespace tandem
