#include "src/train/snapshot.h"

#include <optional>

#include "comm/agreement.h"
#include "src/device/copy.h"
#include "src/io/checkpoint.h"
#include "src/kernels/convert.h"

namespace tandem {

namespace {

Slab slab_of(const ParamValues::Weights& weights) {
  return {"param/" + weights.parameter->name, weights.parameter->slice(), weights.offset,
          weights.data};
}

Slab slab_of(std::string_view slot, const Parameter& parameter, const Extent& extent,
             const Tensor& state) {
  return {str("optim/", slot, "/", parameter.name), parameter.slice(), extent.in_parameter,
          state.slice(extent.in_flat, extent.count)};
}

Slab slab_of(const RunningStatistics& statistics) {
  return {"stat/" + statistics.name, Shape{2, statistics.channels}, 0,
          statistics.running.reshape({2 * statistics.channels})};
}

// f32 in host memory.
Tensor as_written(Stream& stream, Memory& host, const Tensor& data) {
  const Tensor here = data.device() == Device::kCpu ? data : copied(stream, data, host);
  if (here.dtype() == DType::kF32) {
    return here;
  }
  const Tensor widened = Tensor::empty(host, here.shape(), DType::kF32, MemoryClass::kData);
  convert(Stream::compute(Device::kCpu), here, widened);
  return widened;
}

// Calls visit(sums, names of its exponents) for parameters and for statistics.
template <class F>
void visit_exact_sums(TrainingStep& training, F visit) {
  std::vector<std::string> names;
  if (ExactSums* sums = training.store().gradients.exact()) {
    for (const Parameter* parameter : training.store().layout.parameters()) {
      names.push_back("param/" + parameter->name);
    }
    visit(*sums, names);
  }
  if (ExactSums* sums = training.statistics().exact()) {
    names.clear();
    for (size_t i = 0; i < sums->exponents().size(); ++i) {
      names.push_back(str("stat/", i));
    }
    visit(*sums, names);
  }
}

}  // namespace

std::vector<Slab> owned_slabs(Stream& stream, const ParamStore& store, const Optimizer& optimizer,
                              Model& model, int rank) {
  std::vector<Slab> slabs;
  for (const ParamValues::Weights& weights : store.values.owned_weights()) {
    slabs.push_back(slab_of(weights));
  }
  optimizer.visit([&](std::string_view slot, size_t shard, const Tensor& state) {
    for (const Extent& extent : store.shards.owned_extents(shard)) {
      slabs.push_back(slab_of(slot, store.shards.parameter(extent), extent, state));
    }
  });
  if (rank == 0) {
    for (const RunningStatistics* statistics : model.statistics()) {
      slabs.push_back(slab_of(*statistics));
    }
  }
  Memory host(Device::kCpu);
  for (Slab& slab : slabs) {
    slab.data = as_written(stream, host, slab.data);
  }
  return slabs;
}

CheckpointReader open_checkpoint(Control& control, const std::string& directory) {
  Manifest manifest;
  std::string share;
  agree(control, [&] {
    manifest = read_manifest(directory);
    share = index_files(directory, manifest, static_cast<size_t>(control.rank()),
                        static_cast<size_t>(control.size()))
                .text();
  });
  CheckpointIndex index;
  for (const std::string& text : control.all_gather(share)) {
    index.add(text);
  }
  std::optional<CheckpointReader> reader;
  agree(control, [&] { reader.emplace(directory, manifest, index); });
  return std::move(*reader);
}

std::vector<Slab> weights_here(const ParamValues& values, Model& model) {
  std::vector<Slab> slabs;
  for (const ParamValues::Weights& weights : values.weights()) {
    slabs.push_back(slab_of(weights));
  }
  for (const RunningStatistics* statistics : model.statistics()) {
    slabs.push_back(slab_of(*statistics));
  }
  return slabs;
}

std::vector<Slab> state_here(const OptimizerShards& shards, Optimizer& optimizer) {
  std::vector<Slab> slabs;
  optimizer.visit([&](std::string_view slot, size_t shard, const Tensor& state) {
    for (const Extent& extent : shards.extents(shard)) {
      slabs.push_back(slab_of(slot, shards.parameter(extent), extent, state));
    }
  });
  return slabs;
}

void require_tensors(const CheckpointReader& reader, const std::vector<Slab>& slabs) {
  for (const Slab& slab : slabs) {
    reader.require_tensor(slab.name, slab.slice.whole());
  }
}

void load(Stream& stream, const CheckpointReader& reader, const std::vector<Slab>& slabs) {
  Memory host(Device::kCpu);
  for (const Slab& slab : slabs) {
    if (slab.data.device() == Device::kCpu && slab.data.dtype() == DType::kF32) {
      reader.read(slab);
      continue;
    }
    Slab here = slab;
    here.data = Tensor::empty(host, slab.data.shape(), DType::kF32, MemoryClass::kData);
    reader.read(here);
    copy_rounded(stream, here.data, slab.data);
  }
}

std::map<std::string, int32_t> exponents_of(TrainingStep& training) {
  std::map<std::string, int32_t> exponents;
  visit_exact_sums(training, [&](const ExactSums& sums, const std::vector<std::string>& names) {
    for (size_t i = 0; i < sums.exponents().size(); ++i) {
      exponents[names[i]] = sums.exponents()[i];
    }
  });
  return exponents;
}

void load_exponents(const std::map<std::string, int32_t>& exponents, TrainingStep& training) {
  visit_exact_sums(training, [&](ExactSums& sums, const std::vector<std::string>& names) {
    std::vector<int32_t> loaded = sums.exponents();
    for (size_t i = 0; i < loaded.size(); ++i) {
      const auto found = exponents.find(names[i]);
      loaded[i] = found == exponents.end() ? loaded[i] : found->second;
    }
    sums.set_exponents(std::move(loaded));
  });
}

}  // namespace tandem
