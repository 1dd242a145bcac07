// The streams of copies between the host's memory and a device's.
#pragma once

#include "src/device/stream.h"

namespace tandem {

// A stream beside `compute` for copies in one direction. On a dry stream a copy takes as long as
// the link between host and device needs: it reads as many bytes as it writes, and passes the link
// once.
inline Stream copy_stream(const Stream& compute) {
  if (!compute.is_dry()) {
    return Stream::background(compute.device());
  }
  Speed speed = compute.clock().speed();
  speed.bytes_per_s = 2 * speed.host_bytes_per_s;
  return Stream::dry(compute.device(), speed);
}

}  // namespace tandem
