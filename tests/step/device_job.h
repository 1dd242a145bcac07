// A small training job on one device, which is the same job on 1 to 4 ranks
// (tests/support/mpi_main.cpp): model, ranks and a whole TrainingStep. The batches are in the
// memory of the device before the first step.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "src/step/training_step.h"
#include "tests/support/ranks.h"

namespace tandem::testing {

inline constexpr int kGlobalBatch = 12;  // divisible by 1 to 4 ranks

// Half or a third of a rank's share of the global batch, so that there are several micro-steps.
int64_t small_micro_batch();

struct Plan {
  // gpt, llama, qwen (all values of llama), lora, resnet, mlp, two-heads (which take turns)
  std::string model = "gpt";
  int64_t head_width = 8;  // of gpt and llama, which have 2 heads
  Device device = Device::kCpu;
  DType dtype = DType::kF32;
  DType wire = DType::kF32;
  bool gather_int8 = false;
  int zero = 0;
  bool exact = false;
  bool recompute = false;
  bool overlap = true;
  int64_t bucket_bytes = 2000;
  int64_t global_batch = kGlobalBatch;
  int64_t micro_batch = 0;          // samples; 0: a rank's whole share
  int64_t layers = 2;               // of gpt and llama
  double dropout = 0.1;             // of gpt and llama
  std::string optimizer = "adamw";  // adamw, sgd, momentum, muon
  double lr = 0.01;                 // of train()
  int poisoned_step = -1;           // of train(), as in Job::step(); -1: none
  int node_size = 0;                // ranks a node; 0: all on one
  Sharing sharing = Sharing::kWorld;
  bool staged = false;        // GPU gradients through MPI
  bool graph = false;         // a step is one CUDA graph
  int64_t offload_run = 0;    // as in StoreOptions
  bool parks_inputs = false;  // as in TrainingStepOptions
  bool alone = false;         // every rank does the whole job by itself
  int islands = 1;            // groups of neighbouring ranks; each has its own samples
  std::optional<IslandOptions> exchange{};  // of islands; empty: none
  int samples_of = -1;   // the data group whose samples these are; -1: this rank's own
  bool halts = false;    // as in StepOptions
  std::string frozen{};  // a block whose parameters are not trained
  bool uneven = false;   // no targets in the first half of the global batch, few in the second
  int64_t classes = 0;   // or tokens of the vocabulary; 0: a few
  bool padded = true;    // rows of classes are padded, on a GPU
};

class Job {
 public:
  explicit Job(const Plan& plan);
  ~Job();  // waits for enqueued work

  // Enqueues a step. `poison`: this rank's gradients of that step overflow, because they are
  // divided by poisoned_targets instead of the targets. Collective.
  void step(int64_t number, bool poison = false, double lr = 0.01);
  double poisoned_targets = 1e-38;
  // Runs a step that halted training once more. Collective.
  LostStep run_again(int64_t number, const StepRecord::Copy& first, bool poison = false);
  // The record is read one step late, as in the trainer.
  const StepRecord::Copy& record() const { return record_; }
  double loss_of(const StepRecord::Copy& copy);  // mean over the global batch
  // All master weights, in the order of the parameters. Collective. Fails if this rank's own values
  // differ from them.
  std::vector<double> weights();
  // What belongs to no parameter in this rank's masters, working copies, gradients and optimizer
  // state.
  std::vector<double> padding();
  // Running means and variances of BatchNorm.
  std::vector<double> statistics() const;
  Stream& stream() { return stream_; }
  // Takes the events of the steps so far, as the trainer does after each.
  void take_timeline() { static_cast<void>(training_.timeline().take(stream_)); }
  Model& model() { return *model_; }
  Memory& memory() { return memory_; }
  TrainingStep& training() { return training_; }
  // Called as a micro-step begins.
  std::function<void()> before_micro_step = [] {};
  // Called with each micro-batch, and may change what is in it.
  std::function<void(int64_t micro_step, const DeviceBatch&)> change = [](int64_t, auto&) {};
  // From now on the input stands in other memory.
  void move_input();
  // Makes the last element of a parameter infinite. Collective.
  void spoil(const std::string& parameter);
  int64_t micro_batches() const { return static_cast<int64_t>(batches_.size()); }  // of this rank

 private:
  TrainingStep::Input input(int64_t number, bool poison, double lr);
  DeviceBatch batch(int64_t micro_step);
  DeviceBatch make_batch(int64_t first_sample, int64_t samples);

  Plan plan_;
  OneRank self_;
  std::unique_ptr<Collectives> nccl_;  // null: the world's, or self_
  Stream& stream_;
  Memory memory_, staging_;
  Mesh mesh_;
  Group& data_;
  std::unique_ptr<Model> model_;
  TrainingStep training_;
  std::vector<DeviceBatch> batches_;
  DeviceBatch slot_;           // where a batch is copied when its turn comes
  double targets_ = 0;         // in the global batch
  StepRecord::Copy record_{};  // of the newest step
};

// The visible results of a job. They are compared by == where ranks, stage, buckets or another part
// of the plan must not change a bit.
struct Outcome {
  std::vector<double> losses;   // mean over the global batch, by step
  std::vector<double> norms;    // of the gradients, by step; infinity in place of NaN
  std::vector<double> weights;  // all master weights
  std::vector<double> statistics;
  int64_t skipped = 0;
  bool operator==(const Outcome&) const = default;
};
void PrintTo(const Outcome& outcome, std::ostream* out);  // for GoogleTest
Outcome train(const Plan& plan, int steps = 4);

}  // namespace tandem::testing
