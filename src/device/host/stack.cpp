#include "src/device/host/stack.h"

#include <utility>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/device/copy.h"

namespace tandem {

HostStack::HostStack(Stream& compute, Memory& memory, Memory& host,
                     std::function<void(const Event&)> wait)
    : compute_(compute),
      memory_(memory),
      host_(host.scratch()),
      wait_(std::move(wait)),
      in_(Stream::copying(compute)),
      out_(Stream::copying(compute)) {}

// A copy has the time of a block to leave. So it begins when the next block has ended, whether or
// not it will stay.
void HostStack::push(std::vector<Tensor> tensors) {
  items_.push_back({.here = std::move(tensors)});
  const size_t size = items_.size();
  if (size >= kStay) {
    leave(items_[size - kStay]);
  }
  if (size > kStay) {
    Item& gone = items_[size - kStay - 1];
    wait_(gone.copied);
    gone.here.clear();
  }
}

std::vector<Tensor> HostStack::pop() {
  require(!items_.empty(), "HostStack::pop: it is empty");
  const Item newest = std::move(items_.back());
  items_.pop_back();
  wait_(newest.copied);
  for (size_t i = items_.size(); i > 0 && i + kStay > items_.size(); --i) {
    if (items_[i - 1].here.empty()) {
      come_back(items_[i - 1]);
    }
  }
  return newest.here;
}

void HostStack::leave(Item& item) {
  out_.wait(compute_.record());
  for (const Tensor& tensor : item.here) {
    item.resting.push_back(
        Tensor::empty(host_, tensor.shape(), tensor.dtype(), MemoryClass::kActivations));
    copy(out_, tensor, item.resting.back());
  }
  item.copied = out_.record();
}

// Memory that the compute stream has used before is free for the copy once that stream gets here.
void HostStack::come_back(Item& item) {
  item.here = mapped(item.resting, [&](const Tensor& resting) {
    return Tensor::empty(memory_, resting.shape(), resting.dtype(), MemoryClass::kActivations);
  });
  in_.wait(compute_.record());
  for (size_t i = 0; i < item.here.size(); ++i) {
    copy(in_, item.resting[i], item.here[i]);
    bytes_ += item.here[i].bytes();
  }
  item.copied = in_.record();
}

}  // namespace tandem
