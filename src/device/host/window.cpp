#include "src/device/host/window.h"

#include "src/core/error.h"
#include "src/device/copy.h"

namespace tandem {

HostWindow::HostWindow(Stream& work, Memory& memory, size_t arrays, int64_t elements)
    : work_(work), in_(Stream::copying(work)), out_(Stream::copying(work)) {
  for (Place& place : places_) {
    place.arrays = Tensor::empty(memory, {static_cast<int64_t>(arrays), elements}, DType::kF32,
                                 MemoryClass::kStaging);
  }
}

std::vector<Tensor> HostWindow::inside(const Place& place) const {
  const int64_t arrays = place.arrays.shape()[0], elements = place.arrays.shape()[1];
  const Tensor flat = place.arrays.reshape({arrays * elements});
  std::vector<Tensor> result;
  for (const Tensor& resting : place.resting) {
    result.push_back(flat.slice(std::ssize(result) * elements, resting.elements()));
  }
  return result;
}

void HostWindow::bring(std::span<const Tensor> resting) {
  require(inside() < kPlaces, "HostWindow::bring: all places are taken");
  if (inside() == 0) {
    in_.wait(place(taken_ + kPlaces - 1).left);  // the last one may be the next one, too
  }
  Place& next = place(brought_++);
  next.resting.assign(resting.begin(), resting.end());
  in_.wait(next.left);
  const std::vector<Tensor> arrays = inside(next);
  for (size_t i = 0; i < arrays.size(); ++i) {
    copy(in_, resting[i], arrays[i]);
    bytes_ += arrays[i].bytes();
  }
  next.arrived = in_.record();
}

std::vector<Tensor> HostWindow::open() {
  require(inside() > 0, "HostWindow::open: nothing is inside");
  work_.wait(place(taken_).arrived);
  return inside(place(taken_));
}

void HostWindow::close() {
  Place& done = place(taken_++);
  out_.wait(work_.record());
  const std::vector<Tensor> arrays = inside(done);
  for (size_t i = 0; i < arrays.size(); ++i) {
    copy(out_, arrays[i], done.resting[i]);
  }
  done.left = out_.record();
}

}  // namespace tandem
