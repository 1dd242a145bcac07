#include "comm/sharding/sum_rule.h"

#include "comm/sharding/eight_bit_rule.h"
#include "comm/sharding/exact_rule.h"
#include "comm/sharding/rounded_rule.h"
#include "src/device/copy.h"
#include "src/kernels/convert.h"
#include "src/kernels/elementwise.h"

namespace tandem {

void SumRule::keep(const Tensor& sum, const Tensor& sums, bool add) const {
  Stream& stream = setting_.stream;
  if (!add) {
    return sum.dtype() == sums.dtype() ? copy(stream, sum, sums) : convert(stream, sum, sums);
  }
  on_device(stream, touching(sums, sum, sums), [&](auto device) {
    const auto add_to = [&]<class T>(T* to) {
      kernels::add(device, sums.elements(), to, sum.data<T>(), to);
    };
    sums.dtype() == DType::kI64 ? add_to(sums.data<int64_t>()) : add_to(sums.data<float>());
  });
}

void SumRule::squared_norm(std::span<const Tensor> own, const Tensor& result,
                           const Tensor& scratch) {
  Work work;
  std::vector<FlatArray> arrays;
  for (const Tensor& gradient : own) {
    work += touching(gradient);
    arrays.push_back({gradient.data<float>(), gradient.elements()});
  }
  const bool is_cuda = setting_.stream.device() == Device::kCuda;
  const auto list = is_cuda ? own_.list(setting_.stream, arrays) : ArrayList<FlatArray>{};
  on_device(setting_.stream, work, [&]<class D>(D device) {
    if constexpr (std::is_same_v<D, Cuda>) {
      tandem::squared_norm(device, list, result.data<double>(), scratch.data<double>());
    } else {
      *result.data<double>() = 0;
      for (const FlatArray& array : arrays) {
        tandem::squared_norm(device, array.data, array.elements, result.data<double>(),
                             scratch.data<double>(), true);
      }
    }
  });
}

std::unique_ptr<SumRule> make_sum_rule(const SumRule::Setting& setting,
                                       const StoreOptions& options) {
  const DType wire = options.wire_dtype;
  if (options.exact_micro_batches > 0) {
    if (wire != DType::kF32) {
      fail(ExitCode::kConfig, str("dist.reduce = exact sends 64-bit integers: dist.wire_dtype = ",
                                  name_of(wire), " excludes it; use dist.wire_dtype = f32"));
    }
    return std::make_unique<ExactRule>(setting, options.exact_micro_batches);
  }
  if (setting.layout.stage().size() == 1 || wire == DType::kF32) {
    return std::make_unique<SumRule>(setting);
  }
  if (wire == DType::kBf16) {
    return std::make_unique<RoundedRule>(setting);
  }
  return std::make_unique<EightBitRule>(setting);
}

}  // namespace tandem
