// Pointers into the memory of a device, as kernels use them. On a GPU and on the CPU they are plain
// pointers; the emulated GPU of tests/simt/ replaces this header by one that checks and counts
// every access.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "src/core/host_device.h"

namespace tandem {

// Elements that one 16-byte access moves.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <class T, int kCount = kPack<T>>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
  TANDEM_HOST_DEVICE T& operator[](int i) { return values[i]; }
  TANDEM_HOST_DEVICE const T& operator[](int i) const { return values[i]; }
};

#if defined(__CUDA_ARCH__)
// Stores 16 bytes in one instruction. The compiler splits a copy of a Pack into narrower stores in
// some loops, and neighbouring threads then write every fourth word.
__device__ inline void store_words(void* to, uint4 words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
#endif

template <class T>
class Global {
 public:
  using Element = std::remove_const_t<T>;
  Global() = default;
  TANDEM_HOST_DEVICE Global(T* data) : data_(data) {}
  template <class U>
  requires(std::is_same_v<const U, T>) TANDEM_HOST_DEVICE Global(Global<U> other)
      : data_(other.data_) {}
  TANDEM_HOST_DEVICE explicit operator bool() const { return data_ != nullptr; }
  TANDEM_HOST_DEVICE Global operator+(int64_t offset) const { return data_ + offset; }

  TANDEM_HOST_DEVICE Element load(int64_t i) const { return data_[i]; }
  TANDEM_HOST_DEVICE void store(int64_t i, Element value) const { data_[i] = value; }
  // Elements [i, i + kPack<T>); the address must be a multiple of 16 bytes.
  TANDEM_HOST_DEVICE Pack<Element> load16(int64_t i) const {
    return *reinterpret_cast<const Pack<Element>*>(data_ + i);
  }
  TANDEM_HOST_DEVICE void store16(int64_t i, Pack<Element> pack) const {
#if defined(__CUDA_ARCH__)
    store_words(data_ + i, std::bit_cast<uint4>(pack));
#else
    *reinterpret_cast<Pack<Element>*>(data_ + i) = pack;
#endif
  }
  // Elements [i, i + kPack<T> / 2); the address must be a multiple of 8 bytes.
  using HalfPack = Pack<Element, kPack<T> / 2>;
  TANDEM_HOST_DEVICE HalfPack load8(int64_t i) const {
    return *reinterpret_cast<const HalfPack*>(data_ + i);
  }
  TANDEM_HOST_DEVICE void store8(int64_t i, HalfPack pack) const {
    *reinterpret_cast<HalfPack*>(data_ + i) = pack;
  }
  // For an asynchronous copy of kBytes from element i; `read`: the copy reads them.
  template <int kBytes>
  TANDEM_HOST_DEVICE const T* address(int64_t i, bool /*read*/) const {
    return data_ + i;
  }
#if defined(__CUDACC__)
  // Adds to an integer of 4 or 8 bytes; returns the old value.
  __device__ Element atomic_add(int64_t i, Element value) const {
    static_assert(std::is_integral_v<Element>, "sums of floats depend on the order");
    using Word = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
    return static_cast<Element>(
        atomicAdd(reinterpret_cast<Word*>(data_ + i), static_cast<Word>(value)));
  }
  // Raises an i32 to `value` if that is larger; returns the old value.
  __device__ Element atomic_max(int64_t i, Element value) const {
    static_assert(std::is_same_v<Element, int32_t>);
    return atomicMax(data_ + i, value);
  }
#endif

 private:
  template <class U>
  friend class Global;
  T* data_ = nullptr;
};

// True when all pointers are aligned for 16-byte accesses; null pointers are.
template <class... P>
bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace tandem
