// NumPy's .npy files, as far as the parity tests need them: C order, little endian, f32, f64 and
// i32.
#pragma once

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "src/core/error.h"

namespace tandem::parity {

template <class T>
struct Array {
  std::vector<int64_t> shape;
  std::vector<T> values;
};

template <class T>
constexpr const char* kNpyType = "<i4";
template <>
constexpr const char* kNpyType<float> = "<f4";
template <>
constexpr const char* kNpyType<double> = "<f8";

template <class T>
Array<T> read_npy(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char magic[10];
  in.read(magic, sizeof magic);
  uint16_t length = 0;
  std::memcpy(&length, magic + 8, 2);
  std::string header(length, ' ');
  in.read(header.data(), length);
  require(static_cast<bool>(in) && header.find(kNpyType<T>) != std::string::npos &&
              header.find("'fortran_order': False") != std::string::npos,
          [&] { return path + ": not a C-order array of " + kNpyType<T>; });
  Array<T> array;
  const size_t open = header.find('('), close = header.find(')');
  std::istringstream sizes(header.substr(open + 1, close - open - 1));
  int64_t elements = 1, size = 0;
  for (char comma = 0; sizes >> size; sizes >> comma) {
    array.shape.push_back(size);
    elements *= size;
  }
  array.values.resize(static_cast<size_t>(elements));
  in.read(reinterpret_cast<char*>(array.values.data()),
          static_cast<std::streamsize>(array.values.size() * sizeof(T)));
  require(static_cast<bool>(in), [&] { return path + ": too short"; });
  return array;
}

template <class T>
void write_npy(const std::string& path, const std::vector<int64_t>& shape, const T* values) {
  std::string header =
      std::string("{'descr': '") + kNpyType<T> + "', 'fortran_order': False, 'shape': (";
  size_t elements = 1;
  for (int64_t size : shape) {
    header += std::to_string(size) + ",";
    elements *= static_cast<size_t>(size);
  }
  header += "), }";
  header.resize((10 + header.size() + 64) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::ofstream out(path, std::ios::binary);
  out.write("\x93NUMPY\x01\x00", 8);
  out.write(reinterpret_cast<const char*>(&length), 2);
  out << header;
  out.write(reinterpret_cast<const char*>(values),
            static_cast<std::streamsize>(elements * sizeof(T)));
  require(static_cast<bool>(out), [&] { return path + ": cannot write"; });
}

}  // namespace tandem::parity
