// tandem estimate: what a training step will need and how long it will take, without running it.
#include "src/estimate/estimate.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/agreement.h"
#include "src/commands/commands.h"
#include "src/commands/settings.h"
#include "src/estimate/link_bench.h"
#include "src/io/file.h"

namespace tandem {

namespace {

constexpr const char* kUsage =
    R"(tandem estimate: memory, traffic and time of a training step, without running it

  tandem estimate --config configs/gpt2_124m.cfg --ranks 32 --gpu a100-40 --train.micro_batch 8
  tandem estimate --config configs/mnist_mlp.cfg --ranks 2

Takes the settings of `tandem train`. Memory and bytes between ranks are those of a dry run of the step; the time
follows from the rates that are printed, which options replace.)";

Choices<const GpuModel*> gpu_choices() {
  Choices<const GpuModel*> choices = {{"none", nullptr}};
  for (const GpuModel& gpu : gpu_models()) {
    choices.emplace_back(gpu.name, &gpu);
  }
  return choices;
}

struct Request {
  Config config;
  std::vector<std::string> files;
  const GpuModel* gpu = nullptr;  // null: this machine's CPU
  int64_t ranks = 1, node_size = 0;
  int64_t vocab = 50257, classes = 10, image = 32, channels = 3;  // as GPT-2's and CIFAR-10's
  double memory_gib = 0, product_tflops = 0, memory_gb_s = 0, inside_gb_s = 0, between_gb_s = 0;
  std::string machine;
  bool json = false, help = false;
  Options options{kUsage};

