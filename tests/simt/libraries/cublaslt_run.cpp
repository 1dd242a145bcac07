// What the products of the emulated cuBLASLt are: sums in f32 in the order of the depth, which an
// algorithm cuts into parts.
#include <cmath>
#include <cstring>
#include <vector>

#include "src/core/float16.h"
#include "tests/simt/libraries/cublaslt.h"
#include "tests/simt/libraries/cublaslt_product.h"
#include "tests/simt/simt.h"

namespace simt::cublas {

namespace {

using tandem::Bf16;
using tandem::Fp16;

size_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

template <class F>
auto with_type(cudaDataType_t type, F f) {
  switch (type) {
    case CUDA_R_16F:
      return f(Fp16{});
    case CUDA_R_16BF:
      return f(Bf16{});
    default:
      return f(float{});
  }
}

// op(matrix) as f32 [outer, inner]. `inner` runs fastest; it indexes the operand's rows when
// `inner_is_row`, otherwise its columns.
std::vector<float> widened(const void* data, const Layout& layout, bool inner_is_row) {
  std::vector<float> result(layout.rows * layout.columns);
  with_type(layout.type, [&]<class T>(T) {
    const T* from = static_cast<const T*>(data);
    const auto stride = static_cast<uint64_t>(layout.stride);
    for (uint64_t column = 0; column < layout.columns; ++column) {
      for (uint64_t row = 0; row < layout.rows; ++row) {
        const uint64_t at =
            inner_is_row ? column * layout.rows + row : row * layout.columns + column;
        result[at] = static_cast<float>(from[column * stride + row]);
      }
    }
  });
  return result;
}

void check_operand(const void* data, const Layout& layout, const char* name) {
  const auto elements = static_cast<size_t>(layout.stride) * (layout.columns - 1) + layout.rows;
  simt::check_range(data, elements * size_of(layout.type), name);
}

// GELU in the form of the library's documentation, and its derivative.
constexpr float kGeluFactor = 0.7978845608028654f, kGeluCube = 0.044715f;
float gelu(float x) {
  return 0.5f * x * (1.0f + std::tanh(kGeluFactor * (x + kGeluCube * x * x * x)));
}
float gelu_slope(float x) {
  const float t = std::tanh(kGeluFactor * (x + kGeluCube * x * x * x));
  return 0.5f * (1.0f + t) +
         0.5f * x * (1.0f - t * t) * kGeluFactor * (1.0f + 3.0f * kGeluCube * x * x);
}

// What is stored for a finished sum. The epilogue starts from the sum before it is rounded.
template <class T>
T finished(const Operation& operation, float value, uint64_t row, uint64_t column) {
  if (operation.has_bias()) {
    value += static_cast<float>(static_cast<const T*>(operation.bias)[row]);
  }
  if (!operation.has_aux()) {
    return static_cast<T>(value);
  }
  T& aux =
      static_cast<T*>(operation.aux)[column * static_cast<uint64_t>(operation.aux_stride) + row];
  if (operation.epilogue == CUBLASLT_EPILOGUE_DGELU) {
    return static_cast<T>(value * gelu_slope(static_cast<float>(aux)));
  }
  aux = static_cast<T>(value);
  return static_cast<T>(gelu(value));
}

void take_time(const Call& call) {
  if (const auto& seconds = simt::cublas_lt().seconds) {
    pass_time(seconds(call.algorithm, call.product.operation.epilogue));
  }
}

}  // namespace

void run(const Call& call) {
  const Product& p = call.product;
  check_operand(call.a, p.a, "A of cublasLtMatmul");
  check_operand(call.b, p.b, "B of cublasLtMatmul");
  check_operand(call.d, p.d, "D of cublasLtMatmul");
  simt::check_range(call.workspace, kWorkspaceBytes, "workspace of cublasLtMatmul");
  if (p.operation.has_bias()) {
    simt::check_range(p.operation.bias, p.m * size_of(p.d.type), "bias of cublasLtMatmul");
  }
  if (p.operation.has_aux()) {
    const uint64_t stride = static_cast<uint64_t>(p.operation.aux_stride);
    simt::check_range(p.operation.aux, (stride * (p.n - 1) + p.m) * size_of(p.d.type),
                      "auxiliary matrix of cublasLtMatmul");
  }
  take_time(call);
  if (const auto& idles = simt::cublas_lt().idles; idles && idles(call.algorithm)) {
    return;
  }
  std::memset(call.workspace, 0xA5, kWorkspaceBytes);
  const std::vector<float> a =
      widened(call.a, p.a, p.operation.transpose_a == CUBLAS_OP_N);  // [k, m]
  const std::vector<float> b =
      widened(call.b, p.b, p.operation.transpose_b == CUBLAS_OP_T);  // [k, n]
  with_type(p.d.type, [&]<class T>(T) {
    const T* c = static_cast<const T*>(call.c);
    T* d = static_cast<T*>(call.d);
    const uint64_t parts = static_cast<uint64_t>(call.algorithm) + 1;
    std::vector<float> sum(p.m), part(p.m);
    for (uint64_t column = 0; column < p.n; ++column) {
      sum.assign(p.m, 0.0f);
      for (uint64_t i = 0; i < parts; ++i) {
        part.assign(p.m, 0.0f);
        for (uint64_t depth = p.k * i / parts; depth < p.k * (i + 1) / parts; ++depth) {
          const float factor = b[depth * p.n + column];
          for (uint64_t row = 0; row < p.m; ++row) {
            part[row] += a[depth * p.m + row] * factor;
          }
        }
        for (uint64_t row = 0; row < p.m; ++row) {
          sum[row] += part[row];
        }
      }
      for (uint64_t row = 0; row < p.m; ++row) {
        const uint64_t at = column * static_cast<uint64_t>(p.d.stride) + row;
        float value = call.alpha * sum[row];
        value += call.beta == 0 ? 0.0f : call.beta * static_cast<float>(c[at]);
        d[at] = finished<T>(p.operation, value, row, column);
      }
    }
    const simt::CublasLtBehaviour& behaviour = simt::cublas_lt();
    if (behaviour.errs && behaviour.errs(call.algorithm)) {
      d[p.m - 1] = static_cast<T>(static_cast<float>(d[p.m - 1]) + 64);
    }
    if (behaviour.errs_aside && p.operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX) {
      static_cast<T*>(p.operation.aux)[0] = static_cast<T>(-1000.0f);
    }
  });
}

}  // namespace simt::cublas
