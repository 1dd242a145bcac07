#include "src/inference/trained_model.h"

#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/machine/choices.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/make_model.h"
#include "src/weights/run_directory.h"
#include "src/weights/snapshot.h"

namespace tandem {

TrainedModel load_trained_model(const StoredModel& stored, const DatasetInfo& data, DType dtype,
                                Machine& machine, Control& control) {
  const std::string& checkpoint = stored.checkpoint;
  agree(control, [&] {
    if (!is_hugging_face(checkpoint)) {  // which no run has made
      use_kept_choices(machine, RunDirectory::of(checkpoint).choices());
    }
  });
  TrainedModel trained{.config = config_of(stored), .checkpoint = checkpoint};
  trained.step = is_hugging_face(checkpoint) ? 0 : read_manifest(checkpoint).step;
  agree(control,
        [&] { trained.model = make_model(trained.config.model, data, machine.mesh()->cut()); });
  const std::unique_ptr<TensorSource> weights = open_weights(control, stored, *trained.model);
  for (Parameter* parameter : parameters_of(*trained.model)) {
    parameter->frozen = true;  // no gradient; only values, in the type that layers compute with
  }
  trained.layout =
      std::make_unique<ModelLayout>(parameters_by_block(*trained.model), machine.mesh()->model(),
                                    machine.device(), StoreOptions{});
  trained.values = std::make_unique<ParamValues>(*trained.layout, machine.stream, machine.memory,
                                                 StoreOptions{.dtype = dtype});
  trained.statistics =
      std::make_unique<BatchStatistics>(*trained.model, machine.stream, machine.memory);
  load(machine.stream, *weights, weights_here(*trained.values, *trained.model));
  trained.values->publish();
  trained.values->gather();
  return trained;
}

void require_text_model(const Config& config, const std::string& checkpoint) {
  if (!config.model->reads_text()) {
    fail(ExitCode::kConfig, checkpoint, ": model.kind = ", config.model.kind.name(),
         " writes no text; use a gpt or llama");
  }
}

std::unique_ptr<Decoder> decoder_of(const TrainedModel& trained, Machine& machine, int64_t slots,
                                    int64_t window) {
  std::unique_ptr<Decoder> decoder =
      trained.model->decoder(trained.context(machine), slots, window);
  if (!decoder) {
    fail(ExitCode::kConfig, trained.checkpoint, ": a ", trained.config.model.kind.name(),
         " has no decoder");
  }
  return decoder;
}

}  // namespace tandem
