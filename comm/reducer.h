// Starts the reduction of gradient buckets while the backward pass goes on.
//
// Buckets become ready in an order that differs between models and, with random delays, between
// ranks. They are started from the last to the first all the same: one that is ready early waits
// for its turn. So every rank starts the same collectives in the same order.
#pragma once

#include <vector>

#include "comm/flat_buffer.h"

namespace tandem {

// The communication that no computation hid, in one step.
struct Exposure {
  double host_s = 0;  // measured on the host
  Event compute_end{}, communication_end{};
  bool on_gpu = false;  // the events are to be read, once they have been reached
  double seconds() const;
};

class Reducer {
 public:
  // partial[i] becomes reduced[i] (redistribute), buckets in forward order. Without `overlap` all
  // of them start in finish(). `gradients`, when not empty, are the f32 buckets that are rounded
  // into `partial` before, and widened from `reduced` after the communication.
  Reducer(Communicator& communicator, std::vector<FlatBuffer> partial,
          std::vector<FlatBuffer> reduced, bool overlap, std::vector<Tensor> gradients = {});

  // Before the backward pass whose gradients are to be reduced.
  void begin();
  // The gradients of this bucket are complete once `compute` gets here. Once per begin().
  void ready(Stream& compute, int64_t bucket);
  // Starts what is left; later work on `compute` sees the reduced gradients. Rethrows what failed
  // in the communication.
  Exposure finish(Stream& compute);

 private:
  void start_next(Stream& compute);

  Communicator& communicator_;
  std::vector<FlatBuffer> partial_;
  std::vector<FlatBuffer> reduced_;
  bool overlap_;
  std::vector<Tensor> gradients_;
  std::vector<bool> ready_;
  int64_t left_ = 0;  // buckets [0, left_) have not been started
};

}  // namespace tandem
