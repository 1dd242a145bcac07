// Finds where the numbers of a step stop being finite on this rank. It stands between the model and
// the gradient store: looks at the output of each block and at each gradient, and passes all calls
// on. It waits for the device each time.
#pragma once

#include <optional>
#include <string>

#include "comm/sharding/group.h"
#include "layers/models/model.h"
#include "src/autograd/block.h"

namespace tandem {

class FiniteCheck final : public Gate {
 public:
  // The first gradient that is not finite, and what was wrong before it.
  struct Place {
    int64_t micro_batch = 0;  // on this rank
    std::string output{};  // the first output of the forward pass that is not finite; empty: none
    std::string parameter{};  // whose gradient it is
    std::string text() const;
  };

  // `gate`: the gradient store. All references must outlive this.
  FiniteCheck(const Model& model, Gate& gate, const Group& data, Stream& stream, Memory& memory);

  void begin_micro_step(int64_t micro_batch);
  void see_loss(const Tensor& losses);
  // Call when the gradient is final, before it is sent.
  void see_gradient(const Parameter& parameter);
  const std::optional<Place>& place() const { return place_; }  // empty: gradients are finite

  void acquire(Context& context, BlockId block, Pass pass) override {
    gate_.acquire(context, block, pass);
  }
  void see_output(BlockId block, const Flow& output) override;
  void release(Context& context, BlockId block, Pass pass) override;
  void await_exchange(Stream& compute, const Event& done) override {
    gate_.await_exchange(compute, done);
  }
  bool is_collective() const override { return gate_.is_collective(); }

 private:
  bool is_finite(const Tensor& tensor);

  const Model& model_;
  Gate& gate_;
  const Group& data_;
  Stream& stream_;
  Memory& memory_;
  Tensor squares_, scratch_;  // f64 [1], [kReduceScratch]
  Tensor wide_{};             // f32: a piece of a tensor of 16-bit numbers
  Place here_{};              // in this micro-step, so far
  std::optional<Place> place_{};
};

}  // namespace tandem
