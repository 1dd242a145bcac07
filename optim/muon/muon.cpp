#include "optim/muon/muon.h"

#include <utility>
#include <vector>

#include "optim/flat_optimizer.h"
#include "src/device/copy.h"
#include "src/kernels/reduce.h"
#include "src/product/product.h"

namespace tandem {

namespace {

constexpr int kIterations = 5;

// Shards whose gradients are both what is read and what is updated: they become u.
std::vector<Shard> gradients_of(std::span<const Shard> shards) {
  std::vector<Shard> result;
  for (const Shard& shard : shards) {
    result.push_back({.value = shard.grad, .grad = shard.grad});
  }
  return result;
}

class Muon final : public Optimizer {
 public:
  Muon(const MuonOptions& options, std::span<const Shard> shards, const OptimizerMemory& memory)
      : matrices_(memory.matrices),
        scratch_(memory.device.scratch()),
        parts_{Part(shards, false), Part(shards, true)},
        adamw_(make_optimizer(options.adamw, parts_[0].of(shards), memory)),
        momentum_(options, gradients_of(parts_[1].of(shards)), memory),
        move_(options, parts_[1].of(shards), memory) {
    require(matrices_ || parts_[1].numbers.empty(), "Muon: nobody knows the shards' matrices");
  }

  void step(Stream& stream, std::span<const Shard> shards, const StepInputs& inputs) override {
    require(shards.size() == parts_[0].numbers.size() + parts_[1].numbers.size(),
            "Muon: ", shards.size(), " shards, made for others");
    adamw_->step(stream, parts_[0].of(shards), inputs);
    const std::vector<Shard> of_matrices = parts_[1].of(shards);
    momentum_.step(stream, gradients_of(of_matrices), inputs);
    if (matrices_) {
      matrices_->transform(
          stream, {.dtype = dtype_of_products(shards),
                   .apply = [this](Stream& on, const Tensor& u) { orthogonalise(on, scratch_, u); },
                   .factor =
                       [](int64_t rows, int64_t columns) {
                         return 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
                       }});
    }
    move_.step(stream, of_matrices, inputs);
  }

  void prepare(Stream&, const StepInputs&) override { refuse(); }
  void update(Stream&, const Shard&, std::span<const Tensor>) override { refuse(); }

  void visit(const StateVisitor& visitor) const override {
    const auto visit = [&](const Optimizer& rule, const Part& part) {
      rule.visit([&](std::string_view slot, size_t shard, const Tensor& state) {
        visitor(slot, part.numbers[shard], state);
      });
    };
    visit(*adamw_, parts_[0]);
    visit(momentum_, parts_[1]);
  }

 private:
  // The shards of matrices, or the others.
  struct Part {
    Part(std::span<const Shard> shards, bool matrix) {
      for (size_t i = 0; i < shards.size(); ++i) {
        if (shards[i].matrix == matrix) {
          numbers.push_back(i);
        }
      }
    }
    std::vector<Shard> of(std::span<const Shard> shards) const {
      std::vector<Shard> result;
      for (const size_t i : numbers) {
        result.push_back(shards[i]);
      }
      return result;
    }
    std::vector<size_t> numbers;
  };

  [[noreturn]] static void refuse() {
    fail(ExitCode::kInternal, "Muon: an update needs whole matrices, and shards come one by one");
  }
  // All shards have the same type of working copies, on every rank.
  static DType dtype_of_products(std::span<const Shard> shards) {
    const bool rounds =
        !shards.empty() && shards[0].working && shards[0].working.dtype() == DType::kBf16;
    return rounds ? DType::kBf16 : DType::kF32;
  }

  Matrices* matrices_;
  Memory scratch_;
  Part parts_[2];  // others, matrices
  std::unique_ptr<Optimizer> adamw_;
  FlatOptimizer<MuonMomentum> momentum_;
  FlatOptimizer<MuonMove> move_;
};

void normalise(Stream& stream, Memory& memory, const Tensor& matrix, const Tensor& to) {
  const auto number = [&](int64_t n) {
    return Tensor::empty(memory, {n}, DType::kF64, MemoryClass::kWorkspace);
  };
  const Tensor square = number(1), scratch = number(kReduceScratch);
  on_device(stream, touching(matrix, matrix, to), [&](auto device) {
    const auto run = [&]<class T>(const T* from) {
      const int64_t n = matrix.elements();
      squared_norm(device, from, n, square.data<double>(), scratch.data<double>(), false);
      kernels::divide_by_norm(device, n, from, square.data<double>(), to.data<T>());
    };
    matrix.dtype() == DType::kBf16 ? run(matrix.data<Bf16>()) : run(matrix.data<float>());
  });
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const MuonOptions& options, std::span<const Shard> shards,
                                          const OptimizerMemory& memory) {
  require_in_range("optim.momentum", options.momentum, 1);
  return std::make_unique<Muon>(options, shards, memory);
}

void orthogonalise(Stream& stream, Memory& memory, const Tensor& matrix) {
  static_assert(kIterations % 2 == 1);  // so that the last X is `matrix` again
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  const bool is_tall = rows > columns;
  const int64_t n = std::min(rows, columns), length = std::max(rows, columns);
  const auto room = [&](const Shape& shape) {
    return Tensor::empty(memory, shape, matrix.dtype(), MemoryClass::kWorkspace);
  };
  const Tensor gram = room({n, n}), change = room({n, n});
  Tensor x = room({rows, columns}), next = matrix;
  normalise(stream, memory, matrix, x);
  for (int i = 0; i < kIterations; ++i) {
    multiply(stream, {.m = n,
                      .n = n,
                      .k = length,
                      .a = {.data = x, .transposed = is_tall},
                      .b = {.data = x, .transposed = !is_tall},
                      .d = {.data = gram},
                      .is_symmetric = true});
    copy(stream, gram, change);
    multiply(stream, {.m = n,
                      .n = n,
                      .k = n,
                      .a = {.data = gram},
                      .b = {.data = gram},
                      .d = {.data = change},
                      .alpha = 2.0315,
                      .beta = -4.7750,
                      .is_symmetric = true});
    copy(stream, x, next);
    const Product::Operand left{.data = change}, transposed{.data = change, .transposed = true};
    multiply(stream, {.m = rows,
                      .n = columns,
                      .k = n,
                      .a = is_tall ? Product::Operand{.data = x} : left,
                      .b = is_tall ? transposed : Product::Operand{.data = x},
                      .d = {.data = next},
                      .beta = 3.4445});
    std::swap(x, next);
  }
}

namespace kernels {

template <class T>
void divide_by_norm(Cpu device, int64_t n, const T* from, const double* square, T* to) {
  const float norm = norm_of<T>(*square);
  map(device, n, [=](int64_t i) { to[i] = T(static_cast<float>(from[i]) / norm); });
}

template void divide_by_norm<float>(Cpu, int64_t, const float*, const double*, float*);
template void divide_by_norm<Bf16>(Cpu, int64_t, const Bf16*, const double*, Bf16*);

}  // namespace kernels

}  // namespace tandem
