#include "src/train/snapshot.h"

#include "src/core/copy.h"

namespace tandem {

namespace {

Slab slab_of(const ParamStore::Weights& weights) {
  return {"param/" + weights.parameter->name, weights.parameter->shape, weights.offset,
          weights.data};
}

Slab slab_of(std::string_view slot, const ParamStore::Piece& piece, const Tensor& state) {
  return {str("optim/", slot, "/", piece.parameter->name), piece.parameter->shape, piece.offset,
          state.slice(piece.shard_offset, piece.count)};
}

Slab slab_of(const RunningStatistics& statistics) {
  return {"stat/" + statistics.name,
          {2, statistics.channels},
          0,
          statistics.running.reshape({2 * statistics.channels})};
}

void read(Stream& stream, const CheckpointReader& reader, const Slab& slab) {
  if (slab.data.device() == Device::kCpu) {
    reader.read(slab.name, slab.shape, slab.offset, slab.data);
    return;
  }
  Memory host(Device::kCpu);
  const Tensor data = Tensor::empty(host, slab.data.shape(), slab.data.dtype(), MemoryClass::kData);
  reader.read(slab.name, slab.shape, slab.offset, data);
  copy(stream, data, slab.data);
}

}  // namespace

std::vector<Slab> owned_slabs(Stream& stream, const ParamStore& store, const Optimizer& optimizer,
                              Model& model, int rank) {
  std::vector<Slab> slabs;
  for (const ParamStore::Weights& weights : store.owned_weights()) {
    slabs.push_back(slab_of(weights));
  }
  optimizer.visit([&](std::string_view slot, size_t shard, const Tensor& state) {
    for (const ParamStore::Piece& piece : store.owned_pieces(shard)) {
      slabs.push_back(slab_of(slot, piece, state));
    }
  });
  if (rank == 0) {
    for (const RunningStatistics* statistics : model.statistics()) {
      slabs.push_back(slab_of(*statistics));
    }
  }
  if (stream.device() != Device::kCpu) {
    Memory host(Device::kCpu);
    for (Slab& slab : slabs) {
      slab.data = copied(stream, slab.data, host);
    }
  }
  return slabs;
}

void load_weights(Stream& stream, const CheckpointReader& reader, ParamStore& store, Model& model) {
  for (const ParamStore::Weights& weights : store.weights()) {
    read(stream, reader, slab_of(weights));
  }
  for (const RunningStatistics* statistics : model.statistics()) {
    read(stream, reader, slab_of(*statistics));
  }
}

void load_optimizer(Stream& stream, const CheckpointReader& reader, const ParamStore& store,
                    Optimizer& optimizer) {
  optimizer.visit([&](std::string_view slot, size_t shard, const Tensor& state) {
    for (const ParamStore::Piece& piece : store.pieces(shard)) {
      read(stream, reader, slab_of(slot, piece, state));
    }
  });
}

}  // namespace tandem
