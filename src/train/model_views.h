// What TensorBoard shows of a model beside figures: text that it writes, images with its
// predictions, and histograms of its weights and gradients.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/data/dataset.h"
#include "src/kernels/convert.h"
#include "src/machine/machine.h"
#include "src/report/run_log.h"
#include "src/step/training_step.h"
#include "src/step/upload.h"

namespace tandem {

class ModelViews {
 public:
  // Collective. All references must outlive this. AgreedError kData if the tokenizer cannot be
  // read.
  ModelViews(const Config& config, const Dataset& dataset, Model& model, TrainingStep& training,
             Machine& machine, Uploader& upload);

  // Collective, after a validation, when no step is running: what log.sample_every and
  // log.histograms ask for. Changes no bit of the training. `gradient_scale`: the loss scale of the
  // last step. `log`: of rank 0, null elsewhere.
  void show(int64_t step, double gradient_scale, RunLog* log);

 private:
  bool samples_are_due(int64_t step) const;
  std::string text();
  PredictedImages images();
  Histograms histograms(double gradient_scale);
  Tensor on_host(const Tensor& data) { return copied_as_f32(machine_.stream, data, host_); }

  const Config& config_;
  const Dataset& dataset_;
  Model& model_;
  TrainingStep& training_;
  Machine& machine_;
  Uploader& upload_;
  std::unique_ptr<Tokenizer> tokenizer_;  // null: no text is asked for
  Memory host_{Device::kCpu};
};

}  // namespace tandem
