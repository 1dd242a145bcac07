#include "src/options/options.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <iterator>
#include <sstream>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/core/parse_number.h"
#include "src/options/hints.h"

namespace tandem {

namespace {

namespace po = boost::program_options;

constexpr const char* kText = "text";  // what a setting without restrictions allows
constexpr const char* kYesOrNo = "true or false";
// What older programs wrote: settings with a value that says nothing now; null: whatever the value.
constexpr std::pair<std::string_view, const char*> kOld[] = {{"log.trace", "false"},
                                                             {"run.gemm_plans", nullptr}};

bool is_old(const std::string& key, const std::string& value) {
  return std::ranges::any_of(kOld, [&](const auto& old) {
    return key == old.first && (!old.second || value == old.second);
  });
}

// The shortest text that reads back as the same number.
template <class T>
std::string number_text(T value) {
  char text[64];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return std::string(text, result.ptr);
}

template <class Number>
std::string range_text(Number low, Number high) {
  return str(std::is_integral_v<Number> ? "a whole number" : "a number", " in [", number_text(low),
             ", ", number_text(high), "]");
}

// `text`, which begins in column 0, in lines of at most 120 columns; later ones begin at `indent`.
std::string wrapped(std::string text, size_t indent) {
  for (size_t begin = 0; text.size() - begin > 120;) {
    const size_t space = text.rfind(' ', begin + 120);
    if (space == std::string::npos || space < begin + indent) {
      break;
    }
    text.replace(space, 1, "\n" + std::string(indent, ' '));
    begin = space + 1;
  }
  return text + "\n";
}

}  // namespace

void Options::bind(Setting setting) {
  const Setting* other = find(setting.key);
  require(!other || other->allowed == setting.allowed, setting.key, " is bound with another range");
  setting.default_text = setting.text();
  setting.conditions = conditions_;
  settings_.push_back(std::move(setting));
}

void Options::only_if(const std::string& choice, const std::function<bool()>& is_read,
                      const std::function<void()>& bind) {
  conditions_.push_back({choice, is_read});
  bind();
  conditions_.pop_back();
}

const Options::Condition* Options::Setting::unmet() const {
  const auto found =
      std::ranges::find_if(conditions, [](const Condition& it) { return !it.holds(); });
  return found == conditions.end() ? nullptr : &*found;
}

const Options::Setting* Options::find(const std::string& key) const {
  const Setting* found = nullptr;
  for (const Setting& setting : settings_) {
    if (setting.key == key && (!found || (found->unmet() && !setting.unmet()))) {
      found = &setting;
    }
  }
  return found;
}

template <class Number>
void Options::add(const std::string& key, Number& value, const std::string& help,
                  std::type_identity_t<Number> low, std::type_identity_t<Number> high) {
  bind({key, help, range_text(low, high), "",
        [&value, low, high](const std::string& text) {
          const auto parsed = parse_number<Number>(text);
          const bool good = parsed && *parsed >= low && *parsed <= high;
          value = good ? *parsed : value;
          return good;
        },
        [&value] { return number_text(value); }});
}
template void Options::add(const std::string&, int64_t&, const std::string&, int64_t, int64_t);
template void Options::add(const std::string&, double&, const std::string&, double, double);

template <class Number>
void Options::add_or(const std::string& word, const std::string& key, Number& value,
                     const std::string& help, std::type_identity_t<Number> low,
                     std::type_identity_t<Number> high) {
  bind({key, help, str(word, ", or ", range_text(low, high)), "",
        [&value, word, low, high](const std::string& text) {
          const auto parsed = parse_number<Number>(text);
          const bool good = text == word || (parsed && *parsed >= low && *parsed <= high);
          value = text == word ? 0 : good ? *parsed : value;
          return good;
        },
        [&value, word] { return value == 0 ? word : number_text(value); }});
}
template void Options::add_or(const std::string&, const std::string&, int64_t&, const std::string&,
                              int64_t, int64_t);
template void Options::add_or(const std::string&, const std::string&, double&, const std::string&,
                              double, double);

void Options::add(const std::string& key, bool& value, const std::string& help) {
  bind({key, help, kYesOrNo, "",
        [&value](const std::string& text) {
          const bool yes = text == "true" || text == "1" || text == "yes" || text == "on";
          const bool no = text == "false" || text == "0" || text == "no" || text == "off";
          value = yes || (!no && value);
          return yes || no;
        },
        [&value] { return std::string(value ? "true" : "false"); }});
}

void Options::add(const std::string& key, std::string& value, const std::string& help) {
  bind({key, help, kText, "",
        [&value](const std::string& text) {
          value = text;
          return true;
        },
        [&value] { return value; }});
}

void Options::add(const std::string& key, std::optional<std::string>& value,
                  const std::string& help) {
  bind({key, help, kText, "",
        [&value](const std::string& text) {
          value = text;
          return true;
        },
        [&value] { return value.value_or(""); }});
}

void Options::add(const std::string& key, std::vector<std::string>& values,
                  const std::string& help) {
  bind({key, help, kText, "",
        [&values](const std::string& text) {
          values.push_back(text);
          return true;
        },
        [] { return std::string(); }});
}

std::vector<std::string> Options::apply(const std::vector<Assignment>& assignments) {
  std::vector<std::string> problems;
  for (const Assignment& assignment : assignments) {
    const Setting* setting = find(assignment.key);
    if (!setting) {
      add_problem(problems, assignment.origin, ": unknown setting ", assignment.key,
                  suggestion(assignment.key));
    } else if (assignment.bare && setting->allowed != kYesOrNo) {
      add_problem(problems, assignment.origin, ": ", assignment.key,
                  " has no value; one that begins with -- is given as --", assignment.key,
                  "=VALUE");
    } else if (!setting->assign(assignment.value)) {
      add_problem(problems, assignment.origin, ": ", assignment.key, " = ", assignment.value,
                  " must be ", setting->allowed, other_spelling(*setting, assignment.value));
    } else {
      for (const Setting& other : settings_) {
        if (other.key == assignment.key && &other != setting) {
          other.assign(assignment.value);
        }
      }
    }
  }
  return problems;
}

std::vector<std::string> Options::apply_stored(const std::vector<Assignment>& assignments) {
  const auto is_choice = [&](const std::string& key) {
    return std::ranges::any_of(settings_, [&](const Setting& setting) {
      return std::ranges::count(setting.conditions, key, &Condition::choice) > 0;
    });
  };
  std::vector<std::string> problems;
  for (const bool choices : {true, false}) {
    for (const Assignment& assignment : assignments) {
      const auto& [key, value, origin, bare] = assignment;
      const Setting* setting = find(key);
      const bool is_left_out = is_old(key, value) || (setting && setting->unmet() != nullptr);
      if (choices == is_choice(key) && !is_left_out) {
        append(problems, apply({assignment}));
      }
    }
  }
  return problems;
}

std::string Options::suggestion(const std::string& key) const {
  const std::string known = known_elsewhere(key);
  if (known.find(' ') != std::string::npos) {
    return "; " + known;
  }
  if (const Setting* meant = find(known)) {
    return str("; here it is ", meant->key, ": ", meant->help);
  }
  const std::string guess = nearest_name(key, mapped(settings_, &Setting::key));
  return guess.empty() ? "; --help lists all" : "; did you mean " + guess + "?";
}

std::string Options::other_spelling(const Setting& setting, const std::string& value) {
  const std::string before = setting.text();
  for (const std::string& spelling : other_spellings(value)) {
    if (setting.assign(spelling)) {
      setting.assign(before);
      return "; write " + spelling;
    }
  }
  return "";
}

CommandLine Options::parse(const std::vector<std::string>& words,
                           const std::string& positional) const {
  const auto is_switch = [&](const std::string& word) {
    return std::ranges::any_of(settings_, [&](const Setting& setting) {
      return setting.allowed == kYesOrNo && setting.key.find('.') == std::string::npos &&
             word == "--" + setting.key;
    });
  };
  CommandLine line;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i] == "-h" ? "--help" : words[i];
    if (!word.starts_with("--")) {
      if (positional.empty()) {
        line.positional.push_back(word);
      } else {
        line.assignments.push_back({positional, word, "command line"});
      }
      continue;
    }
    const size_t equals = word.find('=');
    std::string key = word.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
    if (key.empty()) {
      fail(ExitCode::kConfig, "command line: ", word,
           " is not a setting; write --section.key value");
    }
    // After the last word it is as if another key followed.
    const std::string next = i + 1 < words.size() ? words[i + 1] : "--";
    const bool takes_next =
        is_switch(word) ? next == "true" || next == "false" : !next.starts_with("--");
    std::string value = "true";
    bool bare = false;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (takes_next) {
      value = next;
      ++i;
    } else {
      bare = true;
    }
    line.assignments.push_back({std::move(key), std::move(value), "command line", bare});
  }
  return line;
}

