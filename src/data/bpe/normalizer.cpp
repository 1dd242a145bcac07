#include "src/data/bpe/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <algorithm>

#include "src/core/error.h"

namespace tandem {

namespace {

constexpr size_t kBlock = 1 << 20;  // bytes; ICU counts in 32 bits

}  // namespace

std::string_view in_normal_form_c(std::string_view text, std::string* storage) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = icu::Normalizer2::getNFCInstance(error);
  bool changed = false;
  for (size_t begin = 0, end = 0; begin < text.size() && U_SUCCESS(error); begin = end) {
    end = std::min(text.size(), begin + kBlock);
    while (end < text.size() && static_cast<uint8_t>(text[end]) >= 0x80) {
      ++end;  // ASCII composes with nothing before it
    }
    const std::string_view block = text.substr(begin, end - begin);
    const icu::StringPiece piece(block.data(), static_cast<int32_t>(block.size()));
    if (!changed && !form->isNormalizedUTF8(piece, error)) {
      changed = true;
      *storage = text.substr(0, begin);
    }
    if (changed) {
      icu::StringByteSink<std::string> sink(storage);
      form->normalizeUTF8(0, piece, sink, nullptr, error);
    }
  }
  require(U_SUCCESS(error), [&] { return str("ICU: ", u_errorName(error)); });
  return changed ? *storage : text;
}

}  // namespace tandem
