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
// On a GPU a step launches one thread that prepares the scalars, and then one kernel for all
// shards. The CUDA functions are in flat_optimizer.cuh; each rule's .cu file instantiates them.
#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/optimizer.h"
#include "optim/shard_arrays.h"
#include "src/device/global.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

// value, state: in and out; grad: in; all [n]. working [n]: the new values rounded to T, which is
// Bf16 or Fp16; null for T = float.
template <class Rule, class T, class... State>
void update_elements(const Rule& rule, int64_t n, const float* grad, float* value, T* working,
                     State*... state) {
  map(Cpu{}, n, [=](int64_t i) {
    rule(grad[i], value[i], state[i]...);
    if constexpr (kIs16Bit<T>) {
      working[i] = T(value[i]);
    }
  });
}

// scalars[0] = Rule::prepare(options, numbers[0].lr, state[0]); scalars is in device memory.
template <class Rule>
void prepare_update(Cpu, const typename Rule::Options& options, const StepInputs& inputs,
                    typename Rule::Scalars* scalars) {
  *scalars = Rule::prepare(options, inputs.numbers->lr, *inputs.state);
}
template <class Rule>
void prepare_update(Cuda, const typename Rule::Options& options, const StepInputs& inputs,
                    typename Rule::Scalars* scalars);

// Updates the shards, whose working copies are of type `working`. If `apply` of the scalars is 0,
// they keep every bit.
template <class Rule>
void update_shards(Cpu, const typename Rule::Scalars* scalars, DType working,
                   std::span<const ShardArrays> shards) {
  if (scalars->apply == 0) {
    return;
  }
  on_working_type(working, [&]<class T>() {
    for (const ShardArrays& shard : shards) {
      [&]<size_t... kSlot>(std::index_sequence<kSlot...>) {
        update_elements(Rule(*scalars, shard.decay != 0), shard.elements, shard.grad, shard.value,
                        static_cast<T*>(shard.working), shard.state[kSlot]...);
      }
      (std::make_index_sequence<Rule::kSlots.size()>());
    }
  });
}
// All shards in one launch.
template <class Rule>
void update_shards(Cuda, const typename Rule::Scalars* scalars, DType working,
                   const ArrayList<ShardArrays>& shards);
// One shard needs no list in device memory.
template <class Rule>
void update_shards(Cuda, const typename Rule::Scalars* scalars, DType working,
                   std::span<const ShardArrays, 1> shard);

}  // namespace kernels

template <class Rule>
class FlatOptimizer final : public Optimizer {
 public:
  FlatOptimizer(const typename Rule::Options& options, std::span<const Shard> shards,
                const OptimizerMemory& memory)
      : options_(options),
        scalars_(Tensor::empty(memory.device, Shape{static_cast<int64_t>(sizeof(Scalars))},
                               DType::kU8, MemoryClass::kOptimizer)),
        list_(memory.device) {
    for (const Shard& shard : shards) {
      elements_.push_back(shard.value.elements());
      for (Tensor& state : state_.emplace_back()) {
        state = Tensor::zeros(memory.state, Shape{elements_.back()}, DType::kF32,
                              MemoryClass::kOptimizer);
      }
    }
  }

  void step(Stream& stream, std::span<const Shard> shards, const StepInputs& inputs) override {
    require_own(shards);
    require_inputs(inputs);
    const DType dtype = working_type(shards);
    std::vector<kernels::ShardArrays> arrays;
    for (size_t i = 0; i < shards.size(); ++i) {
      arrays.push_back(arrays_of(shards[i], state_[i]));
    }
    ArrayList<kernels::ShardArrays> list{};
    if (stream.device() == Device::kCuda) {  // a dry stream's memory is counted, too
      list = list_.list(stream, arrays);
    }
    on_device(stream, work_of(shards), [&]<class D>(D device) {
      kernels::prepare_update<Rule>(device, options_, inputs, prepared());
      if constexpr (std::is_same_v<D, Cuda>) {
        kernels::update_shards<Rule>(device, prepared(), dtype, list);
      } else {
        kernels::update_shards<Rule>(device, prepared(), dtype, std::span(std::as_const(arrays)));
      }
    });
  }

