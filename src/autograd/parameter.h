// The parameters that a model learns, and the statistics that it only observes.
#pragma once

#include <string>
#include <vector>

#include "src/core/rng.h"
#include "src/core/slice.h"
#include "src/device/tensor.h"

namespace tandem {

using ParamId = int32_t;

// How a parameter is initialized. The numbers are a pure function of (seed, name of the piece,
// element of the logical tensor).
struct Initializer {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double scale = 0;  // the constant, the standard deviation, or the largest magnitude

  static Initializer constant(double value) { return {Kind::kConstant, value}; }
  static Initializer normal(double deviation) { return {Kind::kNormal, deviation}; }
  static Initializer uniform(double bound) { return {Kind::kUniform, bound}; }
};

// A named slice of a logical tensor. Checkpoints and files of other programs hold logical tensors.
struct Piece {
  std::string name;  // of the logical tensor: "blocks.0.attn.q.weight"
  Slice slice;       // of it; lies row-major in the parameter
};

// The model does not own the memory: a parameter store binds `value` and `grad` to views of its
// flat buffers. With ZeRO-3 `value` is gathered and freed again, so ops save a Parameter*, never
// its tensor. `value` and `grad` have stored_shape(): there may be padding rows after those of
// `shape`. These are zero, and do not belong to the parameter.
//
// Several tensors that one product reads are one parameter: its pieces lie in its memory one after
// the other. Queries, keys and values are rows of attn.qkv.weight.
struct Parameter {
  std::string name;
  Shape shape;
  Initializer init{};
  bool decay = false;  // weight decay applies (to matrices and embeddings, not to biases and norms)
  int blocks = 1;      // how many blocks use it
  bool frozen = false;          // not trained: no gradient is computed
  bool classes = false;         // its rows are classes, and a product gives their logits
  bool matrix = false;          // its pieces are matrices between features, as Muon takes them
  int64_t stored_rows = 0;      // at least, in memory: as many on all ranks that cut the rows
  std::vector<Piece> pieces{};  // empty: one, the whole tensor of its name (pieces_of)

  ParamId id = -1;  // position in the model's forward order; the store sets it
  Tensor value{};
  Tensor grad{};
  bool grad_written = false;  // false: the next write overwrites, true: it adds

  bool wanted() const { return !frozen; }     // whether a gradient is needed (requires_grad)
  bool shared() const { return blocks > 1; }  // ZeRO-3 keeps it whole
};

// In order of memory. Together they have all elements.
inline std::vector<Piece> pieces_of(const Parameter& parameter) {
  return parameter.pieces.empty() ? std::vector<Piece>{{parameter.name, parameter.shape}}
                                  : parameter.pieces;
}

// Visits the pieces that are in elements `range` of a parameter, in order. Calls visit(piece,
// elements of piece.slice, where they begin in `range`).
template <class F>
void visit_pieces(const Parameter& parameter, Range range, F visit) {
  int64_t begin = 0;  // of the piece in the parameter
  for (const Piece& piece : pieces_of(parameter)) {
    const Range here =
        intersection({range.begin - begin, range.end - begin}, {0, piece.slice.elements()});
    if (here.count() > 0) {
      visit(piece, here, begin + here.begin - range.begin);
    }
    begin += piece.slice.elements();
  }
}

// A run of elements of one parameter.
struct Extent {
  ParamId parameter = -1;
  int64_t in_flat = 0;  // where it begins in a flat array of parameters, or in a part of it
  int64_t count = 0;
  int64_t in_parameter = 0;  // where it begins in the parameter
};

// The parameters of one block, in the order of their first use.
struct BlockParameters {
  std::string name;
  std::vector<Parameter*> parameters;
};

// The parameters of several layers, in this order.
template <class... Layers>
std::vector<Parameter*> parameters_in(Layers&... layers) {
  std::vector<Parameter*> all;
  const auto append = [&](const std::vector<Parameter*>& some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  (append(layers.parameters()), ...);
  return all;
}

// The key of a piece's initial random numbers. It depends on the name alone, not on other pieces.
uint32_t random_stream_of(const std::string& piece_name);

// The shape in which a parameter store keeps a parameter on a device: with at least its
// stored_rows. On a GPU the number of classes is rounded up to a multiple of 128 from 1,024 classes
// on, and of 8 below. Then each row of logits begins at a multiple of 16 bytes, which the fast
// product kernels of cuBLASLt ask for.
Shape stored_shape(const Parameter& parameter, Device device);

// Fills the parameter's elements of parameter.value, which must be f32 or f64 on the CPU.
void initialize(Parameter& parameter, uint64_t seed);

// A mean and a variance that a layer observes in training and uses in inference (BatchNorm). The
// layer adds each micro-batch's statistics to `sum`. Once a step the trainer averages `sum` over
// micro-batches and ranks and updates `running`.
struct RunningStatistics {
  std::string name;
  int64_t channels = 0;
  Tensor sum{};      // f32 [2, C]: sums of the micro-batches' means and unbiased variances
  Tensor running{};  // f32 [2, C]: mean, variance
};

}  // namespace tandem
