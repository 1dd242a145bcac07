// The models of the benchmarks.
#pragma once

#include <memory>
#include <optional>

#include "layers/models/resnet.h"
#include "layers/models/transformer.h"
#include "tests/bench/gpu/bench.h"

namespace tandem::bench {

struct Case {
  std::string name;
  int64_t batch = 1;                               // samples of a micro-batch
  std::optional<TransformerConfig> transformer{};  // resolved()
  std::optional<ResNetConfig> resnet{};

  std::unique_ptr<Model> make_model() const;
};

// The case that the options name, with their batch and vocabulary. Throws Error(kConfig) that names
// all cases.
Case case_of(const Options& options);
// The same, which must be a transformer: only these have a cost model.
Case transformer_of(const Options& options);

}  // namespace tandem::bench
