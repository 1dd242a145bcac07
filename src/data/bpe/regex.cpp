#include "src/data/bpe/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "src/core/error.h"

namespace tandem {
namespace {

constexpr uint32_t kMostSteps = 10'000'000;
constexpr size_t kMostStack = size_t{16} << 20;  // bytes, of the code compiled just in time

// PCRE2's own \s also matches U+180E, which is not white space since Unicode 6.3, nor in Oniguruma
// and Python's `regex`. So this class lists Unicode's White_Space.
constexpr std::string_view kSpace =
    R"(\x09-\x0D\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

bool is_alphanumeric(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Reads an expression from left to right and writes it again. What it does not know means the same
// in both libraries.
class Translation {
 public:
  Translation(std::string_view in, const std::string& place) : in_(in), place_(place) {}

  std::string run() {
    while (at_ < in_.size()) {
      if (starts("\\")) {
        escape();
      } else if (in_class_) {
        refuse_if_next({"[", "&&"});
        in_class_ = in_[at_] != ']';
        copy(1);
      } else if (starts("[")) {
        refuse_if_next({"[]", "[^]"});
        in_class_ = true;
        copy(starts("[^") ? 2 : 1);
      } else if (starts("(")) {
        group();
      } else {
        refuse_if_next({"{,", "}+"});
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  bool starts(std::string_view what) const { return in_.substr(at_).starts_with(what); }

  void copy(size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    fail_data(place_, ": the regular expression uses '", what,
              "', which Tandem does not support: ", in_.substr(0, 200));
  }

  void refuse_if_next(const std::vector<std::string_view>& all) const {
    for (const std::string_view one : all) {
      if (starts(one)) {
        refuse(one);
      }
    }
  }

  void group() {
    constexpr std::array<std::string_view, 7> kKnown = {"(?:",  "(?=",  "(?!", "(?>",
                                                        "(?i:", "(?<=", "(?<!"};
    const auto known = std::ranges::find_if(kKnown, [&](auto one) { return starts(one); });
    if (known == kKnown.end() && (starts("(?") || starts("(*"))) {
      refuse(in_.substr(at_, 3));
    }
    copy(known == kKnown.end() ? 1 : known->size());
  }

  void escape() {
    const char c = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    if (c == 's' || c == 'S') {
      white_space(c == 's');
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'u') {
      code_point();
    } else if ((c != '\0' && !is_alphanumeric(c)) || starts("\\x{") ||
               std::string_view("rntfdD").find(c) != std::string_view::npos) {
      copy(2);
    } else {
      refuse(in_.substr(at_, 2));
    }
  }

  void white_space(bool is_in) {
    at_ += 2;
    if (!in_class_) {
      out_ += str(is_in ? "[" : "[^", kSpace, "]");
    } else if (is_in) {
      out_ += kSpace;
    } else {
      out_ += R"(\P{Xsp}\x{180E})";
    }
  }

  // General categories, such as \p{L} and \P{Lu}; the libraries read names of scripts differently.
  void property() {
    const size_t end = in_.find('}', at_);
    const std::string_view name =
        starts("\\p{") || starts("\\P{") ? in_.substr(at_ + 3, end - at_ - 3) : "";
    if (end == std::string_view::npos || name.empty() || name.size() > 2 ||
        !std::ranges::all_of(name, is_alphanumeric)) {
      refuse(in_.substr(at_, end - at_ + 1));
    }
    copy(end + 1 - at_);
  }

  void code_point() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    if (digits.size() < 4 || !std::ranges::all_of(digits, [](char digit) {
          return std::isxdigit(static_cast<unsigned char>(digit)) != 0;
        })) {
      refuse(in_.substr(at_, 6));
    }
    out_ += str("\\x{", digits, "}");
    at_ += 6;
  }

  std::string_view in_;
  const std::string& place_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string translate_regex(std::string_view expression, const std::string& place) {
  return Translation(expression, place).run();
}

std::string regex_of_text(std::string_view text) {
  std::string source;
  for (const char c : text) {
    const bool is_ascii = static_cast<unsigned char>(c) < 0x80;
    source += is_ascii && !is_alphanumeric(c)
                  ? str("\\x", "0123456789ABCDEF"[c / 16], "0123456789ABCDEF"[c % 16])
                  : std::string(1, c);
  }
  return source;
}

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  std::string place;

  ~Compiled() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

Regex::Regex(std::string_view source, const std::string& place)
    : compiled_(std::make_unique<Compiled>()) {
  Compiled& c = *compiled_;
  c.place = place;
  int error = 0;
  PCRE2_SIZE error_at = 0;
  // In Ruby's syntax ^ and $ stand at the ends of lines.
  pcre2_compile_context* how = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(how, PCRE2_NEWLINE_LF);
  c.code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &error_at, how);
  pcre2_compile_context_free(how);
  if (c.code == nullptr) {
    fail_data(place, ": the regular expression is wrong: ", message_of(error), ": ",
              source.substr(std::min(error_at, source.size()), 40));
  }
  uint32_t may_be_empty = 0;
  pcre2_pattern_info(c.code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty != 0) {
    fail_data(place, ": the regular expression may match the empty text, which ",
              "Tandem does not support: ", source.substr(0, 200));
  }
  // Without a just-in-time compiler the same pattern is interpreted, with the same result.
  pcre2_jit_compile(c.code, PCRE2_JIT_COMPLETE);
  c.match = pcre2_match_data_create(1, nullptr);
  c.context = pcre2_match_context_create(nullptr);
  c.stack = pcre2_jit_stack_create(size_t{32} << 10, kMostStack, nullptr);
  pcre2_set_match_limit(c.context, kMostSteps);
  pcre2_jit_stack_assign(c.context, nullptr, c.stack);
}

Regex::Regex(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex::Match Regex::find(std::string_view text, size_t at) const {
  const Compiled& c = *compiled_;
  const int found = pcre2_match(c.code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                PCRE2_NO_UTF_CHECK, c.match, c.context);
  if (found == PCRE2_ERROR_NOMATCH) {
    return {text.size(), text.size()};
  }
  if (found < 0) {
    fail_data(c.place, ": the regular expression gives up at byte ", at, " of a text of ",
              text.size(), " bytes: ", message_of(found));
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(c.match);
  return {range[0], range[1]};
}

}  // namespace tandem
