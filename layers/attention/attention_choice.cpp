#include "layers/attention/attention_choice.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "src/core/rng.h"
#include "src/device/cuda.h"
#include "src/kernels/column_sums.h"
#include "src/product/measure.h"

namespace tandem {

namespace {

using cudnn_attention::Problem;

constexpr int kCodeBits = 16;

// Attention whose results are exact numbers, so that right kernels differ by few roundings.
//
// A position has a code, the number of its place in its half of the sequence. The first half of the
// width of queries and keys is made of the code's bits, each repeated, as 16 and -16. There queries
// end, and keys have other numbers. So a query has equal scores for its own position and for the
// one with the same code before it; all other scores are lower by at least 128, and their
// probabilities are 0 in f32. Probabilities are 1 in the first half of the sequence, and 1/2 in the
// second. Values and dy are small integers. So are, in quarters, all gradients of scores, and the
// terms of each sum have one sign or cancel exactly. A scale that is no power of 2, before or after
// gradients of scores are rounded, the probabilities, which f32 scores of 1024 give but for 2^-12,
// and the result are three roundings, u each.
class Trial {
 public:
  struct Result {
    Tensor y, log_sum, dqkv;
  };

  Trial(const Stream& stream, const Problem& problem)
      : stream_(stream), memory_(stream), p_(problem), sizes_{problem.layout, p_.batch, p_.length} {
    const int64_t row = p_.layout.row(), wide = p_.layout.heads * p_.layout.width;
    qkv_ = make({p_.batch, p_.length, row}, p_.dtype);
    dy_ = make({p_.batch, p_.length, wide}, p_.dtype);
    fill(qkv_, row, [this](int64_t position, int64_t column, bool bit) {
      return element(position, column, bit);
    });
    fill(dy_, wide, [](int64_t, int64_t, bool bit) { return bit; });
    const int64_t rows = p_.batch * p_.length;
    row_sums_ = make({std::max(kernels::attention_row_chunks(Device::kCuda, p_.dtype, p_.batch,
                                                             p_.length, p_.layout.width),
                               kernels::row_chunks(Device::kCuda, rows, row)),
                      row},
                     DType::kF32);
    own_workspace_ =
        make({kernels::attention_workspace(Device::kCuda, p_.dtype, sizes_)}, DType::kF32);
    own_ = make_result();
  }

  // Both passes by Tandem's kernels, with the sums of rows that they give on their way.
  void run_own() {
    on_device(stream_, {}, p_.dtype, [&]<class T>(auto device) {
      kernels::attention_forward(device, qkv_.data<T>(), nullptr, own_.y.data<T>(),
                                 own_.log_sum.data<Wide<T>>(), sizes_,
                                 own_workspace_.data<Wide<T>>());
      kernels::attention_backward(device, dy_.data<T>(), qkv_.data<T>(), nullptr, own_.y.data<T>(),
                                  own_.log_sum.data<Wide<T>>(), own_.dqkv.data<T>(), Wide<T>(0),
                                  sizes_, own_workspace_.data<Wide<T>>(),
                                  row_sums_.data<Wide<T>>());
    });
  }

  // Both passes by cuDNN, the second one from the results of Tandem's first, and a pass for the
  // sums of rows.
  void run_cudnn() {
    if (!theirs_.y) {
      theirs_ = make_result();
      const int64_t bytes = std::max(cudnn_attention::workspace_bytes(p_, Pass::kForward),
                                     cudnn_attention::workspace_bytes(p_, Pass::kBackward));
      workspace_ = make({(bytes + 3) / 4}, DType::kF32);
    }
    cudnn_attention::forward(stream_.handle(), p_, qkv_.raw(), theirs_.y.raw(),
                             theirs_.log_sum.data<float>(), workspace_.raw());
    cudnn_attention::backward(stream_.handle(), p_, dy_.raw(), qkv_.raw(), own_.y.raw(),
                              own_.log_sum.data<float>(), theirs_.dqkv.raw(), workspace_.raw());
    on_device(stream_, {}, p_.dtype, [&]<class T>(auto device) {
      kernels::sum_rows(device, theirs_.dqkv.data<T>(), row_sums_.data<Wide<T>>(),
                        p_.batch * p_.length, p_.layout.row());
    });
  }

  bool agree() {
    const double u = p_.dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
    const auto close = [&](const Tensor& found, const Tensor& expected, double slack) {
      return tandem::agree(stream_, memory_, found, expected, {}, slack);
    };
    return close(theirs_.y, own_.y, 3 * u) && close(theirs_.log_sum, own_.log_sum, 0x1p-20) &&
           close(theirs_.dqkv, own_.dqkv, 3 * u);
  }

