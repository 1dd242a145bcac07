// Graphs of operations for cuDNN's backend API
// (https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html), as far
// as attention needs them. Internal to attention.
//
// cuDNN is loaded at the first call. What it refuses is Error(kConfig), and so is every call where
// it cannot be loaded.
#pragma once

#include <cudnn_graph.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/core/dtype.h"

namespace tandem::cudnn {

// Why cuDNN cannot be loaded; empty if it can.
std::string why_missing();

struct DestroyDescriptor {
  void operator()(void* descriptor) const;
};
using Descriptor = std::unique_ptr<void, DestroyDescriptor>;

// The GPU that is planned for.
struct Target {
  Target();  // the one in use
  // The one that a text describes, which need not be there; cuDNN's words are in
  // tests/layers/test_cudnn_support.cpp. Engines can be asked for, but not run.
  // The caller must have loaded a driver library, for which CUDA's stub suffices.
  explicit Target(const std::string& json);

  // Null for a text. Never destroyed: at exit the driver may be gone.
  cudnnHandle_t handle = nullptr;
  Descriptor properties{};  // null for the GPU in use
};

// Sizes and strides, in elements, of [batch, heads, rows, columns].
struct Layout {
  std::array<int64_t, 4> sizes, strides;
  static Layout packed(int64_t batch, int64_t heads, int64_t rows, int64_t columns);
  Layout transposed() const;  // rows and columns exchanged
};

class Graph {
 public:
  using Tensor = int64_t;

  // A tensor in memory, 16-byte aligned.
  Tensor stored(cudnnDataType_t type, const Layout& layout);
  // A result that is not stored.
  Tensor interim(const Layout& layout, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor scalar(float value);

  // Each adds an operation that computes `y`, and returns `y`.
  Tensor matmul(Tensor a, Tensor b, Tensor y);
  Tensor reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y);
  Tensor reshape(Tensor x, Tensor y);  // also transposes, by strides
  // One to three operands. `compute` is the type to compute in; `axis` is for modes that have one.
  Tensor pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Tensor> x, Tensor y,
                   cudnnDataType_t compute = CUDNN_DATA_FLOAT, std::optional<int64_t> axis = {});

  // To be called after the last operation.
  void finish(const Target& target);
  const Descriptor& descriptor() const { return graph_; }
  // The numbers of the stored tensors and of the scalars, in the order of their making.
  const std::vector<Tensor>& stored_tensors() const { return stored_; }
  const std::vector<Tensor>& scalars() const { return scalars_; }
  const std::vector<float>& scalar_values() const { return values_; }

 private:
  Tensor add_tensor(cudnnDataType_t type, const Layout& layout, bool is_interim, bool is_scalar);
  void use(const Descriptor& operation, cudnnBackendAttributeName_t name, Tensor tensor) const;

  std::vector<Descriptor> tensors_, details_, operations_;
  std::vector<Tensor> stored_, scalars_;
  std::vector<float> values_;
  Descriptor graph_{};
};

// A way to compute a graph.
struct Engine {
  Descriptor config{};
  int64_t number = 0;  // cuDNN's
  int64_t workspace_bytes = 0;
};

// The engines that cuDNN proposes for a finished graph, best first, without those that it calls
// nondeterministic.
std::vector<Engine> engines(const Graph& graph, const Target& target);

// Runs a finished graph with the first engine that can be built.
class Plan {
 public:
  Plan(Graph graph, const Target& target);
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // `data`: the addresses of the graph's stored tensors, in the order of their making.
  void run(const Target& target, CUstream_st* stream, std::span<void* const> data,
           void* workspace) const;

 private:
  Graph graph_;
  Descriptor plan_{};
  int64_t workspace_bytes_ = 0;
};

}  // namespace tandem::cudnn
