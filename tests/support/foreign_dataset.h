// Datasets as other programs write them: by the HDF5 library, with texts of variable length, which
// lie in a global heap. h5py makes the same structures.
#pragma once

#include <string>

namespace tandem::testing {

enum class Hdf5Form { kEarliest, kLatest };  // h5py's libver; its default is the earliest

// Nine tokens for training and four for validation, of three characters.
void write_foreign_text(const std::string& path, Hdf5Form form);

// Three images of 2 x 2 pixels for training and two for validation, of two classes.
void write_foreign_images(const std::string& path, Hdf5Form form);

}  // namespace tandem::testing
