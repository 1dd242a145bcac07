#include "src/product/tune.h"

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

constexpr int kSamples = 5;           // timed runs, or bursts of runs, of an algorithm
constexpr double kBurst_s = 200e-6;   // a burst is long beside the resolution of events
constexpr int64_t kRandom = 1 << 20;  // different random numbers in an operand

// The median of the seconds that `run` takes on the stream; empty if it returns false.
std::optional<double> median_seconds(CUstream_st* stream, const std::function<bool()>& run) {
  const auto burst = [&](int runs) {
    const cuda::EventHandle begin = cuda::record(stream, true);
    bool is_good = true;
    for (int i = 0; i < runs; ++i) {
      is_good = run() && is_good;
    }
    const cuda::EventHandle end = cuda::record(stream, true);
    cuda::synchronize(end.get());
    return is_good ? std::optional(cuda::seconds_between(begin.get(), end.get()) / runs)
                   : std::nullopt;
  };
  if (!burst(1)) {  // loads the kernel
    return std::nullopt;
  }
  const double once = *burst(1);
  const int runs = static_cast<int>(std::clamp(kBurst_s / std::max(once, 1e-9), 1.0, 50.0));
  std::vector<double> seconds;
  for (int i = 0; i < kSamples; ++i) {
    seconds.push_back(*burst(runs));
  }
  std::ranges::nth_element(seconds, seconds.begin() + kSamples / 2);
  return seconds[kSamples / 2];
}

class Tuner {
 public:
  explicit Tuner(const Stream& stream) : stream_(stream), normal_(kRandom) {
    const PhiloxKey key = random_key(1, RandomUse::kInit);
    for (size_t i = 0; i < normal_.size(); i += 2) {
      const PhiloxCounter words = random_words(key, i);
      const std::array<double, 2> pair = normal_from(words[0], words[1]);
      normal_[i] = static_cast<float>(pair[0]);
      normal_[i + 1] = static_cast<float>(pair[1]);
    }
  }

  // A product as the key describes it, with operands of its own.
  Product product_of(const ProductKey& key, const Alignments& align, Memory& memory) {
    const auto random = [&](int64_t elements, DType dtype, uint32_t bytes) {
      const int64_t shift = bytes < alignment(nullptr) ? bytes / size_of(dtype) : 0;
      const Tensor whole =
          Tensor::empty(memory, {elements + shift}, dtype, MemoryClass::kWorkspace);
      return filled(whole.slice(shift, elements));
    };
    const auto matrix = [&](int64_t rows, int64_t columns, int64_t stride, bool transposed,
                            DType dtype, uint32_t bytes) {
      const int64_t lines = transposed ? columns : rows;
      return Product::Operand{
          .data = random(lines * stride, dtype, bytes), .stride = stride, .transposed = transposed};
    };
    Product p{.m = key.m, .n = key.n, .k = key.k};
    p.a = matrix(key.m, key.k, key.a_stride, key.a_transposed, key.in, align.a);
    p.b = matrix(key.k, key.n, key.b_stride, key.b_transposed, key.in, align.b);
    p.d = matrix(key.m, key.n, key.d_stride, false, key.out, align.d);
    p.beta = key.accumulates ? 1 : 0;
    if (key.has_bias) {
      p.bias = random(key.n, key.out, align.bias);
    }
    p.epilogue = key.epilogue;
    if (key.epilogue != Epilogue::kNone) {
      p.gelu_input = random(key.m * key.n, key.out, align.gelu_input);
    }
    return p;
  }

  // The fastest algorithm of cuBLASLt for the whole product; empty if there is none.
  std::optional<PlanTable::Row> fused(const Product& p, const Alignments& align) {
    if (!CublasLtProduct::is_possible(p)) {
      return std::nullopt;
    }
    CublasLtProduct descriptors(p);
    std::optional<PlanTable::Row> best;
    for (const cublasLtMatmulAlgo_t& algorithm : descriptors.suggestions(library_, p)) {
      const auto seconds = median_seconds(stream_.handle(), [&] {
        return descriptors.run(library_, stream_.handle(), p, algorithm);
      });
      if (!seconds) {
        continue;
      }
      if (!best) {
        best = PlanTable::Row{.alignments = align, .seconds = INFINITY, .first_seconds = *seconds};
      }
      ++best->candidates;
      if (*seconds < best->seconds) {
        best->seconds = *seconds;
        std::memcpy(best->algorithm.data(), &algorithm, sizeof algorithm);
      }
    }
    return best;
  }

