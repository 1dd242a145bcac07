// The command line: src/options/options.cpp src/settings/config.cpp
#include <sstream>

#include "tests/fuzz/support/settings.h"

using namespace tandem;

// One word a line.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> words;
  std::istringstream lines(fuzz::text_of(data, size));
  for (std::string word; std::getline(lines, word);) {
    words.push_back(word);
  }
  Config config;
  Options options("usage");
  config.bind(options);
  fuzz::accepts(ExitCode::kConfig, [&] {
    if (options.apply_words(words).empty() && problems_of(config, 2).empty()) {
      fuzz::check_settings(config);
    }
  });
  return 0;
}
