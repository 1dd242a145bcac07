#include "src/product/product_choice.h"

#include <algorithm>
#include <mutex>

namespace tandem {

namespace {

thread_local ChoiceRecorder* recorder = nullptr;

std::mutex choices_mutex;
std::shared_ptr<const KernelChoices> choices_of_process;

}  // namespace

uint32_t alignment(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 64;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

ProductKey ProductKey::of(const Product& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .in = p.a.data.dtype(),
          .out = p.d.data.dtype(),
          .a_transposed = p.a.transposed,
          .b_transposed = p.b.transposed,
          .a_stride = p.a.row_stride(),
          .b_stride = p.b.row_stride(),
          .d_stride = p.d.row_stride(),
          .has_bias = static_cast<bool>(p.bias),
          .accumulates = p.beta != 0,
          .epilogue = p.epilogue};
}

Alignments Alignments::of(const Product& p) {
  const auto of = [](const Tensor& tensor) { return alignment(tensor ? tensor.raw() : nullptr); };
  return {.a = of(p.a.data),
          .b = of(p.b.data),
          .d = of(p.d.data),
          .bias = of(p.bias),
          .gelu_input = of(p.gelu_input)};
}

Alignments Alignments::smallest(const Alignments& other) const {
  return {.a = std::min(a, other.a),
          .b = std::min(b, other.b),
          .d = std::min(d, other.d),
          .bias = std::min(bias, other.bias),
          .gelu_input = std::min(gelu_input, other.gelu_input)};
}

void add(ProductSet& set, const ProductKey& key, const Alignments& alignments) {
  Alignments& least = set.try_emplace(key, alignments).first->second;
  least = least.smallest(alignments);
}

ChoiceRecorder::ChoiceRecorder() : outer_(recorder) { recorder = this; }
ChoiceRecorder::~ChoiceRecorder() { recorder = outer_; }

bool ChoiceRecorder::is_active() { return recorder != nullptr; }

void ChoiceRecorder::note(const Product& product) {
  if (recorder && product.m > 0 && product.n > 0 && product.k > 0) {
    add(recorder->noted_.products, ProductKey::of(product), Alignments::of(product));
  }
}

void ChoiceRecorder::note(const std::string& name, const MeasureLibrary& measure) {
  if (recorder) {
    recorder->noted_.libraries.emplace(name, measure);
  }
}

const ProductChoice* KernelChoices::find(const ProductKey& key,
                                         const Alignments& alignments) const {
  const auto found = products.find(key);
  return found != products.end() && alignments.at_least(found->second.alignments) ? &found->second
                                                                                  : nullptr;
}

void use_choices(std::shared_ptr<const KernelChoices> choices) {
  const std::lock_guard lock(choices_mutex);
  choices_of_process = std::move(choices);
}

std::shared_ptr<const KernelChoices> choices_in_use() {
  const std::lock_guard lock(choices_mutex);
  return choices_of_process;
}

}  // namespace tandem
