#include "src/estimate/estimate_table.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/core/formatted.h"

namespace tandem {

namespace {

// What would make the given row fit: the smallest sufficient change of each setting.
std::string remedies(const std::vector<EstimateRow>& rows, const EstimateRow& given,
                     const Job& job) {
  std::vector<std::string> ways;
  const auto needs = [](const EstimateRow& row) { return format_bytes(row.estimate.peak_bytes); };
  const auto is_cut_alike = [&](const EstimateRow& row) {
    return row.config.dist.tensor == given.config.dist.tensor;
  };
  for (const EstimateRow& row : rows) {
    const bool same_recompute = row.config.train.recompute == given.config.train.recompute;
    if (same_recompute && row.config.dist.zero > given.config.dist.zero && row.fits(job)) {
      ways.push_back(str("dist.zero = ", row.config.dist.zero, " (", needs(row), ")"));
      break;
    }
  }
  for (const EstimateRow& row : rows) {
    if (row.config.dist.zero == given.config.dist.zero && !row.is_given && row.fits(job) &&
        is_cut_alike(row) && row.config.train.recompute) {
      ways.push_back(str("train.recompute = block (", needs(row), ")"));
    }
  }
  for (const EstimateRow& row : rows) {
    if (!is_cut_alike(row) && row.fits(job)) {
      ways.push_back(str("dist.tensor = ", row.config.dist.tensor, " (", needs(row), ")"));
      break;
    }
  }
  if (const int64_t micro_batch =
          usable_micro_batch(given.config, job, given.largest_micro_batch)) {
    ways.push_back(str("train.micro_batch = ", micro_batch));
  }
  for (const EstimateRow& row : rows) {
    if (ways.empty() && is_cut_alike(row) && row.fits(job)) {
      ways.push_back(str(row.setting(), " (", needs(row), ")"));
    }
  }
  for (const EstimateRow& row : rows) {
    const int64_t micro_batch = usable_micro_batch(row.config, job, row.largest_micro_batch);
    if (ways.empty() && micro_batch > 0) {
      ways.push_back(
          str(is_cut_alike(row) ? row.setting() : str("dist.tensor = ", row.config.dist.tensor),
              " and train.micro_batch = ", micro_batch));
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

std::string verdict(const std::vector<EstimateRow>& rows, const Job& job) {
  const EstimateRow& given = *std::ranges::find_if(rows, &EstimateRow::is_given);
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

int64_t units_per_step(const Config& config) {
  return config.train.global_batch * config.units_per_sample();
}

// Dollars of 10^9 tokens or 10^6 images.
double usd_per_many(const EstimateRow& row, const Job& job) {
  const int64_t units = row.config.train.steps * units_per_step(row.config);
  return row.config.price_unit().price(row.usd(job), static_cast<double>(units));
}

std::string rates(const Hardware& hardware) {
  return formatted(
      "%s; matrix products %.3g TFLOP/s of %.3g%s, attention %.3g; "
      "their bytes and other kernels %.3g GB/s; %.2g us to start one; links%s %.3g GB/s and %.2g "
      "us inside a node, %.3g GB/s and %.2g us between",
      hardware.name.c_str(), hardware.speed.flops_per_s / 1e12, hardware.peak_flops / 1e12,
      hardware.basis.c_str(), hardware.speed.attention_flops_per_s / 1e12,
      hardware.speed.bytes_per_s / 1e9, hardware.speed.launch_s * 1e6,
      hardware.measured_links ? ", as measured," : "", hardware.network.inside.bytes_per_s / 1e9,
      hardware.network.inside.latency_s * 1e6, hardware.network.between.bytes_per_s / 1e9,
      hardware.network.between.latency_s * 1e6);
}

std::string exchange_text(const EstimateRow& given) {
  const Estimate& e = given.estimate;
  const DistConfig& dist = given.config.dist;
  return formatted("%ld, which exchange %s a rank every %s; that adds %.4g ms to the step%s",
                   static_cast<long>(dist.islands), format_bytes(e.sync_wire.total()).c_str(),
                   counted(dist.sync_every, "step").c_str(), e.sync_s * 1e3,
                   dist.sync_delay > 0 ? str(" ", dist.sync_delay, " later").c_str() : "");
}

std::string offload_text(const Estimate& e) {
  return formatted("%s of host memory a rank; a step copies %s each way and waits %.4g ms for it",
                   format_bytes(e.host_bytes).c_str(), format_bytes(e.copied_bytes).c_str(),
                   e.exposed_copy_s * 1e3);
}

constexpr std::array kColumns = {MemoryClass::kParameters, MemoryClass::kGradients,
                                 MemoryClass::kMasters,    MemoryClass::kOptimizer,
                                 MemoryClass::kStaging,    MemoryClass::kActivations,
                                 MemoryClass::kWorkspace,  MemoryClass::kData};

// Rows with the same recomputation whose figures are equal, in the order of their stages; or a row
// with a dist.tensor.
struct Line {
  const EstimateRow* row;
  std::string label;  // "2", or "0-3"
};

std::string figures(const EstimateRow& row) {
  const Estimate& e = row.estimate;
  std::string text = str(e.peak_bytes, ' ', row.largest_micro_batch, ' ', e.wire.inside, ' ',
                         e.wire.between, ' ', e.step_s, ' ', e.exposed_s);
  for (const MemoryClass column : kColumns) {
    text += str(' ', e.class_bytes[static_cast<size_t>(column)]);
  }
  return text;
}

std::vector<Line> lines_of(const std::vector<EstimateRow>& rows) {
  std::vector<Line> lines;
  const EstimateRow& given = *std::ranges::find_if(rows, &EstimateRow::is_given);
  for (const EstimateRow& row : rows) {
    const int64_t stage = row.config.dist.zero;
    if (row.config.dist.tensor != given.config.dist.tensor) {
      continue;
    }
    const auto same = std::ranges::find_if(lines, [&](const Line& line) {
      return line.row->config.train.recompute == row.config.train.recompute &&
             line.label.ends_with(std::to_string(stage - 1)) && figures(*line.row) == figures(row);
    });
    if (same == lines.end()) {
      lines.push_back({&row, std::to_string(stage)});
    } else {
      same->label = str(same->row->config.dist.zero, '-', stage);
    }
  }
  return lines;
}

// The given row and those with another dist.tensor; none if there are no others.
std::vector<Line> lines_of_tensor_sizes(const std::vector<EstimateRow>& rows) {
  const EstimateRow& given = *std::ranges::find_if(rows, &EstimateRow::is_given);
  std::vector<Line> lines;
  for (const EstimateRow& row : rows) {
    if (row.is_given || row.config.dist.tensor != given.config.dist.tensor) {
      lines.push_back({&row, std::to_string(row.config.dist.tensor)});
    }
  }
  std::ranges::sort(lines, {}, [](const Line& line) { return line.row->config.dist.tensor; });
  return lines.size() > 1 ? lines : std::vector<Line>();
}

// The words of `text`, broken into lines of at most 100 columns; `indent` spaces begin all but the
// first.
std::string wrapped(const std::string& text, size_t indent) {
  std::istringstream words(text.substr(indent));
  std::string done = text.substr(0, indent), word;
  size_t column = indent;
  while (words >> word) {
    if (column > indent && column + 1 + word.size() > 100) {
      done += "\n" + std::string(indent, ' ');
      column = indent;
    }
    done += (column > indent ? " " : "") + word;
    column += (column > indent ? 1 : 0) + word.size();
  }
  return done;
}

std::string step_table(const std::vector<Line>& lines, const Job& job, const char* label) {
  const bool priced = lines[0].row->config.run.usd_per_node_hour > 0;
  std::string text =
      formatted("%-4s %-9s %10s %9s %11s %12s %9s %6s %9s", label, "recompute", "peak", "max batch",
                "sent inside", "sent between", "step ms", "mfu", "exposed");
  text += priced ? formatted(" %9s %9s\n", "usd", "usd each") : "\n";
  for (const auto& [row, value] : lines) {
    const Estimate& e = row->estimate;
    text += formatted("%-4s %-9s %10s %9ld %11s %12s %9.4g %5.1f%% %9.4g", value.c_str(),
                      row->recompute().c_str(), format_bytes(e.peak_bytes).c_str(),
                      row->largest_micro_batch, format_bytes(e.wire.inside).c_str(),
                      format_bytes(e.wire.between).c_str(), e.step_s * 1e3, e.mfu * 100,
                      e.exposed_s * 1e3);
    text += priced ? formatted(" %9.2f %9.2f", row->usd(job), usd_per_many(*row, job)) : "";
    text += row->fits(job) ? "\n" : "  does not fit\n";
  }
  return text;
}

std::string priced_text(const EstimateRow& given) {
  const Config& config = given.config;
  return config.run.usd_per_node_hour > 0
             ? formatted(
                   "\n`usd`: dollars of %s on whole nodes, without starts and validations; "
                   "`usd each`: of %s.",
                   counted(config.train.steps, "step").c_str(), config.price_unit().text.c_str())
             : "";
}

// A row for each class of memory, a column for each line of the other table.
std::string memory_table(const std::vector<Line>& lines) {
  std::string text;
  const auto add_row = [&](std::string_view label, const auto& cell) {
    text += formatted("%-11s", std::string(label).c_str());
    for (const Line& line : lines) {
      text += formatted(" %10s", cell(line).c_str());
    }
    text += "\n";
  };
  add_row("zero", [](const Line& line) { return line.label; });
  add_row("recompute", [](const Line& line) { return line.row->recompute(); });
  for (const MemoryClass memory_class : kColumns) {
    add_row(name_of(memory_class), [&](const Line& line) {
      return format_bytes(line.row->estimate.class_bytes[static_cast<size_t>(memory_class)]);
    });
  }
  return text;
}

nlohmann::json json_of(const EstimateRow& row, const Job& job) {
  const Estimate& e = row.estimate;
  nlohmann::json memory;
  for (const MemoryClass column : kColumns) {
    memory[std::string(name_of(column))] = e.class_bytes[static_cast<size_t>(column)];
  }
  nlohmann::json json = {{"zero", row.config.dist.zero},
                         {"tensor", row.config.dist.tensor},
                         {"micro_batch", row.config.batch_plan(job.ranks).micro_batch()},
                         {"recompute", row.recompute()},
                         {"given", row.is_given},
                         {"fits", row.fits(job)},
                         {"peak_bytes", e.peak_bytes},
                         {"reserved_bytes", e.reserved_bytes},
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
                         {"host_bytes", e.host_bytes},
                         {"copied_bytes", e.copied_bytes},
                         {"exposed_copy_ms", e.exposed_copy_s * 1e3},
                         {"mfu", e.mfu},
                         {"sync_wire_bytes", e.sync_wire.total()},
                         {"sync_ms", e.sync_s * 1e3}};
  json[row.config.unit() + std::string("_per_s")] =
      static_cast<double>(units_per_step(row.config)) / row.step_s();
  if (row.config.run.usd_per_node_hour > 0) {
    json["usd"] = row.usd(job);
    json[row.config.price_unit().key] = usd_per_many(row, job);
  }
  return json;
}

}  // namespace

double EstimateRow::usd(const Job& job) const {
  const int64_t nodes = job.ranks / job.node_size;
  return static_cast<double>(config.train.steps * nodes) * step_s() / 3600 *
         config.run.usd_per_node_hour;
}

std::string estimate_text(const std::vector<EstimateRow>& rows, const DatasetInfo& data,
                          const Job& job) {
  const EstimateRow& given = *std::ranges::find_if(rows, &EstimateRow::is_given);
  const int64_t micro_batch = given.config.batch_plan(job.ranks).micro_batch();
  const std::vector<Line> lines = lines_of(rows), sizes = lines_of_tensor_sizes(rows);
  const auto line = [](const auto&... words) { return wrapped(str(words...), 9) + "\n"; };
  return line("job      ", counted(job.ranks, "rank"), ", ", job.node_size,
              " on each node; global batch ", given.config.train.global_batch, ", micro-batch ",
              micro_batch) +
         line("data     ", data.path) +
         line(formatted("compute  %.4g TFLOP a step that the model needs, %.4g TFLOP that run",
                        given.estimate.model_flops / 1e12, given.estimate.flops / 1e12)) +
         line("saving   ", format_bytes(given.estimate.checkpoint_bytes),
              " of host memory a rank, for the copy that a checkpoint is written from") +
         (given.estimate.copied_bytes > 0 ? line("offload  ", offload_text(given.estimate)) : "") +
         (given.config.dist.islands > 1 ? line("islands  ", exchange_text(given)) : "") +
         line("assumed  ", rates(job.hardware)) + "\n" + step_table(lines, job, "zero") + "\n" +
         (sizes.empty() ? "" : step_table(sizes, job, "tp") + "\n") + memory_table(lines) + "\n" +
         wrapped(
             "For one rank: its peak of memory, and below it each class at its own peak; the "
             "largest micro-batch that fits; what the busiest rank sends in a step, inside its "
             "node and between nodes; times in ms. `exposed` is the part of a step that waits "
             "for other ranks.",
             0) +
         (sizes.empty() ? "" : " `tp` is dist.tensor.") + priced_text(given) + "\n\n" +
         wrapped(verdict(rows, job), 0);
}

std::string estimate_json(const std::vector<EstimateRow>& rows, const DatasetInfo& data,
                          const Job& job) {
  nlohmann::json all = {{"ranks", job.ranks},
                        {"node_size", job.node_size},
                        {"data", data.path},
                        {"unit", rows[0].config.unit()},
                        {"units_per_step", units_per_step(rows[0].config)},
                        {"train_count", data.train_count},
                        {"memory_bytes", job.hardware.memory_bytes},
                        {"assumed", rates(job.hardware)},
                        {"verdict", verdict(rows, job)},
                        {"rows", nlohmann::json::array()}};
  for (const EstimateRow& row : rows) {
    all["rows"].push_back(json_of(row, job));
  }
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ops_text(const std::string& title, const std::vector<OpCost>& ops,
                     const Speed& ceilings) {
  std::string text = title + formatted(
                                 "\nceilings, in short bursts: %.4g TFLOP/s, %.4g GB/s\n"
                                 "floor: operations or bytes, whichever take longer, all fused\n\n",
                                 ceilings.flops_per_s / 1e12, ceilings.bytes_per_s / 1e9);
  text += formatted("%-42s %6s %9s %9s %9s %10s\n", "op", "calls", "TFLOP", "GB", "GB, ours",
                    "floor ms");
  double total_ms = 0;
  for (const OpCost& op : ops) {
    const double ms = floor_seconds(op, ceilings) * 1e3;
    total_ms += ms;
    const auto gb = [&](double bytes) { return op.calls * (bytes + op.small_bytes) / 1e9; };
    text += formatted("%-42s %6.0f %9.3f %9.3f %9.3f %10.4g\n", op.name.c_str(), op.calls,
                      op.calls * op.flops / 1e12, op.floor_bytes > 0 ? gb(op.floor_bytes) : 0.0,
                      gb(op.schedule_bytes), ms);
  }
  return text + formatted("%-42s %6s %9s %9s %9s %10.4g", "all", "", "", "", "", total_ms);
}

}  // namespace tandem
