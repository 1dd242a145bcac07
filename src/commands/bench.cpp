// tandem bench, and of its parts links: how fast the ranks of a job exchange data.
#include <cstdio>
#include <filesystem>
#include <optional>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/commands/settings.h"
#include "src/device/ranks/agreement.h"
#include "src/estimate/link_bench.h"
#include "src/io/file.h"
#include "src/machine/machine.h"

namespace tandem {

namespace {

constexpr const char* kUsage =
    R"(tandem bench links: latency and bandwidth of all_reduce, reduce_scatter, all_gather and all_to_all

  mpirun -np 8 tandem bench links --output machine.json
  tandem estimate --machine machine.json --config FILE --ranks 64 --gpu a100-40

Measures inside nodes, between nodes (all ranks of a node at once) and over all ranks. Takes run.device, run.threads
and dist.* of the settings of `tandem train`, and ignores its others.)";

struct Request : RunRequest {
  std::string output;
  int64_t largest_mib = 256;

  Request() : RunRequest(kUsage) {
    options.add("output", output, "file to write, for tandem estimate --machine");
    options.add("largest-mib", largest_mib, "size of the largest array", 1, 1 << 16);
    add_settings();
  }
};

void print(const std::vector<MeasuredGroup>& groups) {
  for (const MeasuredGroup& group : groups) {
    for (size_t kind = 0; kind < group.samples.size(); ++kind) {
      std::printf(
          "%s, %d ranks%s: %s\n%14s %12s %17s %11s\n", group.scope.c_str(), group.ranks,
          group.groups > 1 ? str(" in each of ", group.groups, " groups at once").c_str() : "",
          kMeasuredCollectives[kind].name, "bytes", "us", "algorithm GB/s", "bus GB/s");
      for (const LinkSample& sample : group.samples[kind]) {
        std::printf("%14ld %12.4g %17.4g %11.4g\n", sample.bytes, sample.seconds * 1e6,
                    static_cast<double>(sample.bytes) / sample.seconds / 1e9,
                    bus_gb_s(kMeasuredCollectives[kind], group.ranks, sample));
      }
    }
  }
}

void print(const char* name, const Link& link) {
  std::printf("%s: %.3g us and %.4g GB/s", name, link.latency_s * 1e6, link.bytes_per_s / 1e9);
  if (link.short_below > 0) {
    std::printf("; below %.4g KiB %.3g us and %.4g GB/s", link.short_below / 1024,
                link.short_latency_s * 1e6, link.short_bytes_per_s / 1e9);
  }
  std::printf("; all_to_all %.3g times as long\n", link.all_to_all);
}

ExitCode links(const Words& words, World& world) {
  Control& control = world.control();
  Request request;
  agree(control, [&] { fail_if_any(apply_settings(request.options, words)); });
  if (request.help) {
    return print_help(request.options, world, {"run.device", "run.threads", "dist."});
  }
  std::optional<NewFile> output;
  on_root(control, [&] {  // now, not after minutes
    if (const std::string folder = parent_of(request.output);
        !std::filesystem::is_directory(folder)) {
      fail_data("--output ", request.output, ": there is no folder ", folder, "; make it first");
    }
    if (std::filesystem::is_directory(request.output)) {
      fail_data("--output ", request.output, ": is a folder; name a file in it");
    }
    if (!request.output.empty()) {
      clean_up_on_signals(request.output);
      output.emplace(request.output);
    }
    return std::string();
  });
  request.config.dist.islands = request.config.dist.tensor = 1;  // links are those of all ranks
  Machine machine(request.config.run, request.config.dist, world);
  const auto groups = measure_links(*machine.mesh(), machine.node_of_rank(), machine.stream,
                                    request.largest_mib << 20);
  on_root(control, [&] {
    print(groups);
    const MeasuredMachine measured = machine_of(groups);
    if (measured.inside) {
      print("link of a rank inside its node", *measured.inside);
    }
    if (measured.between) {
      print("link of a node to others", *measured.between);
    }
    if (output) {
      const std::string about =
          str(machine.description(), "; ", machine.sharing(request.config.dist));
      output->write(machine_text(groups, about));
      output->finish();
      std::printf("written to %s\n", request.output.c_str());
    }
    return std::string();
  });
  return ExitCode::kOk;
}

}  // namespace

ExitCode bench_command(const Words& words, World& world) {
  const std::string kind = words.empty() ? "" : words[0];
  const Words rest(words.empty() ? words.begin() : words.begin() + 1, words.end());
  if (kind == "links") {
    return links(rest, world);
  }
  if (kind == "--help") {
    if (world.rank() == 0) {
      std::printf("%s\n\nMore: tandem bench links --help\n", kUsage);
    }
    return ExitCode::kOk;
  }
  throw AgreedError(ExitCode::kConfig, "tandem bench: say links, not \"", kind,
                    "\"; --help shows examples");
}

}  // namespace tandem