  void prepare(Stream& stream, const StepInputs& inputs) override {
    require_inputs(inputs);
    on_device(stream, touching(scalars_), [&](auto device) {
      kernels::prepare_update<Rule>(device, options_, inputs, prepared());
    });
  }

  void update(Stream& stream, const Shard& shard, std::span<const Tensor> state) override {
    require(state.size() == kSlots, Rule::kName, ": ", state.size(), " arrays of state");
    const kernels::ShardArrays arrays = arrays_of(shard, state);
    on_device(stream, work_of({&shard, 1}), [&](auto device) {
      kernels::update_shards<Rule>(device, prepared(), working_type({&shard, 1}),
                                   std::span<const kernels::ShardArrays, 1>(&arrays, 1));
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
  static_assert(kSlots <= kernels::kMostSlots);
  using State = std::array<Tensor, kSlots>;

  Scalars* prepared() const { return reinterpret_cast<Scalars*>(scalars_.raw()); }

  static void require_inputs(const StepInputs& inputs) {
    require(inputs.numbers && inputs.state, Rule::kName, ": no step numbers or no step state");
  }

  void require_own(std::span<const Shard> shards) const {
    require(shards.size() == elements_.size(), Rule::kName, ": ", shards.size(),
            " shards, made for ", elements_.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      const Shard& shard = shards[i];
      const int64_t n = elements_[i];
      require(shard.value.elements() == n && shard.grad.elements() == n, Rule::kName, ": shard ", i,
              " has ", shard.value.elements(), " values and ", shard.grad.elements(),
              " gradients, made for ", n);
      require(!shard.working || shard.working.elements() == n, Rule::kName, ": shard ", i, " has ",
              n, " values and a working copy of ", shard.working.elements());
    }
  }

  // Gradients are read, values and state read and written, working copies written.
  static Work work_of(std::span<const Shard> shards) {
    Work work;
    for (const Shard& shard : shards) {
      work += touching(shard.grad, shard.working);
      work.bytes += 2.0 * (1 + kSlots) * static_cast<double>(shard.value.bytes());
    }
    return work;
  }

  // The type of the working copies, the same of all shards; f32 if there are none.
  static DType working_type(std::span<const Shard> shards) {
    const auto type = [](const Shard& shard) {
      return shard.working ? shard.working.dtype() : DType::kF32;
    };
    const DType first = shards.empty() ? DType::kF32 : type(shards[0]);
    for (const Shard& shard : shards) {
      require(type(shard) == first, Rule::kName, ": working copies in ", name_of(first), " and ",
              name_of(type(shard)));
    }
    return first;
  }

  static kernels::ShardArrays arrays_of(const Shard& shard, std::span<const Tensor> state) {
    kernels::ShardArrays arrays{.grad = shard.grad.data<float>(),
                                .value = shard.value.data<float>(),
                                .working = shard.working ? shard.working.raw() : nullptr,
                                .state = {},
                                .elements = shard.value.elements(),
                                .decay = shard.decay,
                                .aligned = 0};
    for (size_t slot = 0; slot < kSlots; ++slot) {
      arrays.state[slot] = state[slot].template data<float>();
    }
    arrays.aligned =
        aligned16(arrays.grad, arrays.value, arrays.working, arrays.state[0], arrays.state[1]);
    return arrays;
  }

  typename Rule::Options options_;
  std::vector<int64_t> elements_;  // by shard
  std::vector<State> state_;       // by shard
  Tensor scalars_;                 // one Scalars, in device memory
  ArrayListMemory<kernels::ShardArrays> list_;
};

}  // namespace tandem
