// HDF5 files with a structure that no writer of ours makes.
//
// The library does not survive damaged bytes. So the bytes of an input are not those of a file.
// They say how a good file is changed through the library: which objects are removed, added or
// replaced, and by what.
#pragma once

#include <string>

#include "tests/fuzz/support/bytes.h"

namespace tandem::fuzz {

// The names of the objects and attributes that are changed.
extern const char* const kObjects[21];
extern const char* const kAttributes[14];

void change_file(const std::string& path, Bytes* bytes);

}  // namespace tandem::fuzz
