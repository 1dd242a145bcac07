// Starts the reduction of gradient buckets while the backward pass goes on.
//
// Buckets become ready in an order that differs between models and, with random delays, between
// ranks. They are started from the last to the first all the same: one that is ready early waits
// for its turn. So every rank starts the same collectives in the same order.
#pragma once

#include <vector>

#include "comm/flat_buffer.h"

namespace tandem {

class Reducer {
 public:
  // partial[i] becomes reduced[i] (redistribute), buckets in forward order. Without `overlap` all
  // of them start in finish().
  Reducer(Communicator& communicator, std::vector<FlatBuffer> partial,
          std::vector<FlatBuffer> reduced, bool overlap);

  // Before the backward pass whose gradients are to be reduced.
  void begin();
  // The gradients of this bucket are complete once `compute` gets here. Once per begin().
  void ready(Stream& compute, int64_t bucket);
  // Starts what is left; later work on `compute` sees the reduced gradients. Returns the seconds
  // that this took on the host: on the CPU, the communication that no computation hid. Rethrows
  // what failed in the communication.
  double finish(Stream& compute);

 private:
  void start_next(Stream& compute);

  Communicator& communicator_;
  std::vector<FlatBuffer> partial_;
  std::vector<FlatBuffer> reduced_;
  bool overlap_;
  std::vector<bool> ready_;
  int64_t left_ = 0;  // buckets [0, left_) have not been started
};

}  // namespace tandem
