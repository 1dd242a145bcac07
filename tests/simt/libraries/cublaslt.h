// What tests can choose about the emulated cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <functional>

namespace simt {

struct CublasLtBehaviour {
  size_t version = 130100;
  // Algorithms for each product, numbered by rank. Algorithm i cuts the depth into i + 1 parts, and
  // adds their sums. So their results differ by roundings.
  int algorithms = 4;
  // What cublasLtMatmul says to an algorithm; null: success.
  std::function<cublasStatus_t(int algorithm, cublasLtEpilogue_t epilogue)> answer{};
  // Seconds that an algorithm takes by the clock of events, beside those that the emulation really
  // takes; null: none.
  std::function<double(int algorithm, cublasLtEpilogue_t epilogue)> seconds{};
  // Algorithms that give one element of D, or of the auxiliary matrix of GELU, another value.
  std::function<bool(int algorithm)> errs{};
  std::function<bool(int algorithm)> idles{};  // algorithms that write nothing
  bool errs_aside = false;
  int last_used = -1;  // the algorithm of the newest product
};
CublasLtBehaviour& cublas_lt();

}  // namespace simt
