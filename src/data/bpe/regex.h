// Regular expressions as Hugging Face's tokenizers write them (Oniguruma's Ruby syntax), run by
// PCRE2 with Unicode properties, compiled just in time where the machine can.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

// The PCRE2 form of an expression of a tokenizer.json. Throws kData, beginning with `place`, when
// it uses what the two libraries read differently, such as \w or nested classes.
std::string translate_regex(std::string_view expression, const std::string& place);

// An expression that matches exactly this text.
std::string regex_of_text(std::string_view text);

// One thread at a time may use a Regex.
class Regex {
 public:
  struct Match {
    size_t begin, end;  // bytes; both text.size() when there is none
  };

  // `source`: in PCRE2's syntax. `place` begins the messages of errors, all kData: an expression
  // that is wrong, or that may match the empty text.
  Regex(std::string_view source, const std::string& place);
  Regex(Regex&&) noexcept;
  ~Regex();

  // The first match at or after byte `at` of valid UTF-8. Throws kData when that takes more than
  // ten million steps.
  Match find(std::string_view text, size_t at) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace tandem
