#include "layers/attention/cudnn_backend.h"

#include <dlfcn.h>

#include <algorithm>

#include "src/core/error.h"

namespace tandem::cudnn {

namespace {

constexpr int64_t kAlignment = 16;  // of tensors, in bytes

// The functions of libcudnn that are called here.
struct Library {
  void* file = nullptr;
  std::string why_missing{};
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error_string = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

  Library() {
    const std::string name = str("libcudnn.so.", CUDNN_MAJOR);
    file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!file) {
      why_missing = str("cuDNN cannot be loaded (", dlerror(),
                        "); install it, or put its folder on LD_LIBRARY_PATH");
      return;
    }
    find(create, "cudnnCreate");
    find(set_stream, "cudnnSetStream");
    find(error_string, "cudnnGetErrorString");
    find(last_error_string, "cudnnGetLastErrorString");
    find(create_descriptor, "cudnnBackendCreateDescriptor");
    find(destroy_descriptor, "cudnnBackendDestroyDescriptor");
    find(finalize, "cudnnBackendFinalize");
    find(set_attribute, "cudnnBackendSetAttribute");
    find(get_attribute, "cudnnBackendGetAttribute");
    find(execute, "cudnnBackendExecute");
  }

  template <class F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(file, name));
    if (!function) {
      why_missing = str("libcudnn.so.", CUDNN_MAJOR, " has no ", name, "; install a newer cuDNN 9");
    }
  }
};

const Library& loaded() {
  static const Library library;
  return library;
}

const Library& library() {
  const Library& it = loaded();
  if (!it.why_missing.empty()) {
    fail(ExitCode::kConfig, it.why_missing);
  }
  return it;
}

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) {
    char text[512] = "";
    library().last_error_string(text, sizeof text);
    fail(status == CUDNN_STATUS_ALLOC_FAILED ? ExitCode::kOutOfMemory : ExitCode::kConfig,
         str("cuDNN: ", library().error_string(status), " in ", what, text[0] ? ": " : "", text));
  }
}

Descriptor make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  check(library().create_descriptor(type, &made), "cudnnBackendCreateDescriptor");
  return Descriptor(made);
}

void finalize(const Descriptor& descriptor) {
  check(library().finalize(descriptor.get()), "cudnnBackendFinalize");
}

void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name,
         cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  check(library().set_attribute(descriptor.get(), name, type, count, values),
        "cudnnBackendSetAttribute");
}

void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, int64_t value) {
  set(descriptor, name, CUDNN_TYPE_INT64, 1, &value);
}

void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, bool value) {
  set(descriptor, name, CUDNN_TYPE_BOOLEAN, 1, &value);
}

void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  set(descriptor, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, const Descriptor& value) {
  void* const other = value.get();
  set(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

// Up to `most` values of an attribute; returns how many there are.
int64_t get(const Descriptor& descriptor, cudnnBackendAttributeName_t name,
            cudnnBackendAttributeType_t type, int64_t most, void* values) {
  int64_t count = 0;
  check(library().get_attribute(descriptor.get(), name, type, most, &count, values),
        "cudnnBackendGetAttribute");
  return count;
}

}  // namespace

std::string why_missing() { return loaded().why_missing; }

void DestroyDescriptor::operator()(void* descriptor) const {
  static_cast<void>(library().destroy_descriptor(descriptor));
}

Target::Target() { check(library().create(&handle), "cudnnCreate"); }

Target::Target(const std::string& json) : properties(make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)) {
  set(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::ssize(json),
      json.data());
  finalize(properties);
}

Layout Layout::packed(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  return {.sizes = {batch, heads, rows, columns},
          .strides = {heads * rows * columns, rows * columns, columns, 1}};
}

Layout Layout::transposed() const {
  Layout other = *this;
  std::swap(other.sizes[2], other.sizes[3]);
  std::swap(other.strides[2], other.strides[3]);
  return other;
}

Graph::Tensor Graph::add_tensor(cudnnDataType_t type, const Layout& layout, bool is_interim,
                                bool is_scalar) {
  const Tensor number = std::ssize(tensors_) + 1;
  const Descriptor& tensor = tensors_.emplace_back(make(CUDNN_BACKEND_TENSOR_DESCRIPTOR));
  set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, number);
  set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, layout.sizes.data());
  set(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, layout.strides.data());
  set(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_interim);
  set(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, is_scalar);
  finalize(tensor);
  return number;
}

Graph::Tensor Graph::stored(cudnnDataType_t type, const Layout& layout) {
  return stored_.emplace_back(add_tensor(type, layout, false, false));
}

Graph::Tensor Graph::interim(const Layout& layout, cudnnDataType_t type) {
  return add_tensor(type, layout, true, false);
}

Graph::Tensor Graph::scalar(float value) {
  values_.push_back(value);
  return scalars_.emplace_back(
      add_tensor(CUDNN_DATA_FLOAT, Layout::packed(1, 1, 1, 1), false, true));
}

