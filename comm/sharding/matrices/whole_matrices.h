// Brings the matrices of a model's gradients together, each on one of the ranks that hold parts of
// it, and brings a function of them back.
//
// With sharded state each matrix has an owner among the parts of its group: the largest matrix
// first, to the part with the least work so far, which is the same on all ranks. A rank sends the
// elements of its shard that belong to others' matrices, once there and once back:
//     2 * bytes(elements of its shard - elements of its own matrices in its shard)
// is what it sends in the first message, and what it receives in the second. Over all ranks this
// is about (N - 1) / N of the matrices, twice. Without sharded state every rank computes all.
#pragma once

#include <span>
#include <vector>

#include "comm/sharding/gradient_sync.h"
#include "src/device/shard.h"

namespace tandem {

class WholeMatrices final : public Matrices {
 public:
  // All references must outlive this. The layout must have been made with options.matrices.
  WholeMatrices(const ModelLayout& layout, const GradientSync& gradients, Timeline& timeline,
                Memory& memory);

  void transform(Stream& stream, const Function& function) override;

  // One matrix of the model: a piece of a parameter.
  struct Matrix {
    int64_t bucket = 0;
    Range range{};  // in the flat buffers
    int64_t rows = 0, columns = 0;
    int owner = 0;  // the part that computes it, of a sharded bucket
  };
  // In the order of the flat buffers.
  const std::vector<Matrix>& matrices() const { return matrices_; }

 private:
  // The elements of a matrix in one shard, and where a message has them.
  struct Run {
    size_t matrix = 0;
    Range in_flat{}, in_message{};
  };
  // What one rank sends to the others or receives from them.
  struct Message {
    std::vector<Run> runs;
    std::vector<Range> parts;  // by the other's part
    int64_t elements() const { return parts.empty() ? 0 : parts.back().end; }
  };

  void choose_owners();
  Message message(bool is_sent) const;
  Tensor gradients(const Run& run) const;
  void apply(Stream& stream, std::span<const Run> runs, const Function& function,
             const Tensor& message);
  void exchange(Stream& stream, const Tensor& in, const Message& sent, const Tensor& out,
                const Message& received) const;

  const ModelLayout& layout_;
  const GradientSync& gradients_;
  Timeline& timeline_;
  Memory scratch_;
  std::vector<Matrix> matrices_;
  int64_t elements_ = 0;    // of all matrices
  Group* group_ = nullptr;  // that shards the state; null: every rank computes all
  Message theirs_, own_;    // sent to owners, received as an owner
  std::vector<std::vector<Run>> runs_of_own_;  // those of own_, by matrix
};

}  // namespace tandem
