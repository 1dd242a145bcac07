#include "src/weights/snapshot.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/device/copy.h"
#include "src/device/ranks/agreement.h"
#include "src/kernels/convert.h"

namespace tandem {

namespace {

// They stay as long as the run, so that their sizes are not rounded up.
constexpr MemoryClass kCopies = MemoryClass::kMasters;

// Elements [first, first + n) of a parameter, which `data` holds.
void add(const std::string& prefix, const Parameter& parameter, int64_t first, const Tensor& data,
         std::vector<Slab>& slabs) {
  visit_pieces(parameter, {first, first + data.elements()},
               [&](const Piece& piece, Range in_slice, int64_t begin) {
                 slabs.push_back({prefix + piece.name, piece.slice, in_slice.begin,
                                  data.slice(begin, in_slice.count())});
               });
}

void add_weights(const std::vector<ParamValues::Weights>& all, std::vector<Slab>& slabs) {
  for (const ParamValues::Weights& weights : all) {
    add("param/", *weights.parameter, weights.offset, weights.data, slabs);
  }
}

// `extents`: which ones of a shard.
template <class F>
void add_state(const OptimizerShards& shards, const Optimizer& optimizer, F extents,
               std::vector<Slab>& slabs) {
  optimizer.visit([&](std::string_view slot, size_t shard, const Tensor& state) {
    for (const Extent& extent : std::invoke(extents, shards, shard)) {
      add(str("optim/", slot, "/"), shards.parameter(extent), extent.in_parameter,
          state.slice(extent.in_flat, extent.count), slabs);
    }
  });
}

void add_statistics(Model& model, std::vector<Slab>& slabs) {
  for (const RunningStatistics* statistics : model.statistics()) {
    slabs.push_back({"stat/" + statistics->name, Shape{2, statistics->channels}, 0,
                     statistics->running.reshape({2 * statistics->channels})});
  }
}

// Calls visit(sums, names of its exponents) for parameters and for statistics.
template <class F>
void visit_sums(TrainingStep& training, F visit) {
  std::vector<std::string> names = mapped(training.store().layout.parameters(),
                                          [](const Parameter* p) { return "param/" + p->name; });
  visit(training.store().gradients.rule(), names);
  if (ExactSums* sums = training.statistics().exact()) {
    names.clear();
    for (size_t i = 0; i < sums->exponents().size(); ++i) {
      names.push_back(str("stat/", i));
    }
    visit(*sums, names);
  }
}

std::vector<Slab> owned_slabs(const ParamStore& store, const Optimizer& optimizer, Model& model,
                              int rank, const std::set<std::string>& left_out) {
  std::vector<Slab> slabs;
  add_weights(store.values.saved_weights(), slabs);
  add_state(store.shards, optimizer, &OptimizerShards::saved_extents, slabs);
  if (rank == 0) {
    add_statistics(model, slabs);
  }
  std::erase_if(slabs, [&](const Slab& slab) { return left_out.contains(slab.name); });
  return slabs;
}

bool needs_copy(const Tensor& data, bool apart) {
  return apart || data.dtype() != DType::kF32 || data.device() != Device::kCpu;
}

// Whether 16-bit values, such as frozen weights, come from a GPU before they become f32.
bool passes_the_host(const Tensor& data) {
  return data.dtype() != DType::kF32 && data.device() != Device::kCpu;
}

}  // namespace

std::set<std::string> frozen_tensors(const Model& model) {
  std::set<std::string> names;
  for (const Parameter* parameter : parameters_of(model)) {
    for (const Piece& piece : pieces_of(*parameter)) {
      if (parameter->frozen) {
        names.insert("param/" + piece.name);
      }
    }
  }
  return names;
}

int64_t snapshot_bytes(const ParamStore& store, const Optimizer& optimizer, Model& model, int rank,
                       bool apart, const std::set<std::string>& left_out) {
  constexpr int64_t kAlignment = 64;  // of blocks of kCopies
  const auto aligned = [](int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t bytes = 0, passing = 0;
  for (const Slab& slab : owned_slabs(store, optimizer, model, rank, left_out)) {
    const int64_t elements = slab.data.elements();
    if (needs_copy(slab.data, apart)) {
      bytes += aligned(elements * size_of(DType::kF32));
    }
    if (passes_the_host(slab.data)) {
      passing = std::max(passing, aligned(elements * size_of(slab.data.dtype())));
    }
  }
  return bytes + passing;
}

Snapshot::Snapshot(Stream& stream, bool apart)
    : stream_(stream),
      apart_(apart),
      host_(stream.device() == Device::kCpu ? Memory(Device::kCpu) : Memory::pinned()) {}

std::span<const Slab> Snapshot::take(const ParamStore& store, const Optimizer& optimizer,
                                     Model& model, int rank) {
  std::vector<Slab> slabs = owned_slabs(store, optimizer, model, rank, left_out_);
  slabs_.resize(slabs.size());
  stream_.synchronize();  // the host itself copies what rests in its memory
  for (size_t i = 0; i < slabs.size(); ++i) {
    slabs[i].data = host_copy(slabs[i].data, slabs_[i].data);
  }
  slabs_ = std::move(slabs);
  stream_.synchronize();
  return slabs_;
}

// f32, on the host. `former`: the tensor that the same slab used in the snapshot before. The copy
// is complete once the stream has been synchronized.
Tensor Snapshot::host_copy(const Tensor& data, const Tensor& former) {
  if (!needs_copy(data, apart_)) {
    return data;
  }
  Tensor here = former && former.shape() == data.shape()
                    ? former
                    : Tensor::empty(host_, data.shape(), DType::kF32, kCopies);
  Stream host_stream = Stream::compute(Device::kCpu);
  if (data.dtype() != DType::kF32) {
    convert(host_stream, passes_the_host(data) ? copied(stream_, data, host_) : data, here);
  } else {
    copy(data.device() == Device::kCpu ? host_stream : stream_, data, here);
  }
  return here;
}

std::vector<Slab> weights_here(const ParamValues& values, Model& model) {
  std::vector<Slab> slabs;
  add_weights(values.weights(), slabs);
  add_statistics(model, slabs);
  return slabs;
}

std::vector<Slab> state_here(const OptimizerShards& shards, Optimizer& optimizer) {
  std::vector<Slab> slabs;
  add_state(shards, optimizer, &OptimizerShards::extents, slabs);
  return slabs;
}

void require_tensors(const TensorSource& source, const std::vector<Slab>& slabs) {
  for (const Slab& slab : slabs) {
    source.require_tensor(slab.name, slab.slice.whole());
  }
}

void require_known_slots(Control& control, const std::string& checkpoint,
                         const std::vector<std::string>& tensors, const std::vector<Slab>& slabs) {
  const auto slot_of = [](const std::string& name) { return name.substr(0, name.rfind('/')); };
  std::set<std::string> here;
  for (const Slab& slab : slabs) {
    here.insert(slot_of(slab.name));
  }
  const std::vector<double> ranks = control.sum(mapped(
      tensors, [&](const std::string& name) { return here.contains(slot_of(name)) ? 1.0 : 0.0; }));
  if (const auto unknown = std::ranges::find(ranks, 0); unknown != ranks.end()) {
    throw AgreedError(ExitCode::kData, checkpoint, ": has a tensor ",
                      visible(tensors[static_cast<size_t>(unknown - ranks.begin())]),
                      ", which this optimizer has not: it was written by another one");
  }
}

void load(Stream& stream, const TensorSource& source, const std::vector<Slab>& slabs) {
  Memory host(Device::kCpu);
  for (const Slab& slab : slabs) {
    if (slab.data.device() == Device::kCpu && slab.data.dtype() == DType::kF32) {
      source.read(slab);
      continue;
    }
    Slab here = slab;
    here.data = Tensor::empty(host, slab.data.shape(), DType::kF32, MemoryClass::kData);
    source.read(here);
    copy_rounded(stream, here.data, slab.data);
  }
}

std::map<std::string, int32_t> exponents_of(TrainingStep& training) {
  std::map<std::string, int32_t> exponents;
  visit_sums(training, [&](const auto& sums, const std::vector<std::string>& names) {
    for (size_t i = 0; i < sums.exponents().size(); ++i) {
      exponents[names[i]] = sums.exponents()[i];
    }
  });
  return exponents;
}

void load_exponents(const std::map<std::string, int32_t>& exponents, TrainingStep& training) {
  visit_sums(training, [&](auto& sums, const std::vector<std::string>& names) {
    std::vector<int32_t> loaded(sums.exponents().begin(), sums.exponents().end());
    for (size_t i = 0; i < loaded.size(); ++i) {
      const auto found = exponents.find(names[i]);
      loaded[i] = found == exponents.end() ? loaded[i] : found->second;
    }
    sums.set_exponents(std::move(loaded));
  });
}

}  // namespace tandem
