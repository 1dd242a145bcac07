// The interface of cuBLASLt on the emulated GPU: descriptors, algorithms, and the rules of the
// library. cublaslt.h says what tests can choose, and cublaslt_run.cpp computes.
//
// A call that breaks a rule of the library is a failure: descriptors that were never initialised or
// do not fit each other, combinations of types that the library lacks, an algorithm used for
// another product or for operands less aligned than promised, a workspace that is too small.
#include "tests/simt/libraries/cublaslt.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/simt/launch.h"
#include "tests/simt/libraries/cublaslt_product.h"
#include "tests/simt/simt.h"

struct cublasLtContext {};

namespace {

using simt::cublas::Call;
using simt::cublas::kWorkspaceBytes;
using simt::cublas::Layout;
using simt::cublas::Operation;
using simt::cublas::Product;

// --- The contents of the opaque descriptors. ---

struct Preference {
  static constexpr uint64_t kMark = 0x7072656665722069;
  uint64_t mark = kMark;
  uint64_t workspace_bytes = 0;
  uint32_t reductions = 7;
  std::array<uint32_t, 4> align = {256, 256, 256, 256};  // bytes; of A, B, C, D
};

// An algorithm records the product and the alignments that it was chosen for.
struct Algorithm {
  static constexpr uint64_t kMark = 0x616c676f72697468;
  uint64_t mark = kMark;
  uint64_t product;  // hash
  std::array<uint32_t, 4> align;
  int number;
  int padding = 0;  // so that equal algorithms have equal bytes
};

template <class D, class Opaque>
void write(const D& description, Opaque* opaque) {
  static_assert(sizeof(D) <= sizeof(Opaque));
  *opaque = {};
  std::memcpy(opaque->data, &description, sizeof description);
}

template <class D, class Opaque>
D read(const Opaque* opaque, const char* what) {
  D description;
  if (!opaque) {
    simt::fail("cublasLt: null descriptor", what);
  }
  std::memcpy(static_cast<void*>(&description), opaque->data, sizeof description);
  if (description.mark != D::kMark) {
    simt::fail("cublasLt: descriptor was not initialised", what);
  }
  return description;
}

template <class V>
void take(V& into, const void* value, size_t bytes) {
  if (bytes != sizeof(V)) {
    simt::fail("cublasLt: attribute of the wrong size");
  }
  std::memcpy(&into, value, bytes);
}

// --- One product. ---

std::string text(const Product& p) {
  return "m " + std::to_string(p.m) + ", n " + std::to_string(p.n) + ", k " + std::to_string(p.k);
}

void require(bool ok, const char* what, const Product& product) {
  if (!ok) {
    simt::fail(std::string("cublasLt: ") + what, text(product));
  }
}

Product product_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  Product p{read<Operation>(operation, "operation"),
            read<Layout>(a, "A"),
            read<Layout>(b, "B"),
            read<Layout>(c, "C"),
            read<Layout>(d, "D"),
            0,
            0,
            0};
  const bool a_flipped = p.operation.transpose_a == CUBLAS_OP_T;
  const bool b_flipped = p.operation.transpose_b == CUBLAS_OP_T;
  p.m = p.d.rows;
  p.n = p.d.columns;
  p.k = a_flipped ? p.a.rows : p.a.columns;
  require((a_flipped ? p.a.columns : p.a.rows) == p.m, "rows of A and D differ", p);
  require((b_flipped ? p.b.rows : p.b.columns) == p.n, "columns of B and D differ", p);
  require((b_flipped ? p.b.columns : p.b.rows) == p.k, "depths of A and B differ", p);
  require(p.m > 0 && p.n > 0 && p.k > 0, "empty product", p);
  require(p.c.rows == p.m && p.c.columns == p.n && p.c.stride == p.d.stride, "C differs from D", p);
  for (const Layout* one : {&p.a, &p.b, &p.c, &p.d}) {
    require(one->stride >= static_cast<int64_t>(one->rows), "stride shorter than a column", p);
  }
  require(p.a.type == p.b.type, "types of A and B differ", p);
  require(p.c.type == p.d.type, "types of C and D differ", p);
  require(p.d.type == p.a.type || p.d.type == CUDA_R_32F, "no such combination of types", p);
  const auto is_aligned = [](const void* data) {
    return data && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  require(p.operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT || p.d.type == p.a.type,
          "an epilogue needs D of A's type", p);
  require(!p.operation.has_bias() || is_aligned(p.operation.bias),
          "no bias pointer that is aligned to 16 bytes", p);
  require(
      !p.operation.has_aux() || (is_aligned(p.operation.aux) && p.operation.aux_stride % 8 == 0 &&
                                 p.operation.aux_stride >= static_cast<int64_t>(p.m)),
      "no auxiliary matrix, aligned to 16 bytes and with a stride of a multiple of 8", p);
  return p;
}

// FNV-1a over everything but addresses.
uint64_t hash(const Product& p) {
  uint64_t value = 0xcbf29ce484222325;
  const auto add = [&](auto number) {
    value = (value ^ static_cast<uint64_t>(number)) * 0x100000001b3;
  };
  add(p.operation.transpose_a);
  add(p.operation.transpose_b);
  add(p.operation.epilogue);
  add(p.operation.aux_stride);
  for (const Layout* one : {&p.a, &p.b, &p.d}) {
    add(one->rows);
    add(one->columns);
    add(one->stride);
    add(one->type);
  }
  return value;
}

}  // namespace

