// Between the memory of a run and its checkpoint: which pieces this rank writes, and how they come
// back.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/param_store.h"
#include "layers/module.h"
#include "optim/optimizer.h"
#include "src/core/slab.h"
#include "src/io/checkpoint.h"
#include "src/train/training_step.h"

namespace tandem {

// What this rank writes, in host memory: its part of /param and /optim; rank 0 also all of /stat.
// Blocks the host until the stream's work is done.
std::vector<Slab> owned_slabs(Stream& stream, const ParamStore& store, const Optimizer& optimizer,
                              Model& model, int rank);

// Fills this rank's part of the parameters, which the caller publishes, and running statistics.
// Error kData names what is missing or has another shape: "a checkpoint of another model".
void load_weights(Stream& stream, const CheckpointReader& reader, const ParamValues& values,
                  Model& model);
void load_optimizer(Stream& stream, const CheckpointReader& reader, const OptimizerShards& shards,
                    Optimizer& optimizer);

// The exponents of exact sums, by the names that RunState gives them; none where sums are not
// exact. load_exponents() leaves those that `exponents` lacks as they are; error kData for
// exponents that no step can find.
std::map<std::string, int32_t> exponents_of(TrainingStep& training);
void load_exponents(const std::map<std::string, int32_t>& exponents, TrainingStep& training);

}  // namespace tandem
