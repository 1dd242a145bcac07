#include "src/train/run_directory.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/core/error.h"

namespace tandem {

namespace {

void compare_fixed_settings(const Config& config, const std::string& path) {
  const std::vector<std::string> now = fixed_settings(config);
  const std::vector<std::string> then = fixed_settings(config_from_text(read_file(path), path));
  std::string differences;
  for (size_t i = 0; i < now.size() && i < then.size(); ++i) {
    if (now[i] != then[i]) {
      differences += str("\n  was ", then[i], ", now ", now[i].substr(now[i].find("= ") + 2));
    }
  }
  if (!differences.empty()) {
    fail(ExitCode::kConfig,
         str("run ", config.run.name,
             " was started with other settings; choose another run.name, or ", "remove ",
             std::filesystem::path(path).parent_path().string(), ":", differences));
  }
}

}  // namespace

void RunDirectory::prepare(const Config& config) const {
  std::error_code error;
  std::filesystem::create_directories(checkpoints(), error);
  if (error) {
    fail(ExitCode::kData, str(checkpoints(), ": cannot create the run's folder: ", error.message(),
                              "; choose a writable place with --run.dir"));
  }
  const std::string config_path = path_ + "/config.cfg";
  if (std::filesystem::exists(config_path)) {
    compare_fixed_settings(config, config_path);
  }
  write_file(config_path, config.ini_text());
}

void write_file(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  std::ofstream out(partial, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) {
    const int reason = errno;
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    fail(ExitCode::kData, str(path, ": cannot write: ", std::strerror(reason)));
  }
  std::filesystem::rename(partial, path);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    fail(ExitCode::kData, str(path, ": cannot read: ", std::strerror(errno)));
  }
  return text.str();
}

}  // namespace tandem
