// One step of training on this rank: the gathering of values that the step before updated, forward
// and backward of micro-batches, sums over ranks, the verdict (finite? clipped? loss scale?), the
// update. It knows neither where data comes from nor who reads the figures.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/sharding/matrices/whole_matrices.h"
#include "comm/sharding/param_store.h"
#include "layers/models/model.h"
#include "src/autograd/tape.h"
#include "src/device/graph.h"
#include "src/device/host/stack.h"
#include "src/step/batch_statistics.h"
#include "src/step/device_batch.h"
#include "src/step/island_sync.h"
#include "src/step/lost_step.h"
#include "src/step/offloaded_update.h"
#include "src/step/step_record.h"
#include "src/step/training_step_options.h"

namespace tandem {

class TrainingStep {
 public:
  using Options = TrainingStepOptions;

  struct Input {
    int64_t step = 0;  // updates done before
    double lr = 0;
    double targets = 0;  // in the global batch
    // Returns this rank's micro-batch by number. Called again if the step is run again. A graph
    // keeps what it asks of the stream.
    std::function<DeviceBatch(int64_t micro_step)> batch;
    Tensor memory{};  // with options.graph: what batch() reads, which must stay where it is
  };

  // Collective among `groups`. The ranks of groups.data share the global batch, those of other data
  // groups of the stage take the same samples. `staging`: host memory, page-locked for a GPU. All
  // references must outlive this. Weights are not initialised. With fp16 values the loss is scaled.
  TrainingStep(Model& model, const ModelGroups& groups, Stream& stream, Memory& memory,
               Memory& staging, const Options& options);

  // Collective. Enqueues a whole step; with exact sums it waits for the verdict on them. It begins
  // with the gathering of the values that were written before it, and leaves those that it updates
  // to the next one: whoever else wants to read them calls settle() first.
  //
  // With options.graph the first step is enqueued like that, the second is captured, and it and
  // later ones are launches of this graph. Then all of the scratch memory must be free. Steps that
  // are traced, metered or run again stay outside the graph.
  //
  // Returns the record of the step as it will be when `done` is reached.
  StepRecord::Copy run(const Input& input);
  // Collective. Ends what steps have left to the next one, but for what IslandSync does: later work
  // of the compute stream sees masters and state, and forward passes find the values.
  void settle();
  // Copied to the device so far, for options.store.offload_run and options.parks_inputs.
  int64_t offloaded_bytes() const {
    return (offloaded_ ? offloaded_->bytes() : 0) + (parked_ ? parked_->bytes() : 0);
  }
  // What the islands exchange; null if there is one. The caller tells it when a step has ended.
  IslandSync* islands() { return islands_ ? &*islands_ : nullptr; }
  // Collective. Runs a step that halted training once more, with the same input, and says where it
  // goes wrong. Looks at the output of each block and at each gradient, and waits for the device
  // each time. Changes nothing that lasts. `first`: the record of the lost step.
  LostStep run_again(const Input& input, const StepRecord::Copy& first);

  // Makes a context for forward passes between steps. `memory` is of the same device.
  Context forward_context(Memory& memory) {
    return {.stream = stream_,
            .memory = memory,
            .gate = &store_->gradients,
            .tensor = groups_.exchange()};
  }

  ParamStore& store() { return *store_; }
  StepRecord& record() { return *record_; }
  Optimizer& optimizer() { return *optimizer_; }
  BatchStatistics& statistics() { return *statistics_; }
  const StepOptions& options() const { return verdict_; }
  const BatchPlan& batch() const { return options_.batch; }
  // Where this rank's time goes. run() enters kCommunication and kOptimizer; callers the others.
  Timeline& timeline() { return store_->values.timeline(); }

 private:
  int64_t micro_steps() const {
    const int64_t all = options_.batch.accumulation(), most = options_.most_micro_steps;
    return most > 0 ? std::min(all, most) : all;
  }
  // A captured step. Its timeline has stamps.
  struct Captured {
    Graph graph;
    Timeline timeline;
    Tensor input;
  };

  void make_islands();
  void update();
  void send(const Input& input);
  void enqueue(const Input& input);
  void rehearse(const Input& input);
  StepRecord::Copy launch(const Input& input);
  void capture(const Input& input);
  bool run_micro_steps(const Input& input);
  bool run_micro_step(const Input& input, int64_t micro_step);
  void sum_figures();

  Model& model_;
  ModelGroups groups_;
  Stream& stream_;
  Memory &memory_, &staging_;
  Memory scratch_;  // what begins and ends in a step
  Options options_;
  StepOptions verdict_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<BatchStatistics> statistics_;
  std::unique_ptr<StepRecord> record_;
  std::optional<WholeMatrices> matrices_{};
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<OffloadedUpdate> offloaded_{};
  std::optional<HostStack> parked_{};
  std::optional<IslandSync> islands_{};
  std::optional<FiniteCheck> check_{};  // while a lost step is run again
  bool has_run_ = false;
  Tensor stamps_{};  // i64, on the device; with options.graph
  std::optional<Captured> captured_{};
  Tape tape_;
};

}  // namespace tandem
