#include "src/data/word_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "src/core/error.h"

namespace tandem {
namespace {

// PCRE2's own \s also matches U+180E, which is not white space since Unicode 6.3, nor in Python's
// `regex`. So this class lists Unicode's White_Space.
constexpr std::string_view kSpace =
    R"(\x09-\x0D\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

}  // namespace

struct WordSplitter::Pattern {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;

  ~Pattern() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

WordSplitter::WordSplitter() : pattern_(std::make_unique<Pattern>()) {
  const std::string space(kSpace);
  const std::string source = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" + space +
                             R"(\p{L}\p{N}]+|[)" + space + "]+(?![^" + space + "])|[" + space +
                             "]+";
  int error = 0;
  PCRE2_SIZE error_at = 0;
  pattern_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &error_at, nullptr);
  require(pattern_->code != nullptr,
          [&] { return str("word pattern: PCRE2 error ", error, " at ", error_at); });
  // Without a just-in-time compiler the same pattern is interpreted, with the same result.
  pcre2_jit_compile(pattern_->code, PCRE2_JIT_COMPLETE);
  pattern_->match = pcre2_match_data_create_from_pattern(pattern_->code, nullptr);
}

WordSplitter::~WordSplitter() = default;

size_t WordSplitter::word_end(std::string_view text, size_t at) const {
  const int found = pcre2_match(pattern_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                text.size(), at, PCRE2_NO_UTF_CHECK, pattern_->match, nullptr);
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(pattern_->match);
  require(found > 0 && range[0] == at && range[1] > at,
          [&] { return str("word pattern: PCRE2 gave ", found, " at byte ", at); });
  return range[1];
}

}  // namespace tandem
