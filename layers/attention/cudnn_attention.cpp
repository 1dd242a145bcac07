#include "layers/attention/cudnn_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "layers/attention/cudnn_backend.h"

namespace tandem::cudnn_attention {

namespace {

using cudnn::Graph;
using cudnn::Layout;
using cudnn::Plan;
using cudnn::Target;
using Tensor = Graph::Tensor;

// The layouts of a problem's tensors as [batch, heads, rows, columns].
struct Layouts {
  explicit Layouts(const Problem& p)
      : queries(in_rows(p, p.layout.heads, p.layout.row())),
        keys(in_rows(p, p.layout.kv_heads, p.layout.row())),
        y(in_rows(p, p.layout.heads, p.layout.heads * p.layout.width)),
        all_heads(Layout::packed(p.batch, p.layout.heads, p.length, p.layout.width)),
        scores(Layout::packed(p.batch, p.layout.heads, p.length, p.length)),
        sums(Layout::packed(p.batch, p.layout.heads, p.length, 1)) {}

  Layout queries, keys, y;  // parts of qkv; y
  Layout all_heads;         // gradients of keys before groups are added
  Layout scores, sums;      // sums: one number for each row of scores

 private:
  // `heads` heads side by side in rows of `row` elements.
  static Layout in_rows(const Problem& p, int64_t heads, int64_t row) {
    return {.sizes = {p.batch, heads, p.length, p.layout.width},
            .strides = {p.length * row, p.layout.width, row, 1}};
  }
};

cudnnDataType_t type_of(const Problem& problem) {
  return problem.dtype == DType::kBf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

// scores where the key is not after the query, elsewhere -infinity.
Tensor masked(Graph& graph, const Layouts& layouts, Tensor scores) {
  const auto index = [&](int64_t axis) {
    return graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, {scores},
                           graph.interim(layouts.scores, CUDNN_DATA_INT32), CUDNN_DATA_INT32, axis);
  };
  const Tensor query = index(2), key = index(3);
  const Tensor seen =
      graph.pointwise(CUDNN_POINTWISE_CMP_GE, {query, key},
                      graph.interim(layouts.scores, CUDNN_DATA_BOOLEAN), CUDNN_DATA_BOOLEAN);
  return graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT,
                         {scores, graph.scalar(-std::numeric_limits<float>::infinity()), seen},
                         graph.interim(layouts.scores));
}

float scale_of(const Problem& problem) {
  return 1 / std::sqrt(static_cast<float>(problem.layout.width));
}

// Stored: q, k, v, y, log_sum.
Graph forward_graph(const Problem& problem) {
  const Layouts layouts(problem);
  const cudnnDataType_t type = type_of(problem);
  Graph graph;
  const Tensor q = graph.stored(type, layouts.queries);
  const Tensor k_across = graph.stored(type, layouts.keys.transposed());
  const Tensor v = graph.stored(type, layouts.keys);
  const Tensor y = graph.stored(type, layouts.y);
  const Tensor log_sum = graph.stored(CUDNN_DATA_FLOAT, layouts.sums);
  const auto score = [&] { return graph.interim(layouts.scores); };
  const auto sum = [&] { return graph.interim(layouts.sums); };

  const Tensor products = graph.matmul(q, k_across, score());
  const Tensor scores = masked(
      graph, layouts,
      graph.pointwise(CUDNN_POINTWISE_MUL, {products, graph.scalar(scale_of(problem))}, score()));
  const Tensor largest = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, sum());
  const Tensor below = graph.pointwise(CUDNN_POINTWISE_SUB, {scores, largest}, score());
  const Tensor weights = graph.pointwise(CUDNN_POINTWISE_EXP, {below}, score());
  const Tensor total = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, weights, sum());
  const Tensor log_total = graph.pointwise(CUDNN_POINTWISE_LOG, {total}, sum());
  graph.pointwise(CUDNN_POINTWISE_ADD, {largest, log_total}, log_sum);
  const Tensor probabilities =
      graph.pointwise(CUDNN_POINTWISE_DIV, {weights, total}, graph.interim(layouts.scores, type));
  graph.matmul(probabilities, v, y);
  return graph;
}

