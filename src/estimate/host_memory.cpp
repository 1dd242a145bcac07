#include "src/estimate/host_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace tandem {

namespace {

namespace fs = std::filesystem;

// The number after the name in a file of lines "name number".
std::optional<int64_t> number_of(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  int64_t number = 0;
  for (std::string line, key; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> key >> number && key == name) {
      return number;
    }
  }
  return std::nullopt;
}

// The number that is the whole file; none if there is no file, or no limit ("max").
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// The files of a control group, in one of the two versions.
struct Version {
  std::string folder, limit, usage, cache[2];
};
const Version kFirst = {"/sys/fs/cgroup/memory",
                        "memory.limit_in_bytes",
                        "memory.usage_in_bytes",
                        {"total_inactive_file", "total_active_file"}};
const Version kSecond = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

// What the limits of a group and of those above it leave.
int64_t left_in_groups(const std::string& root, const Version& version, const std::string& group) {
  int64_t left = INT64_MAX;
  for (fs::path inner = fs::path(group).relative_path();; inner = inner.parent_path()) {
    const fs::path folder = fs::path(root + version.folder) / inner;
    const auto limit = number_in(folder / version.limit);
    const auto usage = number_in(folder / version.usage);
    if (limit && usage) {
      int64_t cache = 0;
      for (const std::string& name : version.cache) {
        cache += number_of(folder / "memory.stat", name).value_or(0);
      }
      const int64_t used = std::max<int64_t>(*usage - cache, 0);
      left = std::min(left, std::max<int64_t>(*limit - used, 0));
    }
    if (inner.empty()) {
      return left;
    }
  }
}

}  // namespace

int64_t available_host_memory(const std::string& root) {
  int64_t left = INT64_MAX;
  if (const auto kib = number_of(root + "/proc/meminfo", "MemAvailable:")) {
    left = (*kib + number_of(root + "/proc/meminfo", "SwapFree:").value_or(0)) << 10;
  }
  std::ifstream groups(root + "/proc/self/cgroup");  // lines "number:controllers:path"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      left = std::min(left, left_in_groups(root, kSecond, group));
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, left_in_groups(root, kFirst, group));
    }
  }
  return left;
}

int64_t available_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return INT64_MAX;
  }
  const int64_t taken = number_of("/proc/self/status", "VmSize:").value_or(0) << 10;
  return std::max<int64_t>(static_cast<int64_t>(limit.rlim_cur) - taken, 0);
}

}  // namespace tandem
