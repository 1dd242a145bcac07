// JPEG through our limits: src/prepare/images/image.cpp
#include "tests/fuzz/support/image.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return decode_one_input(data, size);
}
