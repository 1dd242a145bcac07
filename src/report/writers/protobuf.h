// Protocol buffer encoding, as far as TensorBoard's messages need it.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

// A message: each field is a tag (number and wire type) and its content.
class ProtoMessage {
 public:
  const std::string& bytes() const { return bytes_; }

  void add_int(uint32_t field, int64_t value) {
    put_varint(field << 3U);
    put_varint(static_cast<uint64_t>(value));
  }
  void add_double(uint32_t field, double value) {
    put_varint(field << 3U | 1U);
    put_fixed(std::bit_cast<uint64_t>(value), 8);
  }
  void add_float(uint32_t field, float value) {
    put_varint(field << 3U | 5U);
    put_fixed(std::bit_cast<uint32_t>(value), 4);
  }
  void add_bytes(uint32_t field, std::string_view value) {
    put_varint(field << 3U | 2U);
    put_varint(value.size());
    bytes_ += value;
  }
  void add_message(uint32_t field, const ProtoMessage& message) {
    add_bytes(field, message.bytes());
  }
  // A repeated field, packed.
  void add_doubles(uint32_t field, std::span<const double> values) {
    ProtoMessage packed;
    for (const double value : values) {
      packed.put_fixed(std::bit_cast<uint64_t>(value), 8);
    }
    add_message(field, packed);
  }
  // Little-endian, without a tag.
  void put_fixed(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      bytes_ += static_cast<char>(value >> (8 * i) & 0xffU);
    }
  }

 private:
  void put_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7U) {
      bytes_ += static_cast<char>(value | 0x80U);
    }
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

}  // namespace tandem
