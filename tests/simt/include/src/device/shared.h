// Replaces src/device/shared.h on the emulated GPU. Every access must be aligned and lie in the
// block's shared memory, and bank conflicts are counted (tests/simt/shared.h).
#pragma once

#include <cstring>

#include "src/device/global.h"
#include "tests/simt/shared.h"

namespace tandem {

template <class T>
class Shared {
 public:
  explicit Shared(T* data) : data_(data) {}
  T* data() const { return data_; }
  Shared operator+(int offset) const { return Shared(data_ + offset); }

  T load(int i, simt::Place place = simt::Place::current()) const {
    return *at(i, sizeof(T), place);
  }
  void store(int i, T value, simt::Place place = simt::Place::current()) const {
    *at(i, sizeof(T), place) = value;
  }
  // Elements [i, i + size of V / size of T) as one access; the address must be a multiple of V's
  // size.
  template <class V>
  V load_as(int i, simt::Place place = simt::Place::current()) const {
    V value;
    std::memcpy(&value, at(i, sizeof value, place), sizeof value);
    return value;
  }
  template <class V>
  void store_as(int i, V value, simt::Place place = simt::Place::current()) const {
    std::memcpy(at(i, sizeof value, place), &value, sizeof value);
  }

 private:
  T* at(int i, size_t bytes, simt::Place place) const {
    simt::access_shared(data_ + i, bytes, place);
    return data_ + i;
  }

  T* data_;
};

}  // namespace tandem
