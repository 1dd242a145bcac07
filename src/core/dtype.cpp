#include "src/core/dtype.h"

#include <array>

namespace tandem {

namespace {

// In the order of DType.
struct Kind {
  std::string_view name;
  int64_t size;
};
constexpr std::array<Kind, 8> kKinds = {{{"f32", 4},
                                         {"f64", 8},
                                         {"bf16", 2},
                                         {"fp16", 2},
                                         {"i32", 4},
                                         {"i64", 8},
                                         {"u8", 1},
                                         {"int8", 1}}};

}  // namespace

int64_t size_of(DType dtype) { return kKinds.at(static_cast<size_t>(dtype)).size; }
std::string_view name_of(DType dtype) { return kKinds.at(static_cast<size_t>(dtype)).name; }

}  // namespace tandem
