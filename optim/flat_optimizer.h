// An element-wise optimizer, made from a rule that is written once for all devices:
//
//   struct Rule {
//     using Options = ...;  // the user's
//     using Scalars = ...;  // what the elements of one step share; has `int32_t apply`
//     static constexpr std::string_view kName = ...;
//     static constexpr std::array<std::string_view, N> kSlots = {...};  // kinds of state
//     static Scalars prepare(const Options&, double lr, const StepState&);  // host and device
//     Rule(const Scalars&, bool decay);                                     // host and device
//     void operator()(float grad, float& value, float&... state) const;     // host and device
//   };
//
// A step launches one thread that prepares the scalars, and then one kernel per shard. The CUDA
// functions are in flat_optimizer.cuh; each rule's .cu file instantiates them.
#pragma once

#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/optimizer.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

// scalars[0] = Rule::prepare(options, numbers[0].lr, state[0])
template <class Rule>
void prepare_update(Cpu, const typename Rule::Options& options, const StepInputs& inputs,
                    typename Rule::Scalars* scalars) {
  *scalars = Rule::prepare(options, inputs.numbers->lr, *inputs.state);
}
template <class Rule>
void prepare_update(Cuda, const typename Rule::Options& options, const StepInputs& inputs,
                    typename Rule::Scalars* scalars);

// value, state: in and out; grad: in; all [n]. working [n]: the new values rounded to T, which is
// Bf16 or Fp16; null for T = float. scalars: in device memory; if their `apply` is 0, nothing is
// written.
template <class Rule, class T, class... State>
void update_shard(Cpu, const typename Rule::Scalars* scalars, bool decay, int64_t n,
                  const float* grad, float* value, T* working, State*... state) {
  if (scalars->apply == 0) {
    return;
  }
  map(Cpu{}, n, [=, rule = Rule(*scalars, decay)](int64_t i) {
    rule(grad[i], value[i], state[i]...);
    if constexpr (kIs16Bit<T>) {
      working[i] = T(value[i]);
    }
  });
}
template <class Rule, class T, class... State>
void update_shard(Cuda, const typename Rule::Scalars* scalars, bool decay, int64_t n,
                  const float* grad, float* value, T* working, State*... state);

}  // namespace kernels

// Throws Error(kConfig) unless 0 <= value < below.
inline void require_in_range(std::string_view key, double value, double below) {
  if (!(value >= 0 && value < below)) {
    fail(ExitCode::kConfig, str(key, " = ", value, ": it must be at least 0",
                                std::isfinite(below) ? str(" and below ", below) : ""));
  }
}

template <class Rule>
class FlatOptimizer final : public Optimizer {
 public:
  FlatOptimizer(const typename Rule::Options& options, std::span<const Shard> shards,
                Memory& memory)
      : options_(options),
        scalars_(Tensor::empty(memory, Shape{static_cast<int64_t>(sizeof(Scalars))}, DType::kU8,
                               MemoryClass::kOptimizer)) {
    for (const Shard& shard : shards) {
      elements_.push_back(shard.value.elements());
      for (Tensor& state : state_.emplace_back()) {
        state =
            Tensor::zeros(memory, Shape{elements_.back()}, DType::kF32, MemoryClass::kOptimizer);
      }
    }
  }

  void step(Stream& stream, std::span<const Shard> shards, const StepInputs& inputs) override {
    require_own(shards);
    require(inputs.numbers && inputs.state,
            [] { return str(Rule::kName, ": no step numbers or no step state"); });
    auto* prepared = reinterpret_cast<Scalars*>(scalars_.raw());
    stream.charge({.bytes = bytes_of(shards)});
    on_device(stream, [&](auto device) {
      kernels::prepare_update<Rule>(device, options_, inputs, prepared);
      for (size_t i = 0; i < shards.size(); ++i) {
        if (!shards[i].working) {
          update<float>(device, prepared, shards[i], nullptr, state_[i]);
        } else if (shards[i].working.dtype() == DType::kBf16) {
          update(device, prepared, shards[i], shards[i].working.data<Bf16>(), state_[i]);
        } else {
          update(device, prepared, shards[i], shards[i].working.data<Fp16>(), state_[i]);
        }
      }
    });
  }

  void visit(const StateVisitor& visitor) const override {
    for (size_t i = 0; i < state_.size(); ++i) {
      for (size_t slot = 0; slot < kSlots; ++slot) {
        visitor(Rule::kSlots[slot], i, state_[i][slot]);
      }
    }
  }

 private:
  using Scalars = typename Rule::Scalars;
  static constexpr size_t kSlots = Rule::kSlots.size();
  using State = std::array<Tensor, kSlots>;

  void require_own(std::span<const Shard> shards) const {
    require(shards.size() == elements_.size(), [&] {
      return str(Rule::kName, ": ", shards.size(), " shards, made for ", elements_.size());
    });
    for (size_t i = 0; i < shards.size(); ++i) {
      const Shard& shard = shards[i];
      const int64_t n = elements_[i];
      require(shard.value.elements() == n && shard.grad.elements() == n, [&] {
        return str(Rule::kName, ": shard ", i, " has ", shard.value.elements(), " values and ",
                   shard.grad.elements(), " gradients, made for ", n);
      });
      require(!shard.working || shard.working.elements() == n, [&] {
        return str(Rule::kName, ": shard ", i, " has ", n, " values and a working copy of ",
                   shard.working.elements());
      });
    }
  }

  // Gradients are read, values and state read and written, working copies written.
  static double bytes_of(std::span<const Shard> shards) {
    double bytes = 0;
    for (const Shard& shard : shards) {
      bytes += static_cast<double>(shard.grad.bytes() + 2 * (1 + kSlots) * shard.value.bytes());
      bytes += shard.working ? static_cast<double>(shard.working.bytes()) : 0;
    }
    return bytes;
  }

  template <class T, class D>
  static void update(D device, const Scalars* scalars, const Shard& shard, T* working,
                     const State& state) {
    [&]<size_t... kSlot>(std::index_sequence<kSlot...>) {
      kernels::update_shard<Rule>(device, scalars, shard.decay, shard.value.elements(),
                                  shard.grad.data<float>(), shard.value.data<float>(), working,
                                  state[kSlot].template data<float>()...);
    }
    (std::make_index_sequence<kSlots>());
  }

  typename Rule::Options options_;
  std::vector<int64_t> elements_;  // by shard
  std::vector<State> state_;       // by shard
  Tensor scalars_;                 // one Scalars, in device memory
};

}  // namespace tandem
