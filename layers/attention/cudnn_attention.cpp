#include "layers/attention/cudnn_attention.h"

#include <dlfcn.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>

// NVIDIA's library of headers. It finds the functions of cuDNN by dlsym in cudnn_dlhandle.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "src/device/cuda.h"

void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace tandem::cudnn_attention {

namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;

// The numbers of a graph's tensors in memory.
enum Id : int64_t { kQueries, kKeys, kValues, kY, kLogSum, kDy, kDQueries, kDKeys, kDValues };
using Addresses = std::unordered_map<int64_t, void*>;

void check(fe::error_t error) {
  if (error.is_bad()) {
    const std::string text = error.get_message();
    const bool memory = text.find("CUDNN_STATUS_ALLOC_FAILED") != std::string::npos;
    fail(memory ? ExitCode::kOutOfMemory : ExitCode::kConfig, "cuDNN: " + text);
  }
}

// Why cuDNN cannot be loaded; empty if it can.
std::string load() {
  const std::string name = str("libcudnn.so.", CUDNN_MAJOR);
  fe::cudnn_dlhandle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!fe::cudnn_dlhandle) {
    return str("cuDNN cannot be loaded (", dlerror(),
               "); install it, or put its folder on LD_LIBRARY_PATH");
  }
  if (const size_t version = fe::detail::get_backend_version(); version < 90800) {
    return str(name, " is version ", version, "; install cuDNN 9.8 or later");
  }
  return "";
}

// A tensor of `heads` heads side by side in rows of `row` elements, as [batch, heads, length,
// width].
Tensor_attributes& lay_out(Tensor_attributes& tensor, Id id, const Problem& p, int64_t heads,
                           int64_t row) {
  return tensor.set_uid(id)
      .set_dim({p.batch, heads, p.length, p.layout.width})
      .set_stride({p.length * row, p.layout.width, row, 1});
}

Tensor_attributes& lay_out_log_sum(Tensor_attributes& tensor, const Problem& p) {
  return tensor.set_uid(kLogSum)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({p.batch, p.layout.heads, p.length, 1})
      .set_stride({p.layout.heads * p.length, p.length, 1, 1});
}

