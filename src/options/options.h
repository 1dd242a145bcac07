// Named settings from the command line and from configuration files. Only options.cpp uses
// Boost.Program_options.
//
// A setting is bound to a variable, whose value at that time is the default. Callers apply sources
// from weakest to strongest: files in the order given, then the command line. Problems are
// collected, so that all of them can be reported together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/core/mapped.h"

namespace tandem {

// One `key = value` as found in some source.
struct Assignment {
  std::string key;
  std::string value;
  std::string origin;  // "command line", "configs/a.cfg"
  bool bare = false;   // no value was given, as for a switch
};

struct CommandLine {
  std::vector<Assignment> assignments;
  std::vector<std::string> positional;
};

// What a setting may be: the text that users type, and what it means.
template <class T>
using Choices = std::vector<std::pair<std::string, T>>;

// The upper bound of a setting that has no other: of int64_t, and what a float can hold.
template <class Number>
inline constexpr Number kNoLimit = INT64_MAX;
template <>
inline constexpr double kNoLimit<double> = 1e38;

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

class Options {
 public:
  explicit Options(std::string usage) : usage_(std::move(usage)) {}

  // Bind a setting. `help` is one line. Numbers are checked against [low, high].
  template <class Number>
  void add(const std::string& key, Number& value, const std::string& help,
           std::type_identity_t<Number> low = 0,
           std::type_identity_t<Number> high = kNoLimit<Number>);
  // Text that is `word` is 0.
  template <class Number>
  void add_or(const std::string& word, const std::string& key, Number& value,
              const std::string& help, std::type_identity_t<Number> low,
              std::type_identity_t<Number> high);
  void add(const std::string& key, bool& value, const std::string& help);
  void add(const std::string& key, std::string& value, const std::string& help);
  void add(const std::string& key, std::optional<std::string>& value, const std::string& help);
  void add(const std::string& key, std::vector<std::string>& values,
           const std::string& help);  // each repetition appends
  template <class T>
  void add_choice(const std::string& key, T& value, const std::type_identity_t<Choices<T>>& choices,
                  const std::string& help) {
    const std::string names = joined(mapped(std::views::keys(choices)));
    using Choice = std::pair<std::string, T>;
    bind({key, help, "one of " + names, "",
          [&value, choices](const std::string& text) {
            const auto found = std::ranges::find(choices, text, &Choice::first);
            value = found == choices.end() ? value : found->second;
            return found != choices.end();
          },
          [&value, choices, key] {
            const auto found = std::ranges::find(choices, value, &Choice::second);
            require(found != choices.end(), key, " has a value without a name");
            return found->first;
          }});
  }

  // Binds, in bind(), settings that nothing reads unless is_read(), which the setting `choice`
  // decides. A key may be bound so several times, always with the same range: an assignment sets
  // each of them, and at most one is read.
  void only_if(const std::string& choice, const std::function<bool()>& is_read,
               const std::function<void()>& bind);

  // Applies assignments in order. Returns one line for each wrong one: a wrong value with what is
  // allowed and how to write it, an unknown key with the nearest known key (hints.h).
  std::vector<std::string> apply(const std::vector<Assignment>& assignments);
  // Applies what a program wrote, maybe an older one. The choices come first. Settings that nothing
  // reads then are left out, and so are removed ones that say nothing now.
  std::vector<std::string> apply_stored(const std::vector<Assignment>& assignments);
  // Splits `--key value`, `--key=value` and positional words. A key that is followed by nothing or
  // by another key is a switch with the value "true". A switch of the command, such as --json,
  // takes the next word only if that is true or false. With a `positional` key, each positional
  // word is an assignment to it. Throws Error(kConfig) for a key without a name, such as `--`
  // alone.
  CommandLine parse(const std::vector<std::string>& words,
                    const std::string& positional = "") const;
  // For commands that take only options: parses and applies the words. A word without an option is
  // the value of `positional`, unless that was given or is empty; any other one is a problem, too.
  std::vector<std::string> apply_words(const std::vector<std::string>& words,
                                       const std::string& positional = "");
  // The current value of a bound setting, as ini_text() writes it.
  std::string text(const std::string& key) const;
  std::vector<std::string> keys() const;  // those in sections, each once
  // One line for each setting that nothing reads and that has another value than in `defaults`,
  // where the same settings were bound.
  std::vector<std::string> unread(const Options& defaults) const;

  // Usage, then each setting with its default, in lines of at most 120 columns. Of those with a
  // section only the ones that begin with a text of `shown`, such as "dist."; all if it is empty.
  std::string help(const std::vector<std::string>& shown = {}) const;
  std::string ini_text() const;  // all that are read, as a configuration file with these values

 private:
  struct Condition {
    std::string choice;
    std::function<bool()> holds;
  };
  struct Setting {
    std::string key, help, allowed, default_text;
    std::function<bool(const std::string&)> assign;  // false: not a value of this setting
    std::function<std::string()> text;
    std::vector<Condition> conditions{};  // outer ones first; it is read if all hold
    const Condition* unmet() const;       // the first that does not hold; null: it is read
  };
  void bind(Setting setting);
  // The one that is read of those with this key; otherwise the first; null if there is none.
  const Setting* find(const std::string& key) const;
  std::string suggestion(const std::string& key) const;
  static std::string other_spelling(const Setting& setting, const std::string& value);

  std::string usage_;
  std::vector<Setting> settings_;
  std::vector<Condition> conditions_;  // of what is being bound
};

// Reads INI text: [section], key = value, # comments. Keys become section.key. Throws
// Error(kConfig) with the origin.
std::vector<Assignment> parse_ini(const std::string& text, const std::string& origin);

}  // namespace tandem
