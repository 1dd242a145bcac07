// A small training job on one device, the same over 1 to 4 ranks (tests/mpi_main.cpp): model,
// parameter store, communicator, step control and optimizer together.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/param_store.h"
#include "layers/module.h"
#include "optim/optimizer.h"
#include "optim/step_record.h"
#include "src/autograd/tape.h"

namespace tandem::testing {

inline constexpr int kGlobalBatch = 12;  // divisible by 1 to 4 ranks

struct Plan {
  std::string model = "gpt";  // gpt, llama, resnet, mlp
  Device device = Device::kCpu;
  DType dtype = DType::kF32;
  DType wire = DType::kF32;
  bool recompute = false;
  int64_t accumulation = 1;
  bool staged = false;  // GPU gradients through MPI
};

// All batches are in the memory of the device before the first step.
class Job {
 public:
  explicit Job(const Plan& plan);

  // Enqueues a step. `poison`: this rank's gradients of that step overflow.
  void step(int64_t number, bool poison = false);
  // Read one step late, as the trainer does.
  StepRecord::Copy record() { return record_.copy_to_host(stream_); }
  double loss_of(const StepRecord::Copy& copy);  // mean of the global batch; collective
  std::vector<double> weights() const;           // all masters
  Stream& stream() { return stream_; }

 private:
  struct MicroBatch {
    int64_t first_sample;
    Tensor input, targets;
  };
  bool text() const { return plan_.model == "gpt" || plan_.model == "llama"; }
  double target_count() const;
  MicroBatch make_batch(int64_t first_sample, int64_t samples) const;

  Plan plan_;
  std::unique_ptr<Communicator> nccl_;  // null: the world's
  Communicator& comm_;
  Stream& stream_;
  Memory& memory_;
  Memory staging_;
  std::unique_ptr<Model> model_;
  ParamStore store_;
  StepRecord record_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<MicroBatch> batches_;
  Tape tape_{
      [this](Context& context, Parameter& parameter) { store_.on_final(context, parameter); }};
};

}  // namespace tandem::testing
