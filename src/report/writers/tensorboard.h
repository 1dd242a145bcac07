// Event files that TensorBoard opens: scalars, texts, images and histograms over steps, and the
// settings of a run for its HParams tab.
//
// The file is a series of TFRecords: length (u64), masked CRC32C of the length, content, masked
// CRC32C of the content, all little-endian. The content is one Event message in protocol buffer
// encoding (tensorflow/core/util/event.proto, framework/summary.proto, and
// tensorboard/plugins/hparams/plugin_data.proto), written by hand. Failures throw Error(kData)
// naming the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/file.h"
#include "src/options/options.h"
#include "src/report/writers/histogram.h"
#include "src/report/writers/image_grid.h"
#include "src/report/writers/metrics_log.h"
#include "src/report/writers/protobuf.h"

namespace tandem {

using Histograms = std::map<std::string, Histogram>;  // by tag

class TensorBoardWriter {
 public:
  // Starts a new events.out.tfevents.* file in `directory`, which is created when missing; its name
  // sorts after those of earlier runs. `resumed_step`: this run goes on after that step, and
  // TensorBoard drops the later steps of earlier files. `folder`: as in file.h.
  explicit TensorBoardWriter(const std::string& directory,
                             std::optional<int64_t> resumed_step = std::nullopt,
                             int folder = AT_FDCWD);

  const std::string& path() const { return file_->path(); }

  // Each of these writes one event of the current time; readers see it at once.
  //
  // The numbers as scalars KIND/KEY, those of nested objects as KIND/OUTER/INNER, stored as f32; no
  // NaN of `mfu`, which says that the peak is not known. TensorBoard groups by KIND.
  void add_metrics(int64_t step, const std::string& kind, const std::vector<Metric>& metrics);
  void add_text(int64_t step, std::string_view tag, std::string_view markdown);
  void add_picture(int64_t step, std::string_view tag, const Picture& picture);
  void add_histograms(int64_t step, const Histograms& histograms);  // in one event
  // For the HParams tab, which shows the latest scalars beside them: the start of a session, and
  // its end. TensorBoard gets a number or a truth value where the text of a setting is one.
  void add_hparams(std::span<const Assignment> hparams);
  void end_hparams();

 private:
  void write_summary(int64_t step, const ProtoMessage& summary);
  void write_record(const std::string& event);
  std::unique_ptr<FileWriter> file_;
};

// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected) of the bytes.
uint32_t crc32c(std::string_view bytes);

}  // namespace tandem
