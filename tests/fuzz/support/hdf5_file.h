// HDF5 files with a structure that no writer of ours makes, and damaged ones.
//
// The bytes of an input are not those of a file. They say how a good file is changed through the
// HDF5 library: which objects are removed, added or replaced, and by what. After kDamage they say
// which bytes are changed.
#pragma once

#include <string>

#include "tests/fuzz/support/bytes.h"

namespace tandem::fuzz {

// The names of the objects and attributes that are changed. Inputs hold their numbers, so new ones
// come last.
extern const char* const kObjects[27];
extern const char* const kAttributes[14];

void change_file(const std::string& path, Bytes* bytes);

// The first byte of an input that changes bytes. Then come a choice of the file, and for each
// change a place, of two bytes, and a byte.
inline constexpr uint8_t kDamage = 0xff;
void damage_file(const std::string& path, Bytes* bytes);

}  // namespace tandem::fuzz
