// Arrays that rest in the host's memory, and pass through a window in the device's memory to be
// changed there: they arrive on one stream, are changed on another, and leave on a third.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

class HostWindow {
 public:
  // Runs that may be in the window at once: one arrives, one is changed, one leaves.
  static constexpr int64_t kPlaces = 3;

  // Each run has `arrays` f32 arrays of at most `elements` numbers: kPlaces x arrays x elements x 4
  // bytes of `memory`, MemoryClass::kStaging. `work`: the stream that changes them. Both must
  // outlive this.
  HostWindow(Stream& work, Memory& memory, size_t arrays, int64_t elements);

  // What follows is enqueued; the host does not wait.

  // Begins to bring the next run. resting: f32 [n], in page-locked memory, whose owner lives until
  // the run has left. At most kPlaces runs may be inside.
  void bring(std::span<const Tensor> resting);
  // How many runs were brought and not yet taken back.
  int64_t inside() const { return brought_ - taken_; }
  // The oldest run inside, on the device: later work of the stream sees it.
  std::vector<Tensor> open();
  // Takes it back, as the stream's work until now has changed it.
  void close();
  // All that was taken back has arrived.
  Event rest() { return out_.record(); }
  // What was brought so far; as much is taken back.
  int64_t bytes() const { return bytes_; }

 private:
  struct Place {
    Tensor arrays;                // f32 [arrays, elements]
    std::vector<Tensor> resting;  // of the run inside
    Event arrived, left;
  };
  Place& place(int64_t run) { return places_[static_cast<size_t>(run % kPlaces)]; }
  // The run's arrays in its place.
  std::vector<Tensor> inside(const Place& place) const;

  Stream& work_;
  std::array<Place, kPlaces> places_;
  int64_t brought_ = 0, taken_ = 0, bytes_ = 0;
  Stream in_, out_;
};

}  // namespace tandem
