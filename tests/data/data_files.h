// Small files for the tests of datasets: archives, pictures.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/prepare/images/image.h"
#include "tests/support/temporary_folder.h"

namespace tandem::testing {

std::string read_bytes(const std::string& path);
std::string gzip(const std::string& bytes);

// One entry of a ustar archive, with its padding. `type` as in the header.
std::string tar_entry(const std::string& name, const std::string& content, char type = '0');
inline std::string tar_end() { return std::string(1024, '\0'); }

// An image that depends on `seed` and is smooth enough for JPEG.
Image test_image(int64_t channels, int64_t height, int64_t width, int seed);
std::string png_of(const Image& image);
// `scans` > 1: a progressive JPEG of a grey image, with up to 128 scans.
std::string jpeg_of(const Image& image, int scans = 1);

// IDX files of unsigned bytes.
std::string idx_of(const std::vector<uint32_t>& dims, const std::string& bytes);

// Runs `body`, which must throw an Error with this code whose message holds every one of `parts`,
// in one line.
void expect_error(ExitCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& body);

// Runs `body` in a child process whose files may not grow past `bytes`, as on a full disk. Returns
// what it printed to standard error and, after a line end, "exit N".
std::string run_with_file_limit(int64_t bytes, const std::function<int()>& body);

}  // namespace tandem::testing
