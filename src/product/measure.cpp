#include "src/product/measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "src/core/rng.h"
#include "src/device/cuda.h"
#include "src/kernels/column_sums.h"
#include "src/product/cublas_lt.h"
#include "src/product/gemm.h"

namespace tandem {

namespace {

constexpr size_t kMeasured = 8;      // suggestions
constexpr int kSamples = 5;          // timed runs, or bursts of runs, of a suggestion
constexpr double kBurst_s = 200e-6;  // a burst is long beside the resolution of events
constexpr int kMostRuns = 10;        // in a burst
constexpr int64_t kRandom = 65521;   // numbers of an operand, then repeated; a prime: rows differ
constexpr int64_t kExact = 1 << 24;  // integers up to it are exact in f32

// How far two results of a fused GELU may be apart, as a share of |d| and |gelu_input|: by 1.13 u
// before D is rounded and u for either rounding (product.h), and by f32 errors of two GELUs.
double band(DType dtype) {
  const double unit = dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
  return 4 * unit + 0x1p-20;
}

// One product as the key describes it, with operands of its own.
class Trial {
 public:
  Trial(const Stream& stream, const ProductKey& key, const Alignments& align)
      : stream_(stream), memory_(stream), most_(key.k * 16 <= kExact ? 4 : 1) {
    const auto matrix = [&](int64_t rows, int64_t columns, int64_t row_stride, bool transposed,
                            DType dtype, uint32_t bytes) {
      const int64_t lines = transposed ? columns : rows;
      return Product::Operand{.data = operand(lines * row_stride, dtype, bytes),
                              .stride = row_stride,
                              .transposed = transposed};
    };
    product.m = key.m;
    product.n = key.n;
    product.k = key.k;
    product.a = matrix(key.m, key.k, key.a_stride, key.a_transposed, key.in, align.a);
    product.b = matrix(key.k, key.n, key.b_stride, key.b_transposed, key.in, align.b);
    product.d = matrix(key.m, key.n, key.d_stride, false, key.out, align.d);
    product.beta = key.accumulates ? 1 : 0;
    product.epilogue = key.epilogue;
    product.bias = key.has_bias ? operand(key.n, key.out, align.bias) : Tensor();
    if (key.epilogue != Epilogue::kNone) {
      product.gelu_input = operand(key.m * key.n, key.out, align.gelu_input);
    }
    expected_ = product;
    expected_.d.data = like(product.d.data);
    if (key.epilogue == Epilogue::kGelu) {
      expected_.gelu_input = like(product.gelu_input);
    }
    fill(product.a.data, 1, -most_, most_);
    fill(product.b.data, 2, -most_, most_);
    fill(product.bias, 3, -most_, most_);
    if (key.epilogue == Epilogue::kGeluGradient) {
      fill(product.gelu_input, 4, 0, 3);  // where the slope is at least 1/2, so that |x| <= 2 |d|
    }
  }

  // Runs the product once, and says whether it gives what our own kernel gives.
  bool is_right(const std::function<void()>& run) {
    if (!is_expected_) {
      prepare(expected_);
      kernels::simple_product(Cuda{stream_.handle()}, expected_);
      is_expected_ = true;
    }
    prepare(product);
    run();
    const bool forward = product.epilogue == Epilogue::kGelu;
    const double slack = product.epilogue == Epilogue::kNone ? 0 : 2 * band(product.d.data.dtype());
    return agree(stream_, memory_, product.d.data, expected_.d.data,
                 forward ? expected_.gelu_input : Tensor(), slack) &&
           (!forward || agree(stream_, memory_, product.gelu_input, expected_.gelu_input, {}, 0));
  }

  // The seconds of sums over the rows of D: of GELU's gradient they are the gradient of the bias
  // before GELU, and a separate last step takes them on its way.
  double seconds_of_row_sums() {
    if (product.epilogue != Epilogue::kGeluGradient) {
      return 0;
    }
    const Tensor& d = product.d.data;
    const int64_t m = product.m, n = product.n;
    const Tensor partial = Tensor::empty(memory_, {kernels::row_chunks(Device::kCuda, m, n), n},
                                         DType::kF32, MemoryClass::kWorkspace);
    return median_seconds(stream_.handle(), [&] {
      on_device(stream_, touching(d, partial), d.dtype(), [&]<class T>(auto device) {
        kernels::sum_rows(device, d.data<T>(), partial.data<Wide<T>>(), m, n);
      });
    });
  }

