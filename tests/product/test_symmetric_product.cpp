// Products that are known to be symmetric. The CPU computes half of them.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "src/core/error.h"
#include "src/product/product.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// G = A A^T, and after it 0.3 G G - 0.7 G. A is stored as [k, n] if `is_flipped`. If the products
// are known to be symmetric, the last G to be added to is NaN above its diagonal.
template <class T, class D>
std::vector<double> products(int64_t n, int64_t k, bool is_flipped, bool is_symmetric) {
  const Tensor a = rounded_to(
      random_tensor({is_flipped ? k : n, is_flipped ? n : k}, DType::kF32, 1, 0.1), dtype_of<T>);
  const Tensor gram = unwritten({n, n}, dtype_of<D>);
  multiply(test_stream(), {.m = n,
                           .n = n,
                           .k = k,
                           .a = {.data = a, .transposed = is_flipped},
                           .b = {.data = a, .transposed = !is_flipped},
                           .d = {.data = gram},
                           .is_symmetric = is_symmetric});
  const Tensor sum = to_host(gram);
  for (int64_t i = 0; i < n && is_symmetric; ++i) {
    std::fill(sum.data<D>() + i * n + i + 1, sum.data<D>() + (i + 1) * n, D(NAN));
  }
  multiply(test_stream(), {.m = n,
                           .n = n,
                           .k = n,
                           .a = {.data = gram},
                           .b = {.data = gram},
                           .d = {.data = sum},
                           .alpha = 0.3,
                           .beta = -0.7,
                           .is_symmetric = is_symmetric});
  std::vector<double> both = values_of(gram);
  std::ranges::copy(values_of(sum), std::back_inserter(both));
  return both;
}

// With any number of threads. Sizes are below, at and above those of groups, blocks and pieces.
template <class T, class D>
void check() {
  for (const int64_t n : {1, 7, 33, 128, 250, 520}) {
    for (const bool is_flipped : {false, true}) {
      const std::vector<double> whole = products<T, D>(n, 420, is_flipped, false);
      for (const int threads : {1, 2, 3}) {
        SCOPED_TRACE(str(n, is_flipped ? ", flipped, " : ", ", threads, " threads, ",
                         name_of(dtype_of<T>), " into ", name_of(dtype_of<D>)));
        omp_set_num_threads(threads);
        ASSERT_TRUE((products<T, D>(n, 420, is_flipped, true) == whole));
        omp_set_num_threads(omp_get_num_procs());
      }
    }
  }
}

TEST(SymmetricProduct, HasTheBitsOfAWholeOne) {
  check<float, float>();
  check<double, double>();
  check<Bf16, Bf16>();
  check<Bf16, float>();
  check<Fp16, Fp16>();
}

TEST(SymmetricProduct, IsSquare) {
  const Tensor matrix = random_tensor({2, 3}, DType::kF32, 1);
  const auto body = [&] {
    multiply(test_stream(), {.m = 2,
                             .n = 3,
                             .k = 2,
                             .a = {.data = random_tensor({2, 2}, DType::kF32, 2)},
                             .b = {.data = matrix},
                             .d = {.data = matrix},
                             .is_symmetric = true});
  };
  EXPECT_NE(message_of(body).find("D can only be symmetric if m = n"), std::string::npos);
}

}  // namespace
}  // namespace tandem::testing