std::vector<std::string> Options::apply_words(const std::vector<std::string>& words,
                                              const std::string& positional) {
  CommandLine line = parse(words);
  if (!positional.empty() && !line.positional.empty() &&
      std::ranges::count(line.assignments, positional, &Assignment::key) == 0) {
    line.assignments.push_back({positional, line.positional[0], "command line"});
    line.positional.erase(line.positional.begin());
  }
  std::vector<std::string> problems = apply(line.assignments);
  for (const std::string& word : line.positional) {
    add_problem(problems, "command line: unexpected word ", word,
                "; options are --key value, text with spaces in quotes");
  }
  return problems;
}

std::string Options::text(const std::string& key) const {
  const Setting* setting = find(key);
  require(setting != nullptr, "Options: no setting ", key);
  return setting->text();
}

std::vector<std::string> Options::keys() const {
  std::vector<std::string> keys;
  for (const Setting& setting : settings_) {
    if (setting.key.find('.') != std::string::npos && std::ranges::count(keys, setting.key) == 0) {
      keys.push_back(setting.key);
    }
  }
  return keys;
}

std::vector<std::string> Options::unread(const Options& defaults) const {
  std::vector<std::string> lines;
  for (const std::string& key : keys()) {
    const Setting* setting = find(key);
    const Condition* unmet = setting->unmet();
    if (unmet && setting->text() != defaults.settings_[setting - settings_.data()].text()) {
      lines.push_back(str(key, " = ", setting->text(), " has no meaning with ", unmet->choice,
                          " = ", text(unmet->choice), "; remove it"));
    }
  }
  return lines;
}

