// A product as far as its way of computing depends on it, and ways that were chosen by timing them
// on a GPU: of products, and of what a library computes beside Tandem's kernels. Nothing here needs
// a GPU.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "src/product/product.h"

namespace tandem {

// All that describes a product but its numbers, its addresses and alpha.
struct ProductKey {
  int64_t m, n, k;
  DType in, out;  // of A and B, and of D
  bool a_transposed, b_transposed;
  int64_t a_stride, b_stride, d_stride;  // elements
  bool has_bias;
  bool accumulates;  // beta is not 0
  Epilogue epilogue;
  auto operator<=>(const ProductKey&) const = default;

  static ProductKey of(const Product& product);
};

// How a product's addresses are aligned, in bytes: the largest power of 2 up to 64 that divides
// each of them.
// Memory promises no more than 64 for a block, so that these numbers, and with them the algorithms,
// do not depend on where blocks happen to lie. Operands that a product lacks have 64.
struct Alignments {
  uint32_t a, b, d, bias, gelu_input;
  auto operator<=>(const Alignments&) const = default;

  static Alignments of(const Product& product);
  // Whether a choice for `other` serves operands with these.
  bool at_least(const Alignments& other) const { return smallest(other) == other; }
  Alignments smallest(const Alignments& other) const;  // of each operand
};
uint32_t alignment(const void* address);

// Different products, each with the smallest alignments that were seen.
using ProductSet = std::map<ProductKey, Alignments>;
void add(ProductSet& set, const ProductKey& key, const Alignments& alignments);

// Whether a library computes something, and what Tandem's kernels and the library took.
struct LibraryChoice {
  bool by_library = false;
  double own_seconds = 0;
  double other_seconds = 0;  // of the library; 0: it was left out, with a warning
  bool operator==(const LibraryChoice&) const = default;
};
using Warn = std::function<void(const std::string&)>;
using MeasureLibrary = std::function<LibraryChoice(const Stream&, const Warn&)>;

// What a step leaves open. A name says all that times depend on, with the library and its version.
struct OpenChoices {
  ProductSet products{};
  std::map<std::string, MeasureLibrary> libraries{};  // by name
};

// While it lives, notes what its thread asks for, on dry streams, too.
class ChoiceRecorder {
 public:
  ChoiceRecorder();
  ~ChoiceRecorder();
  ChoiceRecorder(const ChoiceRecorder&) = delete;
  const OpenChoices& noted() const { return noted_; }

  static bool is_active();
  static void note(const Product& product);  // multiply() calls it
  static void note(const std::string& name, const MeasureLibrary& measure);

 private:
  OpenChoices noted_;
  ChoiceRecorder* outer_;
};

// A product with a bias or an epilogue can be computed in two ways. Fused: in one call of cuBLASLt.
// Separate: without its last step, which is the epilogue or else the bias; a pass of our own then
// does that step. The product without its last step has a choice of its own.
struct ProductChoice {
  Alignments alignments{};              // that it needs
  bool is_fused = true;                 // so is every product without bias and epilogue
  double seconds = 0;                   // of the whole product
  double first_seconds = 0;             // with the library's first suggestion, of the same kind
  std::array<uint64_t, 8> algorithm{};  // a cublasLtMatmulAlgo_t, of a fused product
  bool operator==(const ProductChoice&) const = default;
};

struct KernelChoices {
  std::string gpu{};        // "NVIDIA H200"
  std::string cublas_lt{};  // "cuBLASLt 130100"
  std::map<ProductKey, ProductChoice> products{};
  std::map<std::string, LibraryChoice> libraries{};  // by name

  // The choice that serves the product, or null.
  const ProductChoice* find(const ProductKey& key, const Alignments& alignments) const;
};

// This process follows these choices from now on. With null, cuBLASLt's first suggestion is used,
// biases are fused, and epilogues are separate; for all else Tandem's kernels are used.
void use_choices(std::shared_ptr<const KernelChoices> choices);
std::shared_ptr<const KernelChoices> choices_in_use();

}  // namespace tandem
