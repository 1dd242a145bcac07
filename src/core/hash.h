// FNV-1a (Fowler, Noll, Vo), for names, layouts and calls: the same on every machine and in every
// version, because initial weights depend on the hashes of names.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tandem {

// Word: uint32_t or uint64_t.
template <class Word>
class Fnv1a {
  static_assert(std::is_same_v<Word, uint32_t> || std::is_same_v<Word, uint64_t>);
  static constexpr bool kIsWide = sizeof(Word) == 8;

 public:
  void add(std::string_view text) {
    for (const unsigned char c : text) {
      add_byte(c);
    }
  }
  void add(int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_byte(static_cast<uint64_t>(number) >> shift & 0xff);
    }
  }
  Word value() const { return value_; }

 private:
  void add_byte(uint64_t byte) {
    value_ = static_cast<Word>((value_ ^ byte) * (kIsWide ? 1099511628211u : 16777619u));
  }
  Word value_ = static_cast<Word>(kIsWide ? 14695981039346656037u : 2166136261u);
};

}  // namespace tandem