simt::CublasLtBehaviour& simt::cublas_lt() {
  static CublasLtBehaviour behaviour = [] {
    CublasLtBehaviour result;
    const char* set = std::getenv("TANDEM_SIMT_CUBLASLT");
    const std::string wish = set ? set : "";
    if (wish == "refuse") {
      result.answer = [](int, cublasLtEpilogue_t) { return CUBLAS_STATUS_NOT_SUPPORTED; };
    }
    if (wish.starts_with("timed")) {
      result.seconds = [](int algorithm, cublasLtEpilogue_t epilogue) {
        return 1 + (algorithm + 3) % 4 + (epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 0.5 : 0);
      };
    }
    if (wish == "timed-errs") {
      result.errs = [](int algorithm) { return algorithm == 1; };
    }
    return result;
  }();
  return behaviour;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "a status that the emulation never gives";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t) { return "the emulated cuBLASLt"; }

size_t cublasLtGetVersion() { return simt::cublas_lt().version; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    static_cast<void>(cudaGetLastError());
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType type,
                                        uint64_t rows, uint64_t columns, int64_t stride) {
  write(Layout{.rows = rows, .columns = columns, .stride = stride, .type = type}, layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t compute,
                                      cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
    simt::fail("cublasLt: compute type that is not emulated");
  }
  write(Operation{}, operation);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Operation description = read<Operation>(operation, "operation");
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      take(description.transpose_a, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      take(description.transpose_b, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      take(description.epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      take(description.bias, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      take(description.aux, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      take(description.aux_stride, value, bytes);
      break;
    default:
      simt::fail("cublasLt: attribute that is not emulated", std::to_string(attribute));
  }
  write(description, operation);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  write(Preference{}, preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference description = read<Preference>(preference, "preference");
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      take(description.workspace_bytes, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      take(description.reductions, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      take(description.align[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
      break;
    default:
      simt::fail("cublasLt: preference that is not emulated", std::to_string(attribute));
  }
  write(description, preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  const Product product = product_of(operation, a, b, c, d);
  const Preference wish = read<Preference>(preference, "preference");
  require(handle && wanted > 0, "no handle, or no result wanted", product);
  *found =
      wish.workspace_bytes >= kWorkspaceBytes ? std::min(wanted, simt::cublas_lt().algorithms) : 0;
  for (int i = 0; i < *found; ++i) {
    results[i] = {.algo = {},
                  .workspaceSize = kWorkspaceBytes,
                  .state = CUBLAS_STATUS_SUCCESS,
                  .wavesCount = 1,
                  .reserved = {}};
    write(Algorithm{.product = hash(product), .align = wish.align, .number = i}, &results[i].algo);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Product product = product_of(operation, a_layout, b_layout, c_layout, d_layout);
  const auto chosen = read<Algorithm>(algorithm, "algorithm");
  require(handle, "no handle", product);
  require(chosen.product == hash(product), "the algorithm was chosen for another product", product);
  for (int i = 0; const void* operand : {a, b, c, static_cast<const void*>(d)}) {
    require(reinterpret_cast<uintptr_t>(operand) % chosen.align[i++] == 0,
            "an operand is less aligned than the algorithm was promised", product);
  }
  require(c == d, "C apart from D is not emulated", product);
  require(workspace_bytes >= kWorkspaceBytes, "workspace smaller than the algorithm needs",
          product);
  if (const auto& answer = simt::cublas_lt().answer) {
    const cublasStatus_t status = answer(chosen.number, product.operation.epilogue);
    if (status != CUBLAS_STATUS_SUCCESS) {
      return status;
    }
  }
  simt::cublas_lt().last_used = chosen.number;
  Call call{.product = product,
            .alpha = 0,
            .beta = 0,
            .a = a,
            .b = b,
            .c = c,
            .d = d,
            .workspace = workspace,
            .algorithm = chosen.number};
  std::memcpy(&call.alpha, alpha, sizeof call.alpha);
  std::memcpy(&call.beta, beta, sizeof call.beta);
  if (simt::launch_observer()) {
    simt::launch_observer()("cublasLtMatmul" + simt::text_of_argument(hash(product)) +
                            simt::text_of_argument(chosen.number) +
                            simt::text_of_argument(call.alpha) + simt::text_of_argument(call.beta) +
                            simt::text_of_argument(a) + simt::text_of_argument(b) +
                            simt::text_of_argument(d) + simt::text_of_argument(workspace));
  }
  simt::enqueue(stream, "cublasLtMatmul", [call] { run(call); });
  return CUBLAS_STATUS_SUCCESS;
}
