// tandem estimate: what a training step will need and how long it will take, without running it.
#include "src/estimate/estimate.h"

#include <cstdio>
#include <filesystem>
#include <limits>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/commands/settings.h"
#include "src/estimate/estimate_table.h"
#include "src/estimate/link_bench.h"
#include "src/io/file.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

constexpr const char* kUsage =
    R"(tandem estimate: memory, traffic and time of a training step, without running it

  tandem estimate configs/gpt2_124m.cfg --ranks 32 --gpu a100-40 --train.micro_batch 8
  tandem estimate configs/mnist_mlp.cfg --ranks 2

Takes the settings of `tandem train`. Memory and bytes between ranks are those of a dry run of the step; the time
follows from the rates that are printed, which options replace.)";

Choices<const GpuModel*> gpu_choices() {
  Choices<const GpuModel*> choices = {{"none", nullptr}};
  for (const GpuModel& gpu : gpu_models()) {
    choices.emplace_back(gpu.name, &gpu);
  }
  return choices;
}

struct Request : RunRequest {
  const GpuModel* gpu = nullptr;  // null: this machine's CPU
  int64_t ranks = 1, node_size = 0, documents = 0;
  int64_t vocab = 50257, classes = 10, image = 32, channels = 3;  // as GPT-2's and CIFAR-10's
  double memory_gib = 0, product_tflops = 0, memory_gb_s = 0, inside_gb_s = 0, between_gb_s = 0;
  std::string machine;
  bool largest_batch = false, json = false, ops = false;

  Request() : RunRequest(kUsage) {
    options.add("machine", machine, "file of `tandem bench links`: links as they were measured");
    options.add("ranks", ranks, "processes of the job", 1, 1 << 16);
    options.add("node-size", node_size, "ranks a node; 0: dist.node_size, or up to 8 GPUs", 0,
                1 << 16);
    options.add_choice("gpu", gpu, gpu_choices(), "of each rank; none: this machine's CPU");
    options.add("documents", documents,
                "tokens of a document, on average, with data.windows = documents; 0: one fills a "
                "window. mfu counts whole windows all the same",
                0, 1 << 30);
    options.add("vocab", vocab, "tokens in the vocabulary, where there is no dataset", 1, 1 << 30);
    options.add("image", image, "height and width, where there is no dataset", 1, 1 << 16);
    options.add("channels", channels, "of images, where there is no dataset", 1, 1 << 16);
    options.add("classes", classes, "of images, where there is no dataset", 1, 1 << 24);
    options.add("memory-gib", memory_gib, "for tensors, of a rank; 0: the device's", 0, 1e5);
    options.add("tflops", product_tflops, "that matrix products reach; 0: as printed", 0, 1e6);
    options.add("memory-gb-s", memory_gb_s, "that other kernels reach; 0: as printed", 0, 1e6);
    options.add("inside-gb-s", inside_gb_s, "of a rank's link inside its node; 0: as printed", 0,
                1e6);
    options.add("between-gb-s", between_gb_s, "of a node's link to others; 0: as printed", 0, 1e6);
    options.add("largest-batch", largest_batch,
                "each row has the largest micro-batch that fits, in place of train.micro_batch");
    options.add("usd-per-node-hour", config.run.usd_per_node_hour,
                "dollars of a node and an hour; 0: no prices", 0, 1e6);
    options.add("json", json, "print one JSON object instead of a table");
    options.add("ops", ops, "print instead the floor of each op of a gpt's or llama's step");
    add_settings();
  }
};

// The dataset's own description, or an assumed one whose `path` says what is assumed.
DatasetInfo describe_data(const Request& request) {
  const std::string& path = request.config.data.path;
  if (!path.empty() && std::filesystem::exists(path)) {
    return inspect_dataset(path);
  }
  DatasetInfo data;
  const bool text = request.config.model->reads_text();
  data.kind = text ? DatasetKind::kText : DatasetKind::kImages;
  const std::optional<TransformerConfig> model = request.config.model->transformer();
  const int64_t vocab = model ? model->vocab : 0;  // 0: not given
  data.vocab_size = vocab > 0 ? vocab : request.vocab;
  data.channels = request.channels;
  data.height = data.width = request.image;
  data.classes.resize(static_cast<size_t>(request.classes));
  data.path = str(path.empty() ? "no dataset" : "no " + path, ": assuming ",
                  text ? str(data.vocab_size, " tokens in the vocabulary (",
                             vocab > 0 ? "model.vocab" : "--vocab", ")")
                       : str(request.image, " x ", request.image, " images of ", request.classes,
                             " classes (--image, --classes)"));
  return data;
}

