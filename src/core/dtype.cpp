#include "src/core/dtype.h"

#include "src/core/error.h"

namespace tandem {

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kBf16:
    case DType::kFp16:
      return 2;
    case DType::kU8:
      return 1;
  }
  fail(ExitCode::kInternal, "size_of: unknown dtype");
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  fail(ExitCode::kInternal, "name_of: unknown dtype");
}

}  // namespace tandem
