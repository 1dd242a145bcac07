// Sums in 64-bit fixed point, whose bits depend neither on ranks nor on micro-steps
// (exact/exact_sums.h).
#pragma once

#include <algorithm>
#include <limits>

#include "comm/sharding/exact/exact_sums.h"
#include "comm/sharding/sum_rule.h"
#include "src/device/copy.h"

namespace tandem {

class ExactRule final : public SumRule {
 public:
  ExactRule(const Setting& setting, int64_t micro_batches)
      : SumRule(setting),
        exact_(setting.stream, setting.memory,
               static_cast<int64_t>(setting.layout.parameters().size()),
               micro_batches * most_leaves(setting.layout)) {}

  DType dtype() const override { return DType::kI64; }

  void begin_step() override { exact_.begin_step(); }

  Message message(int64_t bucket, const Tensor& gradient, const Tensor& sums, bool add) override {
    const Tensor addend =
        sums ? sums : Tensor::empty(scratch_, gradient.shape(), DType::kI64, MemoryClass::kStaging);
    exact_.quantise(gradient, extents(setting_.layout.bucket(bucket).range), addend, sums && add);
    return {addend, addend};
  }

  bool finish_step() override {
    const Group& stage = setting_.layout.stage();
    stage.wait(setting_.stream.record());  // has a deadline
    const ExactSums::Verdict verdict = setting_.timeline.during(
        setting_.stream, Phase::kCommunication, [&] { return exact_.judge(stage.control()); });
    is_finite_ = verdict != ExactSums::Verdict::kNonFinite;
    return verdict != ExactSums::Verdict::kAgain;
  }

  // Leaves that are not finite have no sum: then the gradients stay as they are.
  void read(int64_t bucket, const Tensor& sums, const Tensor& gradients) override {
    const BucketPlace& place = setting_.layout.place(bucket);
    const auto state = [&](const Tensor& flat) {
      return slice_of(flat, place.gradients().begin, place.state());
    };
    if (is_finite_ && sums) {
      exact_.dequantise(state(sums), extents(place.state()), state(gradients));
    }
  }

  // Rank 0 has all of the norm, or NaN; the other ranks have 0.
  void squared_norm(std::span<const Tensor> own, const Tensor& result, const Tensor&) override {
    Collectives& stage = setting_.layout.stage().collectives();
    const double all = is_finite_ ? exact_.squared_norm(stage, own, setting_.timeline)
                                  : std::numeric_limits<double>::quiet_NaN();
    Memory host(Device::kCpu);
    const Tensor value = Tensor::empty(host, {1}, DType::kF64, MemoryClass::kData);
    *value.data<double>() = stage.rank() == 0 ? all : 0;
    copy(setting_.stream, value, result);
  }

  std::span<const int32_t> exponents() const override { return exact_.exponents(); }
  void set_exponents(std::vector<int32_t> exponents) override {
    exact_.set_exponents(std::move(exponents));
  }

 private:
  // The largest number of leaves that a parameter can have in a micro-batch: one from each block
  // that uses it, on each rank that has some of the rows.
  static int most_leaves(const ModelLayout& layout) {
    int most = 1;
    for (const Parameter* parameter : layout.parameters()) {
      most = parameter->wanted() ? std::max(most, parameter->blocks) : most;
    }
    return most * (layout.stage().size() / layout.groups().data.size());
  }

  std::vector<Extent> extents(Range range) const {
    return setting_.layout.flat().extents(range, range.begin);
  }

  ExactSums exact_;
  bool is_finite_ = true;  // whether all leaves of this step are
};

}  // namespace tandem