 private:
  Tensor make(const Shape& shape, DType dtype) {
    Tensor tensor = Tensor::empty(memory_, shape, dtype, MemoryClass::kWorkspace);
    cuda::zero(tensor.raw(), tensor.bytes(), stream_.handle());
    return tensor;
  }
  Result make_result() {
    return {.y = make(dy_.shape(), p_.dtype),
            .log_sum = make({p_.batch, p_.layout.heads, p_.length}, DType::kF32),
            .dqkv = make(qkv_.shape(), p_.dtype)};
  }

  // An element of qkv: of a query, a key or a value.
  int element(int64_t position, int64_t column, bool bit) const {
    const auto& [heads, kv_heads, width] = p_.layout;
    const int64_t half = (p_.length + 1) / 2, head = column / width, at = column % width;
    if (head >= heads + kv_heads) {
      return (position < half) + bit;
    }
    if (at < width / 2) {
      return (position % half >> at % kCodeBits & 1) != 0 ? 16 : -16;
    }
    return head < heads ? 0 : 2 * bit - 1;
  }

  // `of`: an element by position, column and a random bit. All sequences are alike.
  template <class F>
  void fill(const Tensor& tensor, int64_t columns, F of) {
    const PhiloxKey key = random_key(static_cast<uint64_t>(columns), RandomUse::kInit);
    on_float(tensor.dtype(), [&]<class T>() {
      std::vector<T> numbers;
      for (int64_t i = 0; i < p_.length * columns; ++i) {
        const bool bit = (random_words(key, static_cast<uint64_t>(i))[0] & 1) != 0;
        numbers.push_back(T(static_cast<float>(of(i / columns, i % columns, bit))));
      }
      cuda::copy(numbers.data(), tensor.raw(), std::ssize(numbers) * size_of(tensor.dtype()),
                 stream_.handle());
      cuda::synchronize(stream_.handle());
    });
    repeat(stream_, tensor, p_.length * columns);
  }

  const Stream& stream_;
  Memory memory_;
  const Problem p_;
  const AttentionSizes sizes_;
  Tensor qkv_, dy_, row_sums_, own_workspace_, workspace_;
  Result own_, theirs_;
};

LibraryChoice measure(const Stream& stream, const Problem& problem, const Warn& warn) {
  Trial trial(stream, problem);
  LibraryChoice choice;
  choice.own_seconds = median_seconds(stream.handle(), [&] { trial.run_own(); });
  std::string fault;
  try {
    trial.run_cudnn();
    fault = trial.agree() ? "" : "gives another result than Tandem's kernels";
    if (fault.empty()) {
      choice.other_seconds = median_seconds(stream.handle(), [&] { trial.run_cudnn(); });
      choice.by_library = choice.other_seconds < kWorth * choice.own_seconds;
    }
  } catch (const Error& error) {
    fault = str("fails (", error.what(), ")");
  }
  if (!fault.empty()) {
    warn(str("cuDNN ", fault, ", and is left out, for ", problem.text()));
  }
  return choice;
}

// Says once if the run has chosen cuDNN, of whatever version.
void warn_of_missing(const KernelChoices& chosen, const std::string& any_version,
                     const std::string& why) {
  static bool is_said = false;
  const auto kept = chosen.libraries.lower_bound(any_version);
  if (!is_said && kept != chosen.libraries.end() && kept->first.starts_with(any_version) &&
      kept->second.by_library) {
    is_said = true;
    std::fprintf(stderr, "tandem: warning: Tandem's kernels take the place of the choice %s: %s\n",
                 kept->first.c_str(), why.c_str());
  }
}

}  // namespace

bool is_by_cudnn(const Stream& stream, const Problem& problem) {
  constexpr int64_t kLongest = int64_t{2} << kCodeBits;
  if (stream.device() == Device::kCpu || problem.length > kLongest ||
      !kernels::attention_on_tensor_cores(problem.dtype, problem.layout.width)) {
    return false;
  }
  const auto chosen = choices_in_use();
  if ((!chosen || chosen->libraries.empty()) && !ChoiceRecorder::is_active()) {
    return false;
  }
  const std::string any_version = problem.text() + ", cuDNN ";
  if (const std::string why = cudnn_attention::why_missing(); !why.empty()) {
    if (chosen) {
      warn_of_missing(*chosen, any_version, why);
    }
    return false;
  }
  const std::string name = any_version + cudnn_attention::version();
  ChoiceRecorder::note(
      name, [problem](const Stream& on, const Warn& warn) { return measure(on, problem, warn); });
  return chosen && chosen->libraries.contains(name) && chosen->libraries.at(name).by_library;
}

}  // namespace tandem
