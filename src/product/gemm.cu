#include "src/device/global.h"
#include "src/kernels/launch.cuh"
#include "src/kernels/sigmoid.cuh"
#include "src/product/gemm.h"

namespace tandem::kernels {

namespace {

constexpr int kTile = 16;  // rows and columns of a block's part of D; one thread an element

// Element (i, j) of op(matrix) is data[i * row_step + j * column_step].
template <class T>
struct Factor {
  Global<const T> data;
  int64_t row_step, column_step;

  explicit Factor(const Product::Operand& matrix)
      : data(matrix.data.data<T>()),
        row_step(matrix.transposed ? 1 : matrix.row_stride()),
        column_step(matrix.transposed ? matrix.row_stride() : 1) {}
  __device__ float load(int64_t i, int64_t j) const {
    return float(data.load(i * row_step + j * column_step));
  }
};

template <class T, class D>
struct SimpleProduct {
  int64_t m, n, k;
  Factor<T> a, b;
  Global<D> d;
  int64_t stride;  // of D
  float alpha, beta;
  Global<const D> bias;
  Epilogue epilogue;
  Global<D> gelu_input;

  // Rounds a finished sum and stores it, with what the epilogue asks for.
  __device__ void store(int64_t i, int64_t j, float sum) const {
    const int64_t at = i * stride + j;
    sum *= alpha;
    sum += beta == 0 ? 0.0f : beta * float(d.load(at));
    const D product = D(sum + (bias ? float(bias.load(j)) : 0.0f));
    if (epilogue == Epilogue::kGelu) {
      gelu_input.store(at, product);
      d.store(at, D(Gelu::value<GpuSigmoid>(float(product))));
    } else if (epilogue == Epilogue::kGeluGradient) {
      d.store(at, D(float(product) * Gelu::slope<GpuSigmoid>(float(gelu_input.load(at)))));
    } else {
      d.store(at, product);
    }
  }
};

struct Tiles {
  float a[kTile][kTile], b[kTile][kTile + 1];
};

template <class T, class D>
__global__ void simple_product_kernel(SimpleProduct<T, D> p) {
  Tiles& tiles = shared<Tiles>();
  const int64_t across = (p.n + kTile - 1) / kTile;
  const int y = static_cast<int>(threadIdx.y), x = static_cast<int>(threadIdx.x);
  const int64_t i = blockIdx.x / across * kTile + y, j = blockIdx.x % across * kTile + x;
  float sum = 0;
  for (int64_t first = 0; first < p.k; first += kTile) {
    tiles.a[y][x] = i < p.m && first + x < p.k ? p.a.load(i, first + x) : 0.0f;
    tiles.b[y][x] = first + y < p.k && j < p.n ? p.b.load(first + y, j) : 0.0f;
    __syncthreads();
    for (int depth = 0; depth < kTile; ++depth) {
      sum += tiles.a[y][depth] * tiles.b[depth][x];
    }
    __syncthreads();
  }
  if (i < p.m && j < p.n) {
    p.store(i, j, sum);
  }
}

template <class T, class D>
void simple(Cuda device, const Product& p) {
  const int64_t tiles = (p.m + kTile - 1) / kTile * ((p.n + kTile - 1) / kTile);
  launch<simple_product_kernel<T, D>>(
      device, static_cast<unsigned>(tiles), dim3(kTile, kTile), 0,
      SimpleProduct<T, D>{.m = p.m,
                          .n = p.n,
                          .k = p.k,
                          .a = Factor<T>(p.a),
                          .b = Factor<T>(p.b),
                          .d = p.d.data.data<D>(),
                          .stride = p.d.row_stride(),
                          .alpha = static_cast<float>(p.alpha),
                          .beta = static_cast<float>(p.beta),
                          .bias = p.bias ? p.bias.data<D>() : nullptr,
                          .epilogue = p.epilogue,
                          .gelu_input = p.gelu_input ? p.gelu_input.data<D>() : nullptr});
}

template <class T>
__global__ void compare_kernel(int64_t n, Global<const T> found, Global<const T> expected,
                               Global<const T> size, float slack, Global<int32_t> differs) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  int32_t any = 0;
  for (int64_t i = first; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const float a = float(found.load(i)), b = float(expected.load(i));
    const float most = size ? fmaxf(fabsf(b), fabsf(float(size.load(i)))) : fabsf(b);
    if (!(a == b || fabsf(a - b) <= slack * most || (a != a && b != b))) {
      any = 1;
    }
  }
  differs.store(first, any);
}

}  // namespace

void simple_product(Cuda device, const Product& p) {
  on_float(p.a.data.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      p.d.data.dtype() == DType::kF32 ? simple<T, float>(device, p) : simple<T, T>(device, p);
    }
  });
}

void compare(Cuda device, const Tensor& found, const Tensor& expected, const Tensor& size,
             float slack, int32_t* differs) {
  on_float(found.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      const int64_t n = found.elements();
      launch<compare_kernel<T>>(device, blocks_for(compare_threads(n), 256), 256, 0, n,
                                found.data<T>(), expected.data<T>(),
                                size ? size.data<T>() : nullptr, slack, differs);
    }
  });
}

}  // namespace tandem::kernels