// Finds what is wrong on the training machine, which has the device and data.
std::vector<std::string> problems_there(Config config, int ranks) {
  config.run.device = std::nullopt;
  config.data.path = "data.h5";
  return problems_of(config, ranks);
}

int node_size_of(const Request& request) {
  if (request.node_size > 0) {
    return static_cast<int>(request.node_size);
  }
  if (const int given = request.config.dist.ranks_a_node(); given > 0) {
    return given;
  }
  const int ranks = static_cast<int>(request.ranks);
  return request.gpu ? std::min(ranks, 8) : ranks;
}

void resolve(Request& request, const Words& words) {
  std::vector<std::string> problems = apply_settings(request.options, words);
  if (!request.help) {
    const int ranks = static_cast<int>(request.ranks);
    if (request.config.dist.islands == 0) {  // node
      request.config.dist.islands = std::max(1, ranks / node_size_of(request));
    }
    // A model that is not there yet is what the user says of it.
    const std::string& from = request.config.checkpoint.init_from;
    const bool is_told = request.config.model.description() != Config().model.description();
    if (!from.empty() && (std::filesystem::exists(from) || !is_told)) {
      resolve_checkpoint(from);
    }
    append(problems, problems_there(request.config, ranks));
    if (request.documents > 0 && request.config.data.windows == WindowKind::kStream) {
      add_problem(problems, "--documents ", request.documents,
                  " needs data.windows = documents; a stream does not know them");
    }
    if (request.channels * request.image * request.image > std::numeric_limits<int32_t>::max()) {
      add_problem(problems, "--channels ", request.channels, " of --image ", request.image,
                  ": an image has at most 2^31 - 1 values");
    }
    append(problems, problems.empty() ? too_long(request.config, ranks) : Words());
  }
  fail_if_any(problems);
}