std::string Options::help(const std::vector<std::string>& shown) const {
  std::ostringstream out;
  out << usage_ << "\n";
  std::string section;
  for (const Setting& setting : settings_) {
    if (&setting != std::ranges::find(settings_, setting.key, &Setting::key).base()) {
      continue;
    }
    const size_t dot = setting.key.find('.');
    const std::string this_section = dot == std::string::npos ? "" : setting.key.substr(0, dot);
    const auto begins = [&](const std::string& beginning) {
      return setting.key.starts_with(beginning);
    };
    if (!this_section.empty() && !shown.empty() && std::ranges::none_of(shown, begins)) {
      continue;
    }
    if (this_section != section || &setting == &settings_.front()) {
      out << "\n" << (this_section.empty() ? "options" : this_section) << ":\n";
      section = this_section;
    }
    std::string left = "  --" + setting.key;
    if (!setting.default_text.empty()) {
      left += " " + setting.default_text;
    }
    left.resize(std::max<size_t>(left.size() + 2, 36), ' ');
    std::string help = setting.help;
    for (const Setting& other : settings_) {
      help += other.key == setting.key && help.find(other.help) == std::string::npos
                  ? "; " + other.help
                  : "";
    }
    const bool is_choice = setting.allowed.starts_with("one of");
    out << wrapped(left + help + (is_choice ? " (" + setting.allowed.substr(7) + ")" : ""), 36);
  }
  return out.str();
}

std::string Options::ini_text() const {
  std::ostringstream out;
  std::string section;
  for (const Setting& setting : settings_) {
    const size_t dot = setting.key.find('.');
    if (dot == std::string::npos || setting.unmet()) {
      continue;  // a switch of the command, or nothing reads it
    }
    if (setting.key.substr(0, dot) != section) {
      out << (section.empty() ? "" : "\n") << "[" << setting.key.substr(0, dot) << "]\n";
      section = setting.key.substr(0, dot);
    }
    out << setting.key.substr(dot + 1) << " = " << setting.text() << "\n";
  }
  return out.str();
}

std::vector<Assignment> parse_ini(const std::string& text, const std::string& origin) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors write one
  std::istringstream in(text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size())
                                                         : text);
  try {
    const po::options_description nothing_declared;
    return mapped(
        po::parse_config_file(in, nothing_declared, true).options, [&](const po::option& option) {
          return Assignment{option.string_key, option.value.empty() ? "" : option.value.front(),
                            origin, false};
        });
  } catch (const po::error& error) {
    fail(ExitCode::kConfig, origin, ": ", error.what(), "; write [section] and key = value lines");
  }
}

}  // namespace tandem
