#include "src/train/snapshot.h"

#include "src/core/convert.h"
#include "src/core/copy.h"

namespace tandem {

namespace {

Slab slab_of(const ParamValues::Weights& weights) {
  return {"param/" + weights.parameter->name, weights.parameter->shape, weights.offset,
          weights.data};
}

Slab slab_of(std::string_view slot, const Parameter& parameter, const Extent& extent,
             const Tensor& state) {
  return {str("optim/", slot, "/", parameter.name), parameter.shape, extent.in_parameter,
          state.slice(extent.in_flat, extent.count)};
}

Slab slab_of(const RunningStatistics& statistics) {
  return {"stat/" + statistics.name,
          {2, statistics.channels},
          0,
          statistics.running.reshape({2 * statistics.channels})};
}

void read(Stream& stream, const CheckpointReader& reader, const Slab& slab) {
  if (slab.data.device() == Device::kCpu && slab.data.dtype() == DType::kF32) {
    reader.read(slab.name, slab.shape, slab.offset, slab.data);
    return;
  }
  Memory host(Device::kCpu);
  const Tensor data = Tensor::empty(host, slab.data.shape(), DType::kF32, MemoryClass::kData);
  reader.read(slab.name, slab.shape, slab.offset, data);
  copy_rounded(stream, data, slab.data);
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

void load_weights(Stream& stream, const CheckpointReader& reader, const ParamValues& values,
                  Model& model) {
  for (const ParamValues::Weights& weights : values.weights()) {
    read(stream, reader, slab_of(weights));
  }
  for (const RunningStatistics* statistics : model.statistics()) {
    read(stream, reader, slab_of(*statistics));
  }
}

void load_optimizer(Stream& stream, const CheckpointReader& reader, const OptimizerShards& shards,
                    Optimizer& optimizer) {
  optimizer.visit([&](std::string_view slot, size_t shard, const Tensor& state) {
    for (const Extent& extent : shards.extents(shard)) {
      read(stream, reader, slab_of(slot, shards.parameter(extent), extent, state));
    }
  });
}

}  // namespace tandem
