// Tensors of a forward pass that wait in the host's memory for the backward pass, which needs the
// newest first. The two newest stay on the device; the others come back while two are used.
#pragma once

#include <functional>
#include <vector>

#include "src/device/memory.h"
#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

class HostStack {
 public:
  // `memory`: of the device. `host`: page-locked; of its scratch() nobody else takes. wait(event):
  // the compute stream waits. All references must outlive this.
  HostStack(Stream& compute, Memory& memory, Memory& host, std::function<void(const Event&)> wait);

  // What follows is enqueued; the host does not wait.

  // Nobody may write to the tensors afterwards.
  void push(std::vector<Tensor> tensors);
  // The newest that were pushed and not popped: later work of the compute stream sees them.
  std::vector<Tensor> pop();
  // What came back so far.
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kStay = 2;

  struct Item {
    std::vector<Tensor> here{}, resting{};  // on the device; on the host
    Event copied{};                         // to the host, and later back
  };
  void leave(Item& item);
  void come_back(Item& item);

  Stream& compute_;
  Memory& memory_;
  Memory host_;  // free blocks serve only copies, which the streams bring into order
  std::function<void(const Event&)> wait_;
  std::vector<Item> items_;  // the newest is last
  int64_t bytes_ = 0;
  Stream in_, out_;
};

}  // namespace tandem