  Request() {
    options.add("config", files, "settings to read; may repeat");
    options.add("machine", machine, "file of `tandem bench links`: links as they were measured");
    options.add("ranks", ranks, "processes of the job", 1, 1 << 20);
    options.add("node-size", node_size, "ranks a node; 0: dist.node_size, or up to 8 GPUs", 0);
    options.add_choice("gpu", gpu, gpu_choices(), "of each rank; none: this machine's CPU");
    options.add("vocab", vocab, "tokens in the vocabulary, where there is no dataset", 1, 1 << 30);
    options.add("image", image, "height and width, where there is no dataset", 1, 1 << 16);
    options.add("channels", channels, "of images, where there is no dataset", 1, 1 << 16);
    options.add("classes", classes, "of images, where there is no dataset", 1, 1 << 24);
    options.add("memory-gib", memory_gib, "for tensors, of a rank; 0: the device's");
    options.add("tflops", product_tflops, "that matrix products reach; 0: as printed");
    options.add("memory-gb-s", memory_gb_s, "that other kernels reach; 0: as printed");
    options.add("inside-gb-s", inside_gb_s, "of a rank's link inside its node; 0: as printed");
    options.add("between-gb-s", between_gb_s, "of a node's link to others; 0: as printed");
    options.add("json", json, "print one JSON object instead of a table");
    options.add("help", help, "print this");
    config.bind(options);
  }
};

// The dataset's own description, or an assumed one whose `path` says what is assumed.
DatasetInfo describe_data(const Request& request) {
  const std::string& path = request.config.data.path;
  if (!path.empty() && std::filesystem::exists(path)) {
    return inspect_dataset(path);
  }
  DatasetInfo data;
  const bool text = request.config.model.reads_text();
  data.kind = text ? DatasetKind::kText : DatasetKind::kImages;
  data.vocab_size = request.vocab;
  data.channels = request.channels;
  data.height = data.width = request.image;
  data.classes.resize(static_cast<size_t>(request.classes));
  data.path = str(path.empty() ? "no dataset" : "no " + path, ": assuming ",
                  text ? str(request.vocab, " tokens in the vocabulary (--vocab)")
                       : str(request.image, " x ", request.image, " images of ", request.classes,
                             " classes (--image, --classes)"));
  return data;
}

void resolve(Request& request, const Words& words) {
  std::vector<std::string> problems = apply_settings(request.options, words);
  if (!request.help) {
    Config checked = request.config;  // as on the training machine, which has the device and data
    checked.run.device = std::nullopt;
    checked.data.path = "data.h5";
    const auto combined = problems_of(checked, static_cast<int>(request.ranks));
    problems.insert(problems.end(), combined.begin(), combined.end());
  }
  fail_if_any(problems);
}

int node_size_of(const Request& request) {
  if (request.node_size > 0) {
    return static_cast<int>(request.node_size);
  }
  if (request.config.dist.node_size != "auto") {
    return std::stoi(request.config.dist.node_size);
  }
  const int ranks = static_cast<int>(request.ranks);
  return request.gpu ? std::min(ranks, 8) : ranks;
}

// Takes the links of a machine that was measured, in place of assumed ones.
void use_links(Job& job, const std::string& path) {
  const MeasuredMachine machine = machine_from_text(read_file(path), path);
  const auto use = [&](const std::optional<Link>& measured, bool needed, const char* where,
                       Link& link) {
    if (needed && !measured) {
      fail(ExitCode::kConfig,
           str(path, ": has no links ", where, " nodes, which ", job.ranks, " ranks with ",
               job.node_size, " on each node use; measure on such a job"));
    }
    link = measured.value_or(link);
  };
  job.hardware.measured_links = true;
  use(machine.inside, job.node_size > 1, "inside", job.hardware.network.inside);
  use(machine.between, job.ranks > job.node_size, "between", job.hardware.network.between);
}

Job job_of(const Request& request) {
  Job job{.ranks = static_cast<int>(request.ranks), .node_size = node_size_of(request)};
  if (job.ranks % job.node_size != 0) {
    fail(ExitCode::kConfig, str("--node-size ", job.node_size, " does not divide --ranks ",
                                job.ranks, "; choose a divisor"));
  }
  job.hardware = hardware_of(request.gpu, request.config, job.node_size);
  if (!request.machine.empty()) {
    use_links(job, request.machine);
  }
  const auto replace = [](double& rate, double given, double unit) {
    rate = given > 0 ? given * unit : rate;
  };
  if (request.memory_gib > 0) {
    job.hardware.memory_bytes = static_cast<int64_t>(request.memory_gib * (1 << 30));
    job.hardware.reserved_bytes = 0;
  }
  replace(job.hardware.speed.flops_per_s, request.product_tflops, 1e12);
  replace(job.hardware.speed.bytes_per_s, request.memory_gb_s, 1e9);
  const auto replace_link = [](Link& link, double gb_s) {
    link = gb_s > 0 ? Link{.latency_s = link.latency_s, .bytes_per_s = gb_s * 1e9} : link;
  };
  replace_link(job.hardware.network.inside, request.inside_gb_s);
  replace_link(job.hardware.network.between, request.between_gb_s);
  return job;
}

// One line of the table: the configuration with a ZeRO stage and recomputation of its own.
struct Row {
  Config config;
  Estimate estimate{};
  int64_t largest_micro_batch = 0;
  bool is_given = false;  // the configuration that the user gave

