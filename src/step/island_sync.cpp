#include "src/step/island_sync.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "src/core/mapped.h"
#include "src/device/copy.h"
#include "src/device/profiler_range.h"
#include "src/kernels/convert.h"
#include "src/kernels/reduce.h"

namespace tandem {

IslandSync::IslandSync(const Setting& setting, const IslandOptions& options, DType wire,
                       uint64_t seed)
    : setting_(setting),
      options_(options),
      wire_(wire),
      seed_(seed),
      islands_(*setting.groups.islands),
      scratch_(setting.memory.scratch()),
      copies_(setting.stream) {
  require(options.every > 0 && options.delay >= 0 && options.delay < options.every,
          "IslandSync: every ", options.every, " steps, with a delay of ", options.delay);
}

void IslandSync::begin() {
  if (!std::exchange(has_begun_, true)) {
    setting_.optimizer.start(setting_.stream, setting_.store.shards.all());
  }
}

void IslandSync::end_step(int64_t step) {
  begin();
  if (exchange_ && step == exchange_->step + options_.delay) {
    finish_exchange();
  }
  if (step % options_.every == 0 && step != exchanged_at_) {
    start_exchange(step, options_.delay > 0);
    if (options_.delay == 0) {
      finish_exchange();
    }
  }
}

void IslandSync::settle(int64_t step) {
  begin();
  if (exchange_) {
    finish_exchange();
  }
  if (exchanged_at_ != step) {
    start_exchange(step, false);
    finish_exchange();
  }
  if (std::exchange(settled_at_, step) == step) {
    return;
  }
  std::map<std::string, std::vector<Tensor>, std::less<>> by_slot;
  setting_.optimizer.inner().visit([&](std::string_view slot, size_t, const Tensor& state) {
    by_slot[std::string(slot)].push_back(state);
  });
  for (const auto& [slot, arrays] : by_slot) {
    average(arrays);
  }
  if (const Tensor& running = setting_.statistics.running()) {
    average({&running, 1});
  }
}

// Memory for a message of f32, with zeros after it, so that the islands divide it into equal parts
// of whole blocks.
Tensor IslandSync::message(int64_t elements) {
  const int64_t padded = (elements + unit() - 1) / unit() * unit();
  const Tensor message = Tensor::empty(scratch_, {padded}, DType::kF32, MemoryClass::kStaging);
  if (padded > elements) {
    zero(setting_.stream, message.slice(elements, padded - elements));
  }
  return message;
}

// Enqueues the sum over islands, and returns when it has arrived. The message goes in parts: the
// group keeps scratch memory for the largest.
Event IslandSync::sum(const Tensor& message, EightBits eight_bits) {
  const int64_t most = options_.most_elements / unit() * unit();
  islands_.stream().wait(setting_.stream.record());
  for (int64_t at = 0; at < message.elements(); at += most) {
    if (eight_bits) {
      eight_bits->first = static_cast<uint64_t>(at);
    }
    islands_.all_reduce_in_order(message.slice(at, std::min(most, message.elements() - at)),
                                 eight_bits);
  }
  return islands_.stream().record();
}

// No micro-step has this number, so that no message of gradients has the same noise.
EightBits IslandSync::noise(Exchange& exchange) {
  const StepNumbers numbers{
      .seed = seed_, .step = static_cast<uint64_t>(exchange.step), .micro_step = -1};
  const Tensor here = Tensor::of(std::as_bytes(std::span(&numbers, 1)), setting_.staging,
                                 {sizeof numbers}, DType::kU8, MemoryClass::kStaging);
  const Tensor there = Tensor::empty(scratch_, here.shape(), here.dtype(), MemoryClass::kStaging);
  copies_.copy(here, there);
  exchange.noise = Tensor::empty(scratch_, {sizeof(BlockNoise)}, DType::kU8, MemoryClass::kStaging);
  auto* result = reinterpret_cast<BlockNoise*>(exchange.noise.raw());
  const Group& stage = setting_.groups.stage;
  const auto rank = static_cast<uint32_t>(islands_.rank() * stage.size() + stage.rank());
  on_device(setting_.stream, touching(exchange.noise), [&](auto device) {
    kernels::make_noise(device, reinterpret_cast<const StepNumbers*>(there.raw()), rank, result);
  });
  static_cast<void>(copies_.finish());
  return BlockRounding{.noise = result};
}

// `may_wait`: the values may change before it takes effect.
void IslandSync::start_exchange(int64_t step, bool may_wait) {
  const ProfilerRange range("islands");
  Stream& stream = setting_.stream;
  const std::span<const Shard> shards = setting_.store.shards.all();
  const int64_t elements = setting_.optimizer.elements();
  Exchange& exchange = exchange_.emplace(Exchange{.step = step});
  exchanged_at_ = step;
  setting_.store.values.timeline().during(stream, Phase::kOptimizer, [&] {
    exchange.moved = message(elements);
    setting_.optimizer.measure(stream, shards, exchange.moved.slice(0, elements));
    exchange.message = exchange.moved;
    if (wire_ == DType::kBf16) {
      exchange.message =
          Tensor::empty(scratch_, exchange.moved.shape(), wire_, MemoryClass::kStaging);
      convert(stream, exchange.moved, exchange.message);
    }
    if (may_wait) {
      exchange.before = Tensor::empty(scratch_, {elements}, DType::kF32, MemoryClass::kStaging);
      for (int64_t at = 0; const Shard& shard : shards) {
        const int64_t n = shard.value.elements();
        copy(stream, shard.value, exchange.before.slice(at, n));
        at += n;
      }
    }
  });
  exchange.there = sum(exchange.message, wire_ == DType::kI8 ? noise(exchange) : EightBits());
}

void IslandSync::finish_exchange() {
  Stream& stream = setting_.stream;
  const Exchange exchange = std::move(*std::exchange(exchange_, std::nullopt));
  Timeline& timeline = setting_.store.values.timeline();
  timeline.wait(stream, exchange.there);
  exchanged_ = islands_.collectives().wire();
  timeline.during(stream, Phase::kOptimizer, [&] {
    const ProfilerRange range("islands");
    if (exchange.message.raw() != exchange.moved.raw()) {
      convert(stream, exchange.message, exchange.moved);
    }
    const Tensor d = exchange.moved.slice(0, setting_.optimizer.elements());
    on_device(stream, touching(d, d), [&](auto device) {
      kernels::mean(device, d.elements(), d.data<float>(), static_cast<float>(islands_.size()),
                    d.data<float>());
    });
    setting_.optimizer.outer_step(stream, setting_.store.shards.all(), d, exchange.before);
    setting_.store.values.publish();
    measure_drift(d);
  });
}

// Each element is in one shard of the island.
void IslandSync::measure_drift(const Tensor& d) {
  Stream& stream = setting_.stream;
  const Tensor sums = Tensor::empty(scratch_, {2}, DType::kF64, MemoryClass::kStaging);
  const Tensor scratch =
      Tensor::empty(scratch_, {kReduceScratch}, DType::kF64, MemoryClass::kStaging);
  const auto add = [&](const Tensor& array, double* to) {
    on_device(stream, touching(array), [&](auto device) {
      squared_norm(device, array.data<float>(), array.elements(), to, scratch.data<double>(),
                   false);
    });
  };
  add(d, sums.data<double>());
  add(setting_.optimizer.anchor(), sums.data<double>() + 1);
  if (Group& stage = setting_.groups.stage; stage.size() > 1) {
    stage.stream().wait(stream.record());
    stage.collectives().all_reduce(sums, Traffic::kControl);
    setting_.store.values.timeline().wait(stream, stage.stream().record());
  }
  const Tensor host =
      Tensor::empty(setting_.staging, sums.shape(), sums.dtype(), MemoryClass::kStaging);
  copies_.copy(sums, host);
  drift_ = {.done = copies_.finish(), .sums = host};
}

double IslandSync::Drift::value() const {
  const auto squares = sums.as<double>();
  return std::sqrt(squares[0] / squares[1]);
}

// Each array becomes its mean over islands, in one message of f32.
void IslandSync::average(std::span<const Tensor> arrays) {
  Stream& stream = setting_.stream;
  const Tensor all = message(sum_of(arrays, &Tensor::elements));
  const auto for_each_part = [&](const auto& work) {
    for (int64_t at = 0; const Tensor& array : arrays) {
      work(array, all.slice(at, array.elements()));
      at += array.elements();
    }
  };
  for_each_part([&](const Tensor& array, const Tensor& part) { copy(stream, array, part); });
  setting_.store.values.timeline().wait(stream, sum(all));
  exchanged_ = islands_.collectives().wire();
  for_each_part([&](const Tensor& array, const Tensor& part) {
    on_device(stream, touching(array, part), [&](auto device) {
      kernels::mean(device, array.elements(), part.data<float>(),
                    static_cast<float>(islands_.size()), array.data<float>());
    });
  });
}

}  // namespace tandem
