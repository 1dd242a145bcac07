#include "src/train/run_choices.h"

#include <filesystem>

#include "src/device/ranks/agreement.h"
#include "src/io/file.h"

namespace tandem {

Chosen choose_for_run(const Config& config, const RunDirectory& directory, Machine& machine,
                      const OpenChoices& open, const std::function<void()>& check_fit) {
  Control& job = machine.mesh()->job();
  const std::string& other = config.run.choices;
  agree(job, [&] {
    if (!other.empty() && machine.device() == Device::kCpu) {
      fail(ExitCode::kConfig,
           "run.choices is for a GPU, and this run computes on the CPU; remove it");
    }
  });
  const std::string file = on_root(job, [&] {
    return std::filesystem::exists(directory.choices()) ? directory.choices()
                                                        : directory.find(other);
  });
  const std::string kept = on_root(job, [&] { return file.empty() ? file : read_file(file); });
  Chosen chosen = choose(machine, open, kept, file, check_fit);
  on_root(job, [&] {
    if (!chosen.text.empty()) {
      replace_file(directory.choices(), chosen.text, directory.folder());
    }
    return std::string();
  });
  return chosen;
}

}  // namespace tandem