  Product product;

 private:
  Tensor operand(int64_t elements, DType dtype, uint32_t bytes) {
    const int64_t shift = bytes < alignment(nullptr) ? bytes / size_of(dtype) : 0;
    return Tensor::empty(memory_, {elements + shift}, dtype, MemoryClass::kWorkspace)
        .slice(shift, elements);
  }
  Tensor like(const Tensor& tensor) {
    return Tensor::empty(memory_, tensor.shape(), tensor.dtype(), MemoryClass::kWorkspace);
  }

  // Fills a tensor with random integers; an empty one stays.
  void fill(const Tensor& tensor, uint64_t seed, int least, int most) {
    if (!tensor) {
      return;
    }
    const int64_t first = std::min(tensor.elements(), kRandom);
    const PhiloxKey key = random_key(seed, RandomUse::kInit);
    on_float(tensor.dtype(), [&]<class T>() {
      std::vector<T> numbers;
      for (int64_t i = 0; i < first; ++i) {
        const uint32_t word = random_words(key, static_cast<uint64_t>(i))[0];
        const auto choices = static_cast<uint32_t>(most - least + 1);
        numbers.push_back(T(static_cast<float>(least + static_cast<int>(word % choices))));
      }
      cuda::copy(numbers.data(), tensor.raw(), first * size_of(tensor.dtype()), stream_.handle());
      cuda::synchronize(stream_.handle());
    });
    repeat(stream_, tensor, first);
  }

  // Prepares the memory of results, so that nothing is left of an earlier run.
  void prepare(const Product& p) {
    cuda::zero(p.d.data.raw(), p.d.data.bytes(), stream_.handle());
    if (p.beta != 0) {
      fill(p.d.data, 5, -most_, most_);
    }
    if (p.epilogue == Epilogue::kGelu) {
      cuda::zero(p.gelu_input.raw(), p.gelu_input.bytes(), stream_.handle());
    }
  }

  const Stream& stream_;
  Memory memory_;
  int most_;  // so that k most^2 is exact
  Product expected_;
  bool is_expected_ = false;
};

class Measurement {
 public:
  Measurement(const Stream& stream, const Warn& warn) : stream_(stream), warn_(warn) {}

  // The fastest right suggestion of cuBLASLt for the whole product; empty if there is none.
  std::optional<ProductChoice> fused(Trial& trial, const Alignments& align) {
    const Product& p = trial.product;
    if (!CublasLtProduct::is_possible(p)) {
      return std::nullopt;
    }
    CublasLtProduct descriptors(p);
    std::vector<cublasLtMatmulAlgo_t> suggestions = descriptors.suggestions(library_, p);
    std::optional<ProductChoice> best;
    bool any_wrong = false;
    for (size_t i = 0; i < std::min(suggestions.size(), kMeasured); ++i) {
      bool is_refused = false;
      const auto run = [&] {
        is_refused = !descriptors.run(library_, stream_.handle(), p, suggestions[i]) || is_refused;
      };
      const std::string fault = fault_of(trial, run);
      if (is_refused) {
        continue;
      }
      if (!fault.empty()) {
        any_wrong = true;
        warn_(
            str("suggestion ", i + 1, " of cuBLASLt ", fault, ", and is left out, for ", p.text()));
        continue;
      }
      const double seconds = median_seconds(stream_.handle(), run);
      if (!best) {
        best = ProductChoice{.alignments = align, .seconds = INFINITY, .first_seconds = seconds};
      }
      if (seconds < kWorth * best->seconds) {
        best->seconds = seconds;
        std::memcpy(best->algorithm.data(), &suggestions[i], sizeof suggestions[i]);
      }
    }
    if (!best && any_wrong && !p.bias && p.epilogue == Epilogue::kNone) {
      fail(ExitCode::kInternal, "no suggestion of ", CublasLt::version(), " computes ", p.text(),
           " rightly; use another version of CUDA");
    }
    return best;
  }

  double seconds_of_last_step(const Trial& trial) {
    return median_seconds(stream_.handle(), [&] { last_step(stream_, trial.product); });
  }

 private:
  // Says what is wrong with a way of computing; "" if nothing is.
  static std::string fault_of(Trial& trial, const std::function<void()>& run) {
    try {
      return trial.is_right(run) ? "" : "gives another result than Tandem's kernel";
    } catch (const Error& error) {
      if (error.code() == ExitCode::kOutOfMemory) {
        throw;
      }
      return str("fails (", error.what(), ")");
    }
  }

