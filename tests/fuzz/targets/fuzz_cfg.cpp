// Settings files: src/options/options.cpp src/settings/config.cpp
#include "tests/fuzz/support/settings.h"

using namespace tandem;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Config config;
  Options options("usage");
  config.bind(options);
  fuzz::accepts(ExitCode::kConfig, [&] {
    if (options.apply(parse_ini(fuzz::text_of(data, size), "input")).empty()) {
      problems_of(config, 2);
      fuzz::check_settings(config);
    }
  });
  return 0;
}