// Stored: q, k, v, y, dy, log_sum, dq, dk, dv, delta, which is <dy, y> of each row.
Graph backward_graph(const Problem& problem) {
  const Layouts layouts(problem);
  const cudnnDataType_t type = type_of(problem);
  Graph graph;
  const Tensor q = graph.stored(type, layouts.queries);
  const Tensor k_across = graph.stored(type, layouts.keys.transposed());
  const Tensor v_across = graph.stored(type, layouts.keys.transposed());
  const Tensor y = graph.stored(type, layouts.y);
  const Tensor dy = graph.stored(type, layouts.y);
  const Tensor log_sum = graph.stored(CUDNN_DATA_FLOAT, layouts.sums);
  const Tensor dq = graph.stored(type, layouts.queries);
  const Tensor dk = graph.stored(type, layouts.keys);
  const Tensor dv = graph.stored(type, layouts.keys);
  const Tensor delta = graph.stored(CUDNN_DATA_FLOAT, layouts.sums);
  const auto score = [&] { return graph.interim(layouts.scores); };
  // The gradient of keys or values: `by_query` [queries, keys], transposed, times rows of queries.
  const auto by_keys = [&](Tensor by_query, Tensor rows, Tensor into) {
    const Tensor by_key = graph.reshape(by_query, graph.interim(layouts.scores.transposed(), type));
    if (problem.layout.heads == problem.layout.kv_heads) {
      graph.matmul(by_key, rows, into);
    } else {
      const Tensor each = graph.matmul(by_key, rows, graph.interim(layouts.all_heads, type));
      graph.reduce(CUDNN_REDUCE_TENSOR_ADD, each, into);
    }
  };

  const Tensor products =
      graph.pointwise(CUDNN_POINTWISE_MUL, {dy, y}, graph.interim(layouts.all_heads));
  const Tensor row_sums =
      graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, graph.interim(layouts.sums));
  // Without this factor, which dropout would have, cuDNN does not recognize all of the graph and
  // takes twice the workspace.
  graph.pointwise(CUDNN_POINTWISE_MUL, {row_sums, graph.scalar(1)}, delta);

  const Tensor scale = graph.scalar(scale_of(problem));
  const Tensor unscaled = graph.matmul(q, k_across, score());
  const Tensor scores = graph.pointwise(CUDNN_POINTWISE_MUL, {unscaled, scale}, score());
  const Tensor exponents = graph.pointwise(CUDNN_POINTWISE_SUB, {scores, log_sum}, score());
  const Tensor probabilities =
      graph.pointwise(CUDNN_POINTWISE_EXP, {masked(graph, layouts, exponents)}, score());
  by_keys(probabilities, dy, dv);

  const Tensor dprobabilities = graph.matmul(dy, v_across, score());
  const Tensor centred = graph.pointwise(CUDNN_POINTWISE_SUB, {dprobabilities, delta}, score());
  const Tensor dscores = graph.pointwise(CUDNN_POINTWISE_MUL, {centred, probabilities}, score());
  const Tensor scaled = graph.pointwise(CUDNN_POINTWISE_MUL, {dscores, scale}, score());
  by_keys(scaled, q, dk);
  graph.matmul(scaled, graph.reshape(k_across, graph.interim(layouts.keys, type)), dq);
  return graph;
}

// cuDNN's handle, and the plans made so far.
struct Plans {
  const Target target{};
  std::mutex mutex{};
  std::map<std::pair<Problem, Pass>, Plan> made{};
};

Graph graph_of(const Problem& problem, Pass pass, const Target& target) {
  Graph graph = pass == Pass::kForward ? forward_graph(problem) : backward_graph(problem);
  graph.finish(target);
  return graph;
}

// Calls f(plan, target), one call at a time.
template <class F>
auto with_plan(const Problem& problem, Pass pass, F&& f) {
  static auto& plans = *new Plans;  // never destroyed: at exit the driver may be gone
  const std::lock_guard lock(plans.mutex);
  auto found = plans.made.find({problem, pass});
  if (found == plans.made.end()) {
    try {
      Plan plan(graph_of(problem, pass, plans.target), plans.target);
      found = plans.made.emplace(std::pair(problem, pass), std::move(plan)).first;
    } catch (const Error& error) {
      fail(error.code(), str("kernels.attention = cudnn cannot compute ", problem.text(), " (",
                             error.what(), "); use own"));
    }
  }
  return f(found->second, plans.target);
}

// Addresses of the queries, the keys and the values in qkv or its gradient.
struct Parts {
  Parts(const Problem& problem, const void* qkv) {
    const int64_t step = problem.layout.width * size_of(problem.dtype);
    q = static_cast<char*>(const_cast<void*>(qkv));  // cuDNN's addresses are not const
    k = q + problem.layout.heads * step;
    v = k + problem.layout.kv_heads * step;
  }
  char *q, *k, *v;
};

}  // namespace

bool in_build() { return true; }

std::string why_missing() { return cudnn::why_missing(); }

// delta stands at the beginning of the workspace of backward.
int64_t workspace_bytes(const Problem& problem, Pass pass) {
  return with_plan(problem, pass, [&](const Plan& plan, const Target&) {
    return plan.workspace_bytes() + (pass == Pass::kBackward ? problem.delta_bytes() : 0);
  });
}

void forward(CUstream_st* stream, const Problem& problem, const void* qkv, void* y, float* log_sum,
             void* workspace) {
  const Parts in(problem, qkv);
  with_plan(problem, Pass::kForward, [&](const Plan& plan, const Target& target) {
    void* const data[] = {in.q, in.k, in.v, y, log_sum};
    plan.run(target, stream, data, workspace);
  });
}

void backward(CUstream_st* stream, const Problem& problem, const void* dy, const void* qkv,
              const void* y, const float* log_sum, void* dqkv, void* workspace) {
  const Parts in(problem, qkv), out(problem, dqkv);
  with_plan(problem, Pass::kBackward, [&](const Plan& plan, const Target& target) {
    void* const data[] = {in.q,
                          in.k,
                          in.v,
                          const_cast<void*>(y),
                          const_cast<void*>(dy),
                          const_cast<float*>(log_sum),
                          out.q,
                          out.k,
                          out.v,
                          workspace};
    plan.run(target, stream, data, static_cast<char*>(workspace) + problem.delta_bytes());
  });
}

Support support(const Problem& problem, Pass pass, const std::string& gpu) {
  const Target target(gpu);
  const Graph graph = graph_of(problem, pass, target);
  Support result;
  for (const cudnn::Engine& engine : engines(graph, target)) {
    result.engines.push_back(engine.number);
    result.workspace_bytes = std::max(result.workspace_bytes, engine.workspace_bytes);
  }
  return result;
}

}  // namespace tandem::cudnn_attention
