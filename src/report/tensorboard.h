// Event files that TensorBoard opens: scalars over steps.
//
// The file is a series of TFRecords: length (u64), masked CRC32C of the length, content, masked
// CRC32C of the content, all little-endian. The content is one Event message in protocol buffer
// encoding (tensorflow/core/util/event.proto and framework/summary.proto), written by hand here:
// only five fields are ever used. Failures throw Error(kData) naming the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/io/file.h"

namespace tandem {

struct Scalar {
  std::string_view tag;  // "train/loss": TensorBoard groups by the text before the '/'
  double value = 0;      // stored as f32
};

class TensorBoardWriter {
 public:
  // Starts a new events.out.tfevents.* file in `directory`, which is created when missing; its name
  // sorts after those of earlier runs. `resumed_step`: this run goes on after that step, and
  // TensorBoard drops the later steps of earlier files.
  explicit TensorBoardWriter(const std::string& directory,
                             std::optional<int64_t> resumed_step = std::nullopt);

  const std::string& path() const { return file_->path(); }

  // One event of the current time; readers see it at once.
  void add(int64_t step, std::span<const Scalar> scalars);
  void add(int64_t step, std::initializer_list<Scalar> scalars) {
    add(step, std::span(scalars.begin(), scalars.size()));
  }

 private:
  void write_record(const std::string& event);
  std::unique_ptr<FileWriter> file_;
};

// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected) of the bytes.
uint32_t crc32c(std::string_view bytes);

}  // namespace tandem
