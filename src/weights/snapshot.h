// Between the memory of a run and its checkpoint: what this rank writes, and what it loads.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/sharding/param_store.h"
#include "layers/models/model.h"
#include "optim/optimizer.h"
#include "src/device/ranks/control.h"
#include "src/device/slab.h"
#include "src/step/training_step.h"

namespace tandem {

// What this rank writes, in host memory: its shards of /param, but for those that stand elsewhere,
// and of /optim; on rank 0 also all of /stat.
class Snapshot {
 public:
  // `stream`: the compute stream, which must outlive this. `apart`: always a copy, so that training
  // may go on while it is written. Otherwise tensors in the host's memory are not copied.
  Snapshot(Stream& stream, bool apart);

  // Blocks the host until the copy is whole. The slabs are valid until the next call, which uses
  // their memory again.
  std::span<const Slab> take(const ParamStore& store, const Optimizer& optimizer, Model& model,
                             int rank);
  // Later snapshots are without these tensors.
  void leave_out(std::set<std::string> names) { left_out_ = std::move(names); }
  // The most memory of the host that the copies took.
  int64_t host_bytes() const { return host_.total().peak_bytes; }

 private:
  Tensor host_copy(const Tensor& data, const Tensor& former);

  Stream& stream_;
  bool apart_;
  Memory host_;  // page-locked for a GPU
  std::vector<Slab> slabs_;
  std::set<std::string> left_out_;
};

// The frozen weights, by their names in a checkpoint.
std::set<std::string> frozen_tensors(const Model& model);

// The host memory that a Snapshot of f32 tensors takes, without those that are `left_out`, and the
// largest tensor of 16 bits that comes from a GPU.
int64_t snapshot_bytes(const ParamStore& store, const Optimizer& optimizer, Model& model, int rank,
                       bool apart, const std::set<std::string>& left_out);

// What this rank loads, as views of the memory in use. weights_here(): its shards of the
// parameters, which the caller publishes after load(), and all running statistics. state_here():
// its shards of the optimizer's state.
std::vector<Slab> weights_here(const ParamValues& values, Model& model);
std::vector<Slab> state_here(const OptimizerShards& shards, Optimizer& optimizer);

// Error kData if a tensor is missing or has another shape: the checkpoint is of another model.
void require_tensors(const TensorSource& source, const std::vector<Slab>& slabs);
// Collective. AgreedError(kData) for a tensor of a slot, such as "optim/m", that no rank loads.
void require_known_slots(Control& control, const std::string& checkpoint,
                         const std::vector<std::string>& tensors, const std::vector<Slab>& slabs);
// Fills the slabs. Error kData for a damaged piece.
void load(Stream& stream, const TensorSource& source, const std::vector<Slab>& slabs);

// The exponents of exact sums, with the names of RunState::exponents; empty if sums are not exact.
// load_exponents() keeps the present exponent of a name that is missing. Error kData for exponents
// that no step can have chosen.
std::map<std::string, int32_t> exponents_of(TrainingStep& training);
void load_exponents(const std::map<std::string, int32_t>& exponents, TrainingStep& training);

}  // namespace tandem
