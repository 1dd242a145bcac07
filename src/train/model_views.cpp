#include "src/train/model_views.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "layers/models/classifier.h"
#include "src/device/ranks/agreement.h"
#include "src/inference/token_sampler.h"

namespace tandem {

namespace {

constexpr int64_t kTokens = 100, kImages = 16;

// Where a text begins: after the tokens before a document or between documents, or a line end, or
// else the first token.
std::vector<int32_t> beginning(Tokenizer& tokenizer) {
  if (const auto before = tokenizer.before_text(); !before.empty()) {
    return {before.begin(), before.end()};
  }
  if (const auto separator = tokenizer.end_of_text()) {
    return {*separator};
  }
  std::vector<int32_t> line_end;
  try {
    line_end = tokenizer.encode("\n");
  } catch (const Error&) {  // a vocabulary of characters without it
  }
  return line_end.empty() ? std::vector<int32_t>{0} : line_end;
}

}  // namespace

ModelViews::ModelViews(const Config& config, const Dataset& dataset, Model& model,
                       TrainingStep& training, Machine& machine, Uploader& upload)
    : config_(config),
      dataset_(dataset),
      model_(model),
      training_(training),
      machine_(machine),
      upload_(upload) {
  agree(machine.mesh()->job(), [&] {
    if (config.log.sample_every > 0 && config.model->reads_text()) {
      tokenizer_ = load_tokenizer(H5Reader(dataset.info().path));
    }
  });
}

void ModelViews::show(int64_t step, double gradient_scale, RunLog* log) {
  // Where blocks gather their weights or exchange rows, all ranks compute the same samples.
  const Mesh& mesh = *machine_.mesh();
  const bool is_collective = training_.store().gradients.is_collective() || mesh.tensor();
  const bool samples = samples_are_due(step) && (is_collective || mesh.job().rank() == 0);
  if (samples && config_.model->reads_text()) {
    const std::string sample = text();
    if (log) {
      log->show_text(step, sample);
    }
  } else if (samples) {
    const PredictedImages predicted = images();
    if (log) {
      log->show_images(step, predicted);
    }
  }
  if (config_.log.histograms) {
    const Histograms all = histograms(gradient_scale);
    if (log) {
      log->show_histograms(step, all);
    }
  }
}

// The validation at the end is shown in any case.
bool ModelViews::samples_are_due(int64_t step) const {
  const int64_t every = config_.log.sample_every, validations = config_.train.eval_every;
  return every > 0 &&
         (step == config_.train.steps || validations == 0 || step / validations % every == 0);
}

std::string ModelViews::text() {
  const std::unique_ptr<Decoder> decoder =
      model_.decoder(training_.forward_context(machine_.scratch), 1, 0);
  if (!decoder) {
    fail(ExitCode::kConfig,
         str("log.sample_every: a ", config_.model.kind.name(), " has no decoder; set it to 0"));
  }
  TokenSampler sampler({.seed = config_.run.seed});
  std::vector<int32_t> tokens = beginning(*tokenizer_);
  const auto prompt = static_cast<std::ptrdiff_t>(tokens.size());
  bool is_finite = true;
  Tensor logits = decoder->prefill(0, tokens);
  for (int64_t i = 0; i < kTokens; ++i) {
    // Not the model's padding after the tokenizer's vocabulary.
    const Tensor seen = on_host(logits).slice(0, tokenizer_->vocab_size());
    is_finite = is_finite && std::ranges::all_of(seen.as<float>(),
                                                 [](float logit) { return std::isfinite(logit); });
    tokens.push_back(is_finite ? sampler.pick(seen.as<float>()) : 0);
    if (i + 1 < kTokens) {
      logits = decoder->step(std::array{DecoderRow{0, tokens.back()}});
    }
  }
  return is_finite ? tokenizer_->decode(std::span(tokens).subspan(static_cast<size_t>(prompt)))
                   : "(the logits are not finite)";
}

PredictedImages ModelViews::images() {
  const DatasetInfo& info = dataset_.info();
  const MicroBatch batch =
      dataset_.validation_batch(config_.model->context(), 0, config_.eval_batch());
  auto* classifier = dynamic_cast<Classifier*>(&model_);
  if (!classifier) {
    fail(ExitCode::kConfig,
         str("log.sample_every: a ", config_.model.kind.name(), " is no classifier; set it to 0"));
  }
  Context inference = training_.forward_context(machine_.scratch);
  upload_.send({&batch, 1});
  const Tensor logits = on_host(classifier->logits(inference, upload_.fetch(0).input).value());
  const std::span<const float> scores = logits.as<float>();
  const size_t width = scores.size() / static_cast<size_t>(batch.samples);
  const auto area = static_cast<size_t>(info.height * info.width);
  const auto channels = static_cast<size_t>(info.channels);
  const auto shown = static_cast<size_t>(std::min(batch.samples, kImages));
  PredictedImages result{.height = info.height, .width = info.width, .channels = info.channels};
  for (size_t i = 0; i < shown; ++i) {
    const auto row = scores.subspan(i * width, info.classes.size());
    result.predicted.push_back(
        info.classes[static_cast<size_t>(std::ranges::max_element(row) - row.begin())]);
    result.truth.push_back(info.classes[static_cast<size_t>(batch.targets[i])]);
    for (size_t p = 0; p < area; ++p) {
      for (size_t channel = 0; channel < channels; ++channel) {
        result.pixels.push_back(batch.pixels[(i * channels + channel) * area + p]);
      }
    }
  }
  return result;
}

// Each rank counts what it owns of the optimizer's view, so every element counts once. An optimizer
// that needs whole matrices has overwritten their gradients.
Histograms ModelViews::histograms(double gradient_scale) {
  const OptimizerShards& shards = training_.store().shards;
  const bool has_matrices = config_.optim.kind.chosen().needs_matrices();
  const auto has_gradient = [&](const Parameter& parameter) {
    return training_.store().gradients.is_summed() && !(has_matrices && parameter.matrix);
  };
  Histograms by_tag;
  for (const Parameter* parameter : parameters_of(model_)) {
    if (parameter->wanted()) {
      by_tag["weights/" + parameter->name];
      if (has_gradient(*parameter)) {
        by_tag["gradients/" + parameter->name];
      }
    }
  }
  const auto add = [&](const std::string& tag, const Tensor& data, const Extent& part,
                       double scale) {
    by_tag.at(tag).add(on_host(data.slice(part.in_flat, part.count)).as<float>(),
                       static_cast<float>(scale));
  };
  for (size_t s = 0; s < shards.all().size(); ++s) {
    for (const Extent& part : shards.saved_extents(s)) {
      const std::string& name = shards.parameter(part).name;
      add("weights/" + name, shards.all()[s].value, part, 1);
      if (has_gradient(shards.parameter(part))) {
        add("gradients/" + name, shards.all()[s].grad, part, 1 / gradient_scale);
      }
    }
  }
  for (auto& [tag, histogram] : by_tag) {
    histogram.sums() = machine_.mesh()->job().sum(histogram.sums());
  }
  return by_tag;
}

}  // namespace tandem
