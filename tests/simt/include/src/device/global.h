// Replaces src/device/global.h on the emulated GPU. Inside a kernel, every access must be aligned
// and lie in the live device allocation that the pointer points into. Outside kernels (in CPU
// kernels of the same build) accesses are not checked.
//
// Counts 32-byte sectors by warp: a lane's n-th access counts unless the lane that ran before it
// made its n-th access to the same sector. In the thread schedules forward and backward, and when
// neighbouring lanes access neighbouring addresses, this is what a GPU moves; otherwise it is an
// upper bound.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "src/core/host_device.h"
#include "tests/simt/memory.h"

namespace tandem {

// Elements that one 16-byte access moves.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <class T, int kCount = kPack<T>>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
  T& operator[](int i) { return values[i]; }
  const T& operator[](int i) const { return values[i]; }
};

template <class T>
class Global {
 public:
  using Element = std::remove_const_t<T>;
  Global() = default;
  Global(T* data) : data_(data), home_(simt::home_of(data)) {}
  template <class U>
  requires(std::is_same_v<const U, T>) Global(Global<U> other)
      : data_(other.data_), home_(other.home_) {}
  explicit operator bool() const { return data_ != nullptr; }
  Global operator+(int64_t offset) const { return Global(data_ + offset, home_); }

  Element load(int64_t i) const { return *at<const Element>(i, simt::Access::kLoad); }
  void store(int64_t i, Element value) const { *at<Element>(i, simt::Access::kStore) = value; }
  // Elements [i, i + kPack<T>); the address must be a multiple of 16 bytes.
  Pack<Element> load16(int64_t i) const { return *at<const Pack<Element>>(i, simt::Access::kLoad); }
  void store16(int64_t i, Pack<Element> pack) const {
    *at<Pack<Element>>(i, simt::Access::kStore) = pack;
  }
  // Elements [i, i + kPack<T> / 2); the address must be a multiple of 8 bytes.
  using HalfPack = Pack<Element, kPack<T> / 2>;
  HalfPack load8(int64_t i) const { return *at<const HalfPack>(i, simt::Access::kLoad); }
  void store8(int64_t i, HalfPack pack) const { *at<HalfPack>(i, simt::Access::kStore) = pack; }
  // For an asynchronous copy of kBytes from element i; `read`: the copy reads them.
  template <int kBytes>
  const T* address(int64_t i, bool read) const {
    struct alignas(kBytes) Bytes {
      char of[kBytes];
    };
    return read ? reinterpret_cast<const T*>(at<const Bytes>(i, simt::Access::kLoad)) : data_ + i;
  }
  // Adds to an integer of 4 or 8 bytes; returns the old value.
  Element atomic_add(int64_t i, Element value) const {
    static_assert(std::is_integral_v<Element>, "sums of floats depend on the order");
    Element& element = *at<Element>(i, simt::Access::kAtomic);
    return std::exchange(element, static_cast<Element>(element + value));
  }
  // Raises an i32 to `value` if that is larger; returns the old value.
  Element atomic_max(int64_t i, Element value) const {
    static_assert(std::is_same_v<Element, int32_t>);
    Element& element = *at<Element>(i, simt::Access::kAtomic);
    return std::exchange(element, element < value ? value : element);
  }

 private:
  template <class U>
  friend class Global;
  Global(T* data, const simt::Allocation* home) : data_(data), home_(home) {}

  template <class V>
  V* at(int64_t i, simt::Access access) const {
    // Computed as integers: an address far outside must be reported, not be undefined behaviour.
    const uintptr_t address =
        reinterpret_cast<uintptr_t>(data_) + static_cast<uintptr_t>(i) * sizeof(T);
    if (simt::in_kernel_) {
      // A pointer inside a functor was made on the host, which does not look up its allocation.
      const simt::Allocation* home = home_ ? home_ : simt::home_of(data_);
      simt::check_access(home, address, sizeof(V), alignof(V), access);
    }
    return reinterpret_cast<V*>(address);
  }

  T* data_ = nullptr;
  const simt::Allocation* home_ = nullptr;  // the allocation of data_; set inside kernels
};

// True when all pointers are null or aligned for 16-byte accesses.
template <class... P>
bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace tandem