  const Stream& stream_;
  const Warn& warn_;
  CublasLt library_;
};

// Adds each product without its last step, and again without its last step.
ProductSet with_parts(const ProductSet& products) {
  ProductSet all = products;
  for (const auto& [whole, alignments] : products) {
    ProductKey key = whole;
    Alignments align = alignments;
    if (key.epilogue != Epilogue::kNone) {
      align.d = key.epilogue == Epilogue::kGelu ? align.gelu_input : align.d;
      align.gelu_input = alignment(nullptr);
      key.epilogue = Epilogue::kNone;
      add(all, key, align);
    }
    if (key.has_bias) {
      align.bias = alignment(nullptr);
      key.has_bias = false;
      add(all, key, align);
    }
  }
  return all;
}

}  // namespace

double median_seconds(CUstream_st* stream, const std::function<void()>& run) {
  const auto burst = [&](int runs) {
    const cuda::EventHandle begin = cuda::record(stream, true);
    for (int i = 0; i < runs; ++i) {
      run();
    }
    const cuda::EventHandle end = cuda::record(stream, true);
    cuda::synchronize(end.get());
    return cuda::seconds_between(begin.get(), end.get()) / runs;
  };
  burst(1);  // loads the kernel
  const double most = kBurst_s / std::max(burst(1), 1e-9);
  const int runs = static_cast<int>(std::clamp(most, 1.0, double{kMostRuns}));
  std::vector<double> seconds;
  for (int i = 0; i < kSamples; ++i) {
    seconds.push_back(burst(runs));
  }
  std::ranges::nth_element(seconds, seconds.begin() + kSamples / 2);
  return seconds[kSamples / 2];
}

bool agree(const Stream& stream, Memory& memory, const Tensor& found, const Tensor& expected,
           const Tensor& size, double slack) {
  const int64_t threads = kernels::compare_threads(found.elements());
  const Tensor differs = Tensor::empty(memory, {threads}, DType::kI32, MemoryClass::kWorkspace);
  kernels::compare(Cuda{stream.handle()}, found, expected, size, static_cast<float>(slack),
                   differs.data<int32_t>());
  std::vector<int32_t> host(static_cast<size_t>(threads));
  cuda::copy(differs.raw(), host.data(), differs.bytes(), stream.handle());
  cuda::synchronize(stream.handle());
  return std::ranges::count(host, 0) == threads;
}

void repeat(const Stream& stream, const Tensor& tensor, int64_t first) {
  const int64_t width = size_of(tensor.dtype());
  for (int64_t done = first; done < tensor.elements(); done *= 2) {
    cuda::copy(tensor.raw(), tensor.raw() + done * width,
               std::min(done, tensor.elements() - done) * width, stream.handle());
  }
}

KernelChoices no_choices() {
  return {.gpu = cuda::device_name(), .cublas_lt = CublasLt::version()};
}

KernelChoices measure(const Stream& stream, const OpenChoices& open, const Warn& warn) {
  KernelChoices choices = measure_products(stream, open.products, warn);
  for (const auto& [name, measure_library] : open.libraries) {
    choices.libraries.emplace(name, measure_library(stream, warn));
  }
  return choices;
}

KernelChoices measure_products(const Stream& stream, const ProductSet& products, const Warn& warn) {
  KernelChoices choices = no_choices();
  Measurement measurement(stream, warn);
  // Parts come before the whole: the order of keys is by sizes, then bias, then epilogue.
  for (const auto& [key, align] : with_parts(products)) {
    Trial trial(stream, key, align);
    std::optional<ProductChoice> choice = measurement.fused(trial, align);
    if (key.has_bias || key.epilogue != Epilogue::kNone) {
      const Product part = without_last_step(trial.product);
      if (const auto* rest = choices.find(ProductKey::of(part), Alignments::of(part))) {
        const double last = measurement.seconds_of_last_step(trial);
        const ProductChoice separate{.alignments = align,
                                     .is_fused = false,
                                     .seconds = rest->seconds + last,
                                     .first_seconds = rest->first_seconds + last};
        const double sums = trial.seconds_of_row_sums();
        choice = choice && choice->seconds + sums <= separate.seconds ? choice : separate;
      }
    }
    if (choice) {
      choices.products.emplace(key, *choice);
    }
  }
  return choices;
}

}  // namespace tandem