// Takes the links of a machine that was measured, in place of assumed ones.
void use_links(Job& job, const std::string& path) {
  const MeasuredMachine machine = machine_from_text(read_file(path), path);
  const auto use = [&](const std::optional<Link>& measured, bool needed, const char* where,
                       Link& link) {
    if (needed && !measured) {
      fail(ExitCode::kConfig, path, ": has no links ", where, " nodes, which ", job.ranks,
           " ranks with ", job.node_size, " on each node use; measure on such a job");
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
    fail(ExitCode::kConfig, "--node-size ", job.node_size, " does not divide --ranks ", job.ranks,
         "; choose a divisor");
  }
  job.document_length = request.documents;
  job.hardware = hardware_of(request.gpu, request.config, job.node_size);
  if (!request.machine.empty()) {
    use_links(job, request.machine);
  }
  if (request.memory_gib > 0) {
    job.hardware.memory_bytes = static_cast<int64_t>(request.memory_gib * (1 << 30));
    job.hardware.reserved_bytes = 0;
  }
  Speed& speed = job.hardware.speed;
  if (request.product_tflops > 0) {
    speed.flops_per_s = request.product_tflops * 1e12;
    speed.attention_flops_per_s = request.gpu ? speed.attention_flops_per_s : speed.flops_per_s;
    job.hardware.basis = "";
  }
  speed.bytes_per_s = request.memory_gb_s > 0 ? request.memory_gb_s * 1e9 : speed.bytes_per_s;
  const auto replace_link = [](Link& link, double gb_s) {
    link = gb_s > 0 ? Link{.latency_s = link.latency_s, .bytes_per_s = gb_s * 1e9} : link;
  };
  replace_link(job.hardware.network.inside, request.inside_gb_s);
  replace_link(job.hardware.network.between, request.between_gb_s);
  return job;
}

std::vector<EstimateRow> rows_of(const Request& request, const DatasetInfo& data, const Job& job) {
  const Config& config = request.config;
  std::vector<EstimateRow> rows;
  const auto add = [&](Config tried, bool is_given) {
    const int64_t largest = largest_micro_batch(tried, data, job);
    if (const int64_t usable = usable_micro_batch(tried, job, largest);
        request.largest_batch && usable > 0) {
      tried.train.micro_batch = usable;
    }
    rows.push_back({.config = tried,
                    .estimate = estimate(tried, data, job),
                    .largest_micro_batch = largest,
                    .is_given = is_given});
  };
  for (int64_t zero = 0; zero < 4; ++zero) {
    for (const bool recompute : {false, true}) {
      Config tried = config;
      tried.dist.zero = zero;
      tried.train.recompute = recompute;
      const bool is_given = zero == config.dist.zero && config.train.recompute == recompute;
      if (is_given || problems_there(tried, job.ranks).empty()) {
        add(tried, is_given);
      }
    }
  }
  for (const int64_t tensor : {1, 2, 4, 8}) {
    Config tried = config;
    tried.dist.tensor = tensor;
    if (config.model->transformer() && tensor != config.dist.tensor && tensor <= job.node_size &&
        problems_there(tried, job.ranks).empty()) {
      add(tried, false);
    }
  }
  return rows;
}

// Of a micro-batch and the update after it, on one rank.
std::string ops_of(const Request& request, const DatasetInfo& data, const Job& job) {
  const Config& config = request.config;
  if (request.json) {
    fail(ExitCode::kConfig, "--ops: it prints a table alone; leave out --json");
  }
  const bool has_rates = request.product_tflops > 0 || request.memory_gb_s > 0;
  if (request.largest_batch || (request.gpu && has_rates)) {
    fail(ExitCode::kConfig,
         "--ops: it is of train.micro_batch, at the highest rates of --gpu; leave out "
         "--largest-batch, and with --gpu also --tflops and --memory-gb-s");
  }
  std::optional<TransformerConfig> sizes = config.model->transformer();
  if (!sizes) {
    fail(ExitCode::kConfig, "--ops: a ", config.model.kind.name(),
         " has no list of ops; only gpt and llama have one");
  }
  if (const std::string& kind = config.optim.kind.name(); kind != "adamw") {
    fail(ExitCode::kConfig, "--ops: optim.kind = ", kind,
         " has no floor; the list knows the update of adamw alone");
  }
  if (config.dist.tensor > 1 || config.model.lora.rank > 0) {
    fail(ExitCode::kConfig,
         "--ops: the list knows no layers that ranks cut, and no "
         "adapters; use dist.tensor = 1 and lora.rank = 0");
  }
  const int64_t micro_batch = config.batch_plan(job.ranks).micro_batch();
  const std::string title = str("one rank: ", micro_batch, " x ", config.model->context(),
                                " tokens and the update, ", name_of(config.train.precision),
                                ", vocabulary ", data.vocab_size, ", on ", job.hardware.name);
  sizes->vocab = data.vocab_size;
  return ops_text(
      title,
      transformer_costs(resolved(*sizes), micro_batch, config.train.precision, job.document_length),
      request.gpu ? request.gpu->ceilings() : job.hardware.speed);
}

}  // namespace

ExitCode estimate_command(const Words& words, World& world) {
  require_one_process(world, "estimate", " and say --ranks N");
  Request request;
  resolve(request, words);
  if (request.help) {
    return print_help(request.options, world);
  }
  const DatasetInfo data = describe_data(request);
  const Job job = job_of(request);
  if (request.ops) {
    std::printf("%s\n", ops_of(request, data, job).c_str());
    return ExitCode::kOk;
  }
  const std::vector<EstimateRow> rows = rows_of(request, data, job);
  const std::string shown =
      request.json ? estimate_json(rows, data, job) : estimate_text(rows, data, job);
  std::printf("%s\n", shown.c_str());
  return ExitCode::kOk;
}

}  // namespace tandem
