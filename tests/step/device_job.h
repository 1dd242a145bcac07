// A small training job on one device, the same over 1 to 4 ranks (tests/support/mpi_main.cpp):
// model, ranks and a whole TrainingStep, on batches that are in the memory of the device before the
// first step.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "src/step/training_step.h"
#include "tests/support/ranks.h"

namespace tandem::testing {

inline constexpr int kGlobalBatch = 12;  // divisible by 1 to 4 ranks

// Half of a rank's share of the global batch, or a third: so that micro-steps add up.
int64_t small_micro_batch();

struct Plan {
  std::string model = "gpt";  // gpt, llama, resnet, mlp
  Device device = Device::kCpu;
  DType dtype = DType::kF32;
  DType wire = DType::kF32;
  int zero = 0;
  bool exact = false;
  bool recompute = false;
  bool overlap = true;
  int64_t bucket_bytes = 2000;
  int64_t micro_batch = 0;  // samples; 0: a rank's whole share
  int node_size = 0;        // ranks a node; 0: all on one
  Sharing sharing = Sharing::kWorld;
  bool staged = false;  // GPU gradients through MPI
  bool alone = false;   // every rank does the whole job by itself
  int data_groups = 1;  // of neighbouring ranks, each with samples of its own
  int samples_of = -1;  // the data group whose samples these are; -1: this rank's own
  bool uneven = false;  // no targets in the first half of the global batch, few in the other
};

class Job {
 public:
  explicit Job(const Plan& plan);
  ~Job();  // waits for what is under way

  // Enqueues a step. `poison`: this rank's gradients of that step overflow. Collective.
  void step(int64_t number, bool poison = false, double lr = 0.01);
  // Read one step late, as the trainer does.
  StepRecord::Copy record() { return training_.record().copy_to_host(stream_); }
  double loss_of(const StepRecord::Copy& copy);  // mean over the global batch
  // All masters, in the order of the parameters. Collective; fails where this rank holds others.
  std::vector<double> weights();
  // Running means and variances of BatchNorm.
  std::vector<double> statistics() const;
  Stream& stream() { return stream_; }
  // Called as a micro-step begins.
  std::function<void()> before_micro_step = [] {};

 private:
  bool text() const { return plan_.model == "gpt" || plan_.model == "llama"; }
  DeviceBatch batch(int64_t micro_step);
  DeviceBatch make_batch(int64_t first_sample, int64_t samples);

  Plan plan_;
  OneRank self_;
  std::unique_ptr<Collectives> nccl_;  // null: the world's, or self_
  Stream& stream_;
  Memory memory_, staging_;
  Mesh mesh_;
  Hierarchy& data_;
  std::unique_ptr<Model> model_;
  TrainingStep training_;
  std::vector<DeviceBatch> batches_;
  DeviceBatch slot_;    // where each of them stands in its turn
  double targets_ = 0;  // in the global batch
};

// What a job looks like from outside. ranks, stages, buckets and the rest of a plan that may change
// no bit are compared by ==.
struct Outcome {
  std::vector<double> losses;   // mean over the global batch, by step
  std::vector<double> norms;    // of the gradients, by step
  std::vector<double> weights;  // all masters
  std::vector<double> statistics;
  int64_t skipped = 0;
  bool operator==(const Outcome&) const = default;
};
void PrintTo(const Outcome& outcome, std::ostream* out);  // for GoogleTest
Outcome train(const Plan& plan, int steps = 4);

}  // namespace tandem::testing
