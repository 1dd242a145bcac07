#include "src/autograd/parameter_sums.h"

#include <algorithm>

#include "src/autograd/context.h"
#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/kernels/column_sums.h"

namespace tandem {

Tensor sums_of_rows(const Context& context, const Tensor& matrix,
                    const std::source_location& place) {
  const int64_t columns = matrix.shape()[-1], rows = matrix.elements() / columns;
  Tensor partial =
      context.workspace({kernels::row_chunks(context.stream.device(), rows, columns), columns},
                        wide_of(matrix.dtype()));
  on_device(
      context.stream, touching(matrix, partial), matrix.dtype(),
      [&]<class T>(auto device) {
        kernels::sum_rows(device, matrix.data<T>(), partial.data<Wide<T>>(), rows, columns);
      },
      place);
  return partial;
}

void ParameterSums::add(Parameter& parameter, Tensor partial) {
  GradTarget gradient = grad_target(parameter);
  require(partial.shape()[1] == gradient.into.elements(), "sums over rows ", partial.shape(),
          " for parameter ", parameter.name, ", stored as ", gradient.into.shape());
  sums_.push_back({&parameter, std::move(gradient), std::move(partial)});
}

bool ParameterSums::misses(const Parameter* parameter) const {
  return std::ranges::find(sums_, parameter, &Sum::parameter) != sums_.end();
}

void ParameterSums::finish(const Stream& stream) {
  if (sums_.empty()) {
    return;
  }
  Work work;
  for (const Sum& sum : sums_) {
    work += touching(sum.partial, sum.gradient);
  }
  on_device(stream, work, sums_[0].partial.dtype(), [&]<class T>(auto device) {
    using W = Wide<T>;
    const auto rows_of = [](const Sum& sum) {
      return PartialRows<W>{sum.partial.data<W>(), sum.gradient.into.data<W>(),
                            sum.partial.shape()[0], sum.partial.shape()[1],
                            static_cast<W>(sum.gradient.beta)};
    };
    kernels::add_partial_rows<W>(device, mapped(sums_, rows_of));
  });
  sums_.clear();
}

}  // namespace tandem
