// Pointers into a block's shared memory, as tile code uses them. On a GPU they are plain pointers.
// The emulated GPU of tests/simt/ replaces this header by one that checks every access and counts
// bank conflicts.
#pragma once

#include "src/device/global.h"

namespace tandem {

template <class T>
class Shared {
 public:
  TANDEM_HOST_DEVICE explicit Shared(T* data) : data_(data) {}
  TANDEM_HOST_DEVICE T* data() const { return data_; }
  TANDEM_HOST_DEVICE Shared operator+(int offset) const { return Shared(data_ + offset); }

  TANDEM_HOST_DEVICE T load(int i) const { return data_[i]; }
  TANDEM_HOST_DEVICE void store(int i, T value) const { data_[i] = value; }
  // Elements [i, i + size of V / size of T) as one access; the address must be a multiple of V's
  // size.
  template <class V>
  TANDEM_HOST_DEVICE V load_as(int i) const {
    return *reinterpret_cast<const V*>(data_ + i);
  }
  template <class V>
  TANDEM_HOST_DEVICE void store_as(int i, V value) const {
    *reinterpret_cast<V*>(data_ + i) = value;
  }

 private:
  T* data_;
};

}  // namespace tandem