  bool fits(const Job& job) const { return estimate.peak_bytes <= job.hardware.memory_bytes; }
  std::string recompute() const { return config.train.recompute ? "block" : "none"; }
  std::string setting() const {
    return str("dist.zero = ", config.dist.zero, " with train.recompute = ", recompute());
  }
};

std::vector<Row> rows_of(const Config& config, const DatasetInfo& data, const Job& job) {
  std::vector<Row> rows;
  for (int64_t zero = 0; zero < 4; ++zero) {
    for (const bool recompute : {false, true}) {
      Row row{.config = config};
      row.config.dist.zero = zero;
      row.config.train.recompute = recompute;
      row.estimate = estimate(row.config, data, job);
      row.largest_micro_batch = largest_micro_batch(row.config, data, job);
      row.is_given = zero == config.dist.zero && config.train.recompute == recompute;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

// What would make the given row fit: the smallest sufficient change of each setting.
std::string remedies(const std::vector<Row>& rows, const Row& given, const Job& job) {
  std::vector<std::string> ways;
  const auto needs = [](const Row& row) { return format_bytes(row.estimate.peak_bytes); };
  for (const Row& row : rows) {
    const bool same_recompute = row.config.train.recompute == given.config.train.recompute;
    if (same_recompute && row.config.dist.zero > given.config.dist.zero && row.fits(job)) {
      ways.push_back(str("dist.zero = ", row.config.dist.zero, " (", needs(row), ")"));
      break;
    }
  }
  for (const Row& row : rows) {
    if (row.config.dist.zero == given.config.dist.zero && !row.is_given && row.fits(job) &&
        row.config.train.recompute) {
      ways.push_back(str("train.recompute = block (", needs(row), ")"));
    }
  }
  if (const int64_t micro_batch =
          usable_micro_batch(given.config, job, given.largest_micro_batch)) {
    ways.push_back(str("train.micro_batch = ", micro_batch));
  }
  for (const Row& row : rows) {
    if (ways.empty() && row.fits(job)) {
      ways.push_back(str(row.setting(), " (", needs(row), ")"));
    }
  }
  for (const Row& row : rows) {
    const int64_t micro_batch = usable_micro_batch(row.config, job, row.largest_micro_batch);
    if (ways.empty() && micro_batch > 0) {
      ways.push_back(str(row.setting(), " and train.micro_batch = ", micro_batch));
    }
  }
  std::string text;
  for (size_t i = 0; i < ways.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ways.size() ? " or " : ", ") + ways[i];
  }
  return text.empty()
             ? "no stage fits, not even with one sample: take more ranks or a smaller model"
             : "use " + text;
}

std::string verdict(const std::vector<Row>& rows, const Job& job) {
  const Row& given = *std::ranges::find_if(rows, &Row::is_given);
  const std::string room =
      format_bytes(job.hardware.memory_bytes) +
      (job.hardware.reserved_bytes > 0 ? str(" (", format_bytes(job.hardware.reserved_bytes),
                                             " of the GPU are kept for CUDA, "
                                             "cuBLASLt and NCCL)")
                                       : "");
  const std::string peak = format_bytes(given.estimate.peak_bytes);
  if (given.fits(job)) {
    return str(given.setting(), " fits in ", room, ": needs ", peak);
  }
  return str(given.setting(), " does not fit in ", room, ": needs ", peak, "; ",
             remedies(rows, given, job));
}

std::string rates(const Hardware& hardware) {
  char text[256];
  std::snprintf(
      text, sizeof text,
      "%s; matrix products %.3g TFLOP/s of %.3g, other kernels %.3g GB/s, %.2g us to start "
      "one; links%s %.3g GB/s and %.2g us inside a node, %.3g GB/s and %.2g us between",
      hardware.name.c_str(), hardware.speed.flops_per_s / 1e12, hardware.peak_flops / 1e12,
      hardware.speed.bytes_per_s / 1e9, hardware.speed.launch_s * 1e6,
      hardware.measured_links ? ", as measured," : "", hardware.network.inside.bytes_per_s / 1e9,
      hardware.network.inside.latency_s * 1e6, hardware.network.between.bytes_per_s / 1e9,
      hardware.network.between.latency_s * 1e6);
  return text;
}

constexpr std::array kColumns = {MemoryClass::kParameters, MemoryClass::kGradients,
                                 MemoryClass::kMasters,    MemoryClass::kOptimizer,
                                 MemoryClass::kStaging,    MemoryClass::kActivations,
                                 MemoryClass::kWorkspace,  MemoryClass::kData};

void print_table(const std::vector<Row>& rows, const Job& job) {
  std::printf("%-5s %-9s", "zero", "recompute");
  for (const MemoryClass column : kColumns) {
    std::printf(" %11s", std::string(name_of(column)).c_str());
  }
  std::printf(" %11s %9s %11s %11s %9s %6s %9s\n", "peak", "max batch", "sent inside",
              "sent between", "step ms", "mfu", "exposed");
  for (const Row& row : rows) {
    const Estimate& e = row.estimate;
    std::printf("%-5ld %-9s", row.config.dist.zero, row.recompute().c_str());
    for (const MemoryClass column : kColumns) {
      std::printf(" %11s", format_bytes(e.class_bytes[static_cast<size_t>(column)]).c_str());
    }
    std::printf(" %11s %9ld %11s %12s %9.4g %5.1f%% %9.4g%s\n", format_bytes(e.peak_bytes).c_str(),
                row.largest_micro_batch, format_bytes(e.wire.inside).c_str(),
                format_bytes(e.wire.between).c_str(), e.step_s * 1e3, e.mfu * 100,
                e.exposed_s * 1e3, row.fits(job) ? "" : "  does not fit");
  }
}

void print(const std::vector<Row>& rows, const DatasetInfo& data, const Job& job) {
  const Row& given = *std::ranges::find_if(rows, &Row::is_given);
  const int64_t micro_batch = given.config.train.batch_plan(job.ranks).micro_batch();
  std::printf("job      %d ranks, %d a node; global batch %ld, micro-batch %ld; %s\n", job.ranks,
              job.node_size, given.config.train.global_batch, micro_batch, data.path.c_str());
  std::printf("compute  %.4g TFLOP a step of the model's own, %.4g TFLOP run\n",
              given.estimate.model_flops / 1e12, given.estimate.flops / 1e12);
  std::printf("saving   %s of host memory a rank, for the copy that a checkpoint is written from\n",
              format_bytes(given.estimate.checkpoint_bytes).c_str());
  std::printf("assumed  %s\n\n", rates(job.hardware).c_str());
  print_table(rows, job);
  std::printf(
      "\nPer rank: bytes by class at the peak of each, and of all together; what the busiest rank "
      "sends in a step; times\nin ms, `exposed` of which communication that nothing hides.\n\n");
  std::printf("%s\n", verdict(rows, job).c_str());
}

nlohmann::json json_of(const Row& row, const Job& job) {
  const Estimate& e = row.estimate;
  nlohmann::json memory;
  for (const MemoryClass column : kColumns) {
    memory[std::string(name_of(column))] = e.class_bytes[static_cast<size_t>(column)];
  }
  return {{"zero", row.config.dist.zero},
          {"recompute", row.recompute()},
          {"given", row.is_given},
          {"fits", row.fits(job)},
          {"peak_bytes", e.peak_bytes},
          {"memory", memory},
          {"checkpoint_bytes", e.checkpoint_bytes},
          {"largest_micro_batch", row.largest_micro_batch},
          {"wire_bytes", e.wire.total()},
          {"wire_inside", e.wire.inside},
          {"wire_between", e.wire.between},
          {"flops", e.flops},
          {"model_flops", e.model_flops},
          {"step_ms", e.step_s * 1e3},
          {"exposed_comm_ms", e.exposed_s * 1e3},
          {"mfu", e.mfu}};
}

void print_json(const std::vector<Row>& rows, const DatasetInfo& data, const Job& job) {
  nlohmann::json all = {{"ranks", job.ranks},
                        {"node_size", job.node_size},
                        {"data", data.path},
                        {"memory_bytes", job.hardware.memory_bytes},
                        {"assumed", rates(job.hardware)},
                        {"verdict", verdict(rows, job)},
                        {"rows", nlohmann::json::array()}};
  for (const Row& row : rows) {
    all["rows"].push_back(json_of(row, job));
  }
  std::printf("%s\n", all.dump().c_str());
}

}  // namespace

ExitCode estimate_command(const Words& words, World& world, Memory&) {
  if (world.size() > 1) {
    throw AgreedError(
        ExitCode::kConfig,
        "tandem estimate runs as one process; start it without mpirun and say --ranks N");
  }
  Request request;
  resolve(request, words);
  if (request.help) {
    std::fputs(request.options.help().c_str(), stdout);
    return ExitCode::kOk;
  }
  const DatasetInfo data = describe_data(request);
  const Job job = job_of(request);
  const std::vector<Row> rows = rows_of(request.config, data, job);
  request.json ? print_json(rows, data, job) : print(rows, data, job);
  return ExitCode::kOk;
}

}  // namespace tandem
