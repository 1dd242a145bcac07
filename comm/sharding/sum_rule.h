// How gradients become sums over micro-steps and ranks. A rule says what a rank sends of a bucket's
// gradients, where the sum over ranks arrives, in which dtype it is kept between micro-steps, what
// it adds to the norm, and what a checkpoint remembers of it. When that happens is not its business
// (gradient_sync.h).
//
// This class sums in f32; other rules derive from it. A new rule is a file beside rounded_rule.h,
// and a line in make_sum_rule().
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/sharding/model_layout.h"
#include "src/kernels/array_list.h"
#include "src/kernels/reduce.h"
#include "src/trace/timeline.h"

namespace tandem {

class SumRule {
 public:
  // All references must outlive the rule.
  struct Setting {
    const ModelLayout& layout;
    Stream& stream;      // the compute stream
    Memory& memory;      // on its device
    Timeline& timeline;  // gets the time that waiting takes
  };
  explicit SumRule(const Setting& setting)
      : setting_(setting), scratch_(setting.memory.scratch()), own_(setting.memory) {}
  virtual ~SumRule() = default;

  // The dtype of sums between micro-steps. With f32 they are the gradients themselves, and layers
  // add to those that are whole on this rank. With another dtype each micro-step is summed by
  // itself.
  virtual DType dtype() const { return DType::kF32; }
  // Whether the messages of gradients that are whole on this rank need memory of their own. Then
  // only few may be in flight.
  virtual bool messages_need_memory() const { return false; }

  // Call before the first message of a step, also of a step that is run again.
  virtual void begin_step() {}
  // Call before the first message of a micro-step. Its numbers are in device memory; null: unknown.
  // Enqueued on the compute stream.
  virtual void begin_micro_step(const StepNumbers* /*numbers*/) {}

  // Two arrays of a bucket's n elements, which may be the same memory.
  struct Message {
    Tensor addend{};  // [n]: what this rank sends; the `from` of redistribute() (flat_buffer.h)
    Tensor sum{};     // [n]: where the sum arrives, all of it or this rank's part
    EightBits eight_bits{};  // of f32: how it is rounded on its way
    Tensor noise{};          // what eight_bits points to
  };
  // gradient: f32 [n], with 0 in the gaps between parameters. sums: dtype() [n], or empty if they
  // are sharded between micro-steps. A rule whose dtype() is not f32 adds the gradient to `sums`
  // and sends these; `add`: they hold values of this step. Of a shared parameter it gets the
  // gradient of each block by itself. Enqueued on the compute stream.
  virtual Message message(int64_t /*bucket*/, const Tensor& gradient, const Tensor& /*sums*/,
                          bool /*add*/) {
    return {gradient, gradient};
  }

  // sums (+)= sum, which is Message::sum or this rank's part of it. `add`: adds; otherwise
  // overwrites. Both are of dtype(); without `add` sum may be bf16. Enqueued on the compute stream.
  void keep(const Tensor& sum, const Tensor& sums, bool add) const;

  // Collective; call when all messages of a step have arrived. False if the sums mean nothing and
  // all ranks must run the step again.
  [[nodiscard]] virtual bool finish_step() { return true; }
  // gradients = f32 of the sums, on the range place(bucket).state(), of which this rank has the sum
  // over ranks. Both tensors have the range place(bucket).gradients(), or are empty if the bucket
  // is frozen. Call after a finish_step() that returned true. Enqueued on the compute stream.
  virtual void read(int64_t /*bucket*/, const Tensor& /*sums*/, const Tensor& /*gradients*/) {}

  // result (f64 [1]) = this rank's part of the squared norm; the parts of all ranks add up to it.
  // own: f32, the gradients that this rank owns. scratch: f64 [kReduceScratch]. Call after read().
  virtual void squared_norm(std::span<const Tensor> own, const Tensor& result,
                            const Tensor& scratch);

  // What a checkpoint keeps: a number for each parameter, or none.
  virtual std::span<const int32_t> exponents() const { return {}; }
  // Throws Error(kData) for numbers that exponents() cannot give.
  virtual void set_exponents(std::vector<int32_t> /*exponents*/) {}

 protected:
  const Setting setting_;
  Memory scratch_;  // what begins and ends inside a step

 private:
  ArrayListMemory<FlatArray> own_;  // on a GPU
};

// The rule that the options ask for. Throws Error(kConfig) for options that exclude each other.
std::unique_ptr<SumRule> make_sum_rule(const SumRule::Setting& setting,
                                       const StoreOptions& options);

}  // namespace tandem
