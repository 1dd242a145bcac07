// A vector in device memory, for the emulator's own tests.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace simt {

template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(size_t size) : size_(size) { cudaMalloc(&data_, size * sizeof(T)); }
  explicit DeviceVector(const std::vector<T>& values) : DeviceVector(values.size()) {
    cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;
  ~DeviceVector() { cudaFree(data_); }

  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> values(size_);
    cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  size_t size_;
  T* data_ = nullptr;
};

}  // namespace simt