  double seconds_of(const std::function<void()>& step) {
    return *median_seconds(stream_.handle(), [&] {
      step();
      return true;
    });
  }

  // The seconds of sums over the rows of D: of GELU's gradient they are the gradient of the bias
  // before GELU, and a separate last step takes them on its way.
  double seconds_of_row_sums(const Product& p, Memory& memory) {
    if (p.epilogue != Epilogue::kGeluGradient) {
      return 0;
    }
    const Tensor partial =
        Tensor::empty(memory, {kernels::row_chunks(Device::kCuda, p.m, p.n), p.n}, DType::kF32,
                      MemoryClass::kWorkspace);
    return seconds_of([&] {
      on_device(stream_, touching(p.d.data, partial), p.d.data.dtype(), [&]<class T>(auto device) {
        kernels::sum_rows(device, p.d.data.data<T>(), partial.data<Wide<T>>(), p.m, p.n);
      });
    });
  }

 private:
  // With normally distributed numbers, others for each tensor.
  Tensor filled(const Tensor& tensor) {
    const int64_t width = size_of(tensor.dtype()), first = std::min(tensor.elements(), kRandom);
    on_float(tensor.dtype(), [&]<class T>() {
      std::vector<T> numbers;
      for (int64_t i = 0; i < first; ++i) {
        numbers.push_back(T(normal_[static_cast<size_t>((i + offset_) % kRandom)]));
      }
      cuda::copy(numbers.data(), tensor.raw(), first * width, stream_.handle());
      cuda::synchronize(stream_.handle());
    });
    offset_ += 7919;
    for (int64_t done = first; done < tensor.elements(); done += first) {
      cuda::copy(tensor.raw(), tensor.raw() + done * width,
                 std::min(first, tensor.elements() - done) * width, stream_.handle());
    }
    return tensor;
  }

  const Stream& stream_;
  CublasLt library_;
  std::vector<float> normal_;
  int64_t offset_ = 0;
};

// Adds each product without its last step, and again without its last step.
ProductSet with_parts(const ProductSet& products) {
  ProductSet all = products;
  const auto add = [&](const ProductKey& key, const Alignments& align) {
    Alignments& least = all.try_emplace(key, align).first->second;
    least = least.smallest(align);
  };
  for (const auto& [whole, alignments] : products) {
    ProductKey key = whole;
    Alignments align = alignments;
    if (key.epilogue != Epilogue::kNone) {
      align.d = key.epilogue == Epilogue::kGelu ? align.gelu_input : align.d;
      align.gelu_input = alignment(nullptr);
      key.epilogue = Epilogue::kNone;
      add(key, align);
    }
    if (key.has_bias) {
      align.bias = alignment(nullptr);
      key.has_bias = false;
      add(key, align);
    }
  }
  return all;
}

}  // namespace

PlanTable tune_products(const Stream& stream, const ProductSet& products,
                        const TuneProgress& progress) {
  PlanTable table{.cublas_lt = CublasLt::version(), .gpu = cuda::device_name()};
  Tuner tuner(stream);
  // Parts come before the whole: the order of keys is by sizes, then bias, then epilogue.
  for (const auto& [key, align] : with_parts(products)) {
    Memory memory(stream);
    const Product p = tuner.product_of(key, align, memory);
    std::optional<PlanTable::Row> row = tuner.fused(p, align);
    if (key.has_bias || key.epilogue != Epilogue::kNone) {
      const Product part = without_last_step(p);
      if (const auto* rest = table.find(ProductKey::of(part), Alignments::of(part))) {
        const double last = tuner.seconds_of([&] { last_step(stream, p); });
        const PlanTable::Row separate{.alignments = align,
                                      .is_fused = false,
                                      .seconds = rest->seconds + last,
                                      .first_seconds = rest->first_seconds + last,
                                      .candidates = rest->candidates};
        const double sums = tuner.seconds_of_row_sums(p, memory);
        row = row && row->seconds + sums <= separate.seconds ? row : separate;
      }
    }
    if (row) {
      table.rows.emplace(key, *row);
    }
    progress(key, row ? &*row : nullptr);
  }
  return table;
}

void require_fitting(const PlanTable& table, const std::string& origin) {
  const auto require_same = [&](const std::string& there, const std::string& here) {
    if (there != here) {
      fail(ExitCode::kConfig, str(origin, ": plans for ", there, ", and this is ", here,
                                  "; make another table here with tandem bench gemm, and give its "
                                  "name to run.gemm_plans"));
    }
  };
  require_same(table.cublas_lt, CublasLt::version());
  require_same(table.gpu, cuda::device_name());
}

}  // namespace tandem