// The graph of a pass for GPUs of a compute capability, such as 80.
Graph graph_of(const Problem& problem, Pass pass, int capability) {
  const auto& [heads, kv_heads, width] = problem.layout;
  const int64_t row = problem.layout.row();
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  Graph graph;
  graph.set_sm_version(capability)
      .set_io_data_type(problem.dtype == DType::kBf16 ? fe::DataType_t::BFLOAT16
                                                      : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto input = [&](Id id, int64_t its_heads, int64_t its_row) {
    Tensor_attributes tensor;
    return graph.tensor(lay_out(tensor, id, problem, its_heads, its_row));
  };
  const auto q = input(kQueries, heads, row);
  const auto k = input(kKeys, kv_heads, row), v = input(kValues, kv_heads, row);
  if (pass == Pass::kForward) {
    const auto [y, log_sum] = graph.sdpa(
        q, k, v,
        fe::graph::SDPA_attributes().set_generate_stats(true).set_causal_mask(true).set_attn_scale(
            scale));
    lay_out(*y, kY, problem, heads, heads * width).set_output(true);
    lay_out_log_sum(*log_sum, problem).set_output(true);
    return graph;
  }
  const auto y = input(kY, heads, heads * width), dy = input(kDy, heads, heads * width);
  Tensor_attributes log_sum;
  const auto [dq, dk, dv] =
      graph.sdpa_backward(q, k, v, y, dy, graph.tensor(lay_out_log_sum(log_sum, problem)),
                          fe::graph::SDPA_backward_attributes()
                              .set_causal_mask(true)
                              .set_attn_scale(scale)
                              .set_deterministic_algorithm(true));
  lay_out(*dq, kDQueries, problem, heads, row).set_output(true);
  lay_out(*dk, kDKeys, problem, kv_heads, row).set_output(true);
  lay_out(*dv, kDValues, problem, kv_heads, row).set_output(true);
  return graph;
}

// Lets cuDNN propose engines for a graph, without those that it calls nondeterministic. `handle` is
// null where the graph describes its GPU.
void find_engines(Graph& graph, cudnnHandle_t handle, int64_t most_workspace_bytes) {
  check(graph.validate());
  check(handle ? graph.build_operation_graph(handle) : graph.build_operation_graph());
  check(graph.create_execution_plans({fe::HeurMode_t::A}));
  graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
  graph.deselect_workspace_greater_than(most_workspace_bytes);
  check(graph.check_support());
}

// cuDNN's handle, and the graphs built so far.
struct Plans {
  cudnnHandle_t handle = nullptr;
  std::mutex mutex{};
  std::map<std::pair<Problem, Pass>, Graph> built{};
};

// Calls f(handle, graph), one call at a time.
template <class F>
void with_plan(const Problem& problem, Pass pass, F&& f) {
  static auto& plans = *new Plans;  // never destroyed: at exit the driver may be gone
  const std::lock_guard lock(plans.mutex);
  auto found = plans.built.find({problem, pass});
  if (found == plans.built.end()) {
    try {
      if (const std::string why = why_missing(); !why.empty()) {
        fail(ExitCode::kConfig, why);
      }
      if (!plans.handle && fe::detail::create_handle(&plans.handle) != CUDNN_STATUS_SUCCESS) {
        fail(ExitCode::kConfig, str("cuDNN: ", fe::detail::get_last_error_string_()));
      }
      Graph graph = graph_of(problem, pass, cuda::compute_capability());
      find_engines(graph, plans.handle, std::numeric_limits<int64_t>::max());
      check(graph.build_plans(plans.handle));
      found = plans.built.emplace(std::pair(problem, pass), std::move(graph)).first;
    } catch (const Error& error) {
      fail(error.code(), str("kernels.attention = cudnn cannot compute ", problem.text(), " (",
                             error.what(), "); use own"));
    }
  }
  f(plans.handle, found->second);
}

void run(CUstream_st* stream, const Problem& problem, Pass pass, Addresses addresses,
         void* workspace) {
  with_plan(problem, pass, [&](cudnnHandle_t handle, const Graph& graph) {
    require(fe::detail::set_stream(handle, stream) == CUDNN_STATUS_SUCCESS, "cudnnSetStream");
    check(graph.execute(handle, addresses, workspace));
  });
}

// Adds the addresses of queries, keys and values in qkv or its gradient; cuDNN's are not const.
void add_qkv(Addresses& addresses, const Problem& problem, const void* qkv, Id queries) {
  const int64_t step = problem.layout.width * size_of(problem.dtype);
  char* const begin = static_cast<char*>(const_cast<void*>(qkv));
  addresses[queries] = begin;
  addresses[queries + 1] = begin + problem.layout.heads * step;
  addresses[queries + 2] = begin + (problem.layout.heads + problem.layout.kv_heads) * step;
}

}  // namespace

bool in_build() { return true; }

std::string why_missing() {
  static const std::string why = load();
  return why;
}

std::string version() { return std::to_string(fe::detail::get_backend_version()); }

int64_t workspace_bytes(const Problem& problem, Pass pass) {
  int64_t bytes = 0;
  with_plan(problem, pass,
            [&](cudnnHandle_t, const Graph& graph) { check(graph.get_workspace_size(bytes)); });
  return bytes;
}

void forward(CUstream_st* stream, const Problem& problem, const void* qkv, void* y, float* log_sum,
             void* workspace) {
  Addresses addresses = {{kY, y}, {kLogSum, log_sum}};
  add_qkv(addresses, problem, qkv, kQueries);
  run(stream, problem, Pass::kForward, std::move(addresses), workspace);
}

void backward(CUstream_st* stream, const Problem& problem, const void* dy, const void* qkv,
              const void* y, const float* log_sum, void* dqkv, void* workspace) {
  Addresses addresses = {{kY, const_cast<void*>(y)},
                         {kDy, const_cast<void*>(dy)},
                         {kLogSum, const_cast<float*>(log_sum)}};
  add_qkv(addresses, problem, qkv, kQueries);
  add_qkv(addresses, problem, dqkv, kDQueries);
  run(stream, problem, Pass::kBackward, std::move(addresses), workspace);
}

void require_engine(const Problem& problem, Pass pass, const Gpu& gpu,
                    int64_t most_workspace_bytes) {
  const auto properties = std::make_shared<fe::DeviceProperties>();
  check(properties->deserialize({gpu.json.begin(), gpu.json.end()}));
  Graph graph = graph_of(problem, pass, gpu.capability);
  graph.set_device_properties(properties);
  find_engines(graph, nullptr, most_workspace_bytes);
}

}  // namespace tandem::cudnn_attention
