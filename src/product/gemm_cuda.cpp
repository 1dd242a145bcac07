// Matrix products on a GPU: a cache of plans for each stream. A plan is the algorithms of cuBLASLt
// that may compute a product; those that it refuses are passed over, and a kernel of our own is the
// last resort.
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "src/device/cuda.h"
#include "src/product/cublas_lt.h"
#include "src/product/gemm.h"
#include "src/product/product_choice.h"

namespace tandem {

namespace {

struct Plan {
  CublasLtProduct product;
  std::vector<cublasLtMatmulAlgo_t> algorithms{};  // to be tried from `next` on
  size_t next = 0;
  bool is_chosen = false;  // the first algorithm was chosen by measuring
};

// What one stream needs. A stream belongs to one GPU, and its products run one after the other, so
// they can share a workspace.
class Lane {
 public:
  void multiply(CUstream_st* stream, const Product& p) {
    const std::lock_guard lock(mutex_);
    const auto choices = choices_in_use();
    if (choices != choices_) {
      plans_.clear();
      choices_ = choices;
    }
    const std::pair key(ProductKey::of(p), Alignments::of(p));
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      require(!cuda::is_capturing(stream),
              [&] { return str("a step that is captured has a new product: ", p.text()); });
      found = plans_.emplace(key, plan(p, key.first, key.second)).first;
    }
    Plan& plan = found->second;
    while (plan.next < plan.algorithms.size()) {
      if (plan.product.run(library_, stream, p, plan.algorithms[plan.next])) {
        return;
      }
      if (++plan.next == 1 && plan.is_chosen) {
        say("its first suggestion takes the place of the chosen one, which it refuses", p);
      }
      if (plan.next == plan.algorithms.size()) {
        say_last_resort(p);
      }
    }
    kernels::simple_product(Cuda{stream}, p);
  }

 private:
  Plan plan(const Product& p, const ProductKey& key, const Alignments& alignments) {
    Plan plan{.product = CublasLtProduct(p)};
    if (CublasLtProduct::is_possible(p)) {
      plan.algorithms = plan.product.suggestions(library_, p);
    }
    const ProductChoice* choice = choices_ ? choices_->find(key, alignments) : nullptr;
    if (choice && choice->is_fused) {
      cublasLtMatmulAlgo_t chosen;
      static_assert(sizeof chosen == sizeof choice->algorithm);
      std::memcpy(&chosen, choice->algorithm.data(), sizeof chosen);
      plan.algorithms.insert(plan.algorithms.begin(), chosen);
      plan.is_chosen = true;
    }
    if (plan.algorithms.empty()) {
      say_last_resort(p);
    }
    return plan;
  }

  static void say_last_resort(const Product& p) {
    say("it has no algorithm, and a slow kernel takes its place", p);
  }
  static void say(const char* what, const Product& p) {
    std::fprintf(stderr, "tandem: cuBLASLt: %s, for %s\n", what, p.text().c_str());
  }

  CublasLt library_;
  std::mutex mutex_;
  std::shared_ptr<const KernelChoices> choices_;  // that plans_ follow
  std::map<std::pair<ProductKey, Alignments>, Plan> plans_;
};

Lane& lane_of(CUstream_st* stream) {
  static std::mutex mutex;
  // Never destroyed: at exit the driver may be gone before static objects are destroyed.
  static auto& lanes = *new std::map<CUstream_st*, Lane>;
  const std::lock_guard lock(mutex);
  return lanes[stream];
}

}  // namespace

void kernels::multiply(Cuda device, const Product& p) {
  if (p.m == 0 || p.n == 0) {
    return;
  }
  if (p.k == 0) {
    return simple_product(device, p);
  }
  lane_of(device.stream).multiply(device.stream, p);
}

}  // namespace tandem