void Graph::use(const Descriptor& operation, cudnnBackendAttributeName_t name,
                Tensor tensor) const {
  set(operation, name, tensors_[static_cast<size_t>(tensor - 1)]);
}

Graph::Tensor Graph::matmul(Tensor a, Tensor b, Tensor y) {
  const Descriptor& detail = details_.emplace_back(make(CUDNN_BACKEND_MATMUL_DESCRIPTOR));
  set(detail, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  finalize(detail);
  const Descriptor& operation =
      operations_.emplace_back(make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR));
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, detail);
  use(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  use(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  use(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y);
  finalize(operation);
  return y;
}

Graph::Tensor Graph::reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y) {
  const Descriptor& detail = details_.emplace_back(make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
  set(detail, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
  set(detail, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  finalize(detail);
  const Descriptor& operation =
      operations_.emplace_back(make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR));
  set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, detail);
  use(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  use(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  finalize(operation);
  return y;
}

Graph::Tensor Graph::reshape(Tensor x, Tensor y) {
  const Descriptor& operation =
      operations_.emplace_back(make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR));
  use(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  use(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  finalize(operation);
  return y;
}

Graph::Tensor Graph::pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Tensor> x, Tensor y,
                               cudnnDataType_t compute, std::optional<int64_t> axis) {
  const Descriptor& detail = details_.emplace_back(make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
  set(detail, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set(detail, CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
  if (axis) {
    set(detail, CUDNN_ATTR_POINTWISE_AXIS, *axis);
  }
  finalize(detail);
  const Descriptor& operation =
      operations_.emplace_back(make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
  set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, detail);
  constexpr cudnnBackendAttributeName_t kOperands[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                       CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                       CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
  const cudnnBackendAttributeName_t* name = kOperands;
  for (const Tensor operand : x) {
    use(operation, *name++, operand);
  }
  use(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  finalize(operation);
  return y;
}

void Graph::finish(const Target& target) {
  graph_ = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<void*> operations;
  for (const Descriptor& operation : operations_) {
    operations.push_back(operation.get());
  }
  set(graph_, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(operations),
      operations.data());
  if (target.handle) {
    set(graph_, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  }
  finalize(graph_);
}

std::vector<Engine> engines(const Graph& graph, const Target& target) {
  const Descriptor heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.descriptor());
  constexpr cudnnBackendHeurMode_t kMode = CUDNN_HEUR_MODE_A;
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &kMode);
  if (target.properties) {
    set(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.properties);
  }
  finalize(heuristic);
  constexpr int kMost = 16;
  Descriptor configs[kMost];
  void* found[kMost];
  for (int i = 0; i < kMost; ++i) {
    configs[i] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    found[i] = configs[i].get();
  }
  const int64_t count =
      get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, found);
  std::vector<Engine> result;
  for (int64_t i = 0; i < count; ++i) {
    const Descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    void* pointer = engine.get();
    get(configs[i], CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &pointer);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    const int64_t noted = get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                              CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    if (std::count(notes, notes + noted, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) > 0) {
      continue;
    }
    Engine& kept = result.emplace_back();
    get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &kept.number);
    get(configs[i], CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
        &kept.workspace_bytes);
    kept.config = std::move(configs[i]);
  }
  return result;
}

Plan::Plan(Graph graph, const Target& target) : graph_(std::move(graph)) {
  std::string refusals;
  for (const Engine& engine : engines(graph_, target)) {
    try {
      Descriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.config);
      set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
      finalize(plan);
      get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace_bytes_);
      plan_ = std::move(plan);
      return;
    } catch (const Error& error) {
      refusals += str("; engine ", engine.number, ": ", error.what());
    }
  }
  fail(ExitCode::kConfig, str("cuDNN has no engine", refusals));
}

void Plan::run(const Target& target, CUstream_st* stream, std::span<void* const> data,
               void* workspace) const {
  std::vector<Graph::Tensor> numbers = graph_.stored_tensors();
  require(data.size() == numbers.size(), "cuDNN: an address for each stored tensor");
  std::vector<const void*> addresses(data.begin(), data.end());
  for (const void* address : addresses) {
    require(reinterpret_cast<uintptr_t>(address) % kAlignment == 0, "cuDNN: 16-byte alignment");
  }
  for (size_t i = 0; i < graph_.scalars().size(); ++i) {
    numbers.push_back(graph_.scalars()[i]);
    addresses.push_back(&graph_.scalar_values()[i]);
  }
  const Descriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::ssize(numbers),
      numbers.data());
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::ssize(addresses),
      addresses.data());
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  finalize(pack);
  check(library().set_stream(target.handle, stream), "cudnnSetStream");
  check(library().execute(target.handle, plan_.get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace tandem::cudnn
