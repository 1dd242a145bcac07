#include "src/io/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/io/content_hash.h"
#include "src/io/file.h"
#include "src/io/json_depth.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tandem checkpoint";
constexpr int kDeepest = 16;  // nesting that is read; dump() is recursive

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// A hash of the content: it does not depend on the layout of the text.
std::string hash_of_json(const Json& json) { return hash_of(dump(json, -1)).hex(); }

Json json_of(const FileEntry& file) {
  const Json pieces = mapped(file.pieces, [](Range piece) {
    return std::array{piece.begin, piece.end};
  });
  return {
      {"name", file.name}, {"length", file.length}, {"pieces", pieces}, {"xxh3_128", file.hash}};
}

// The library by itself converts any number, and cuts it to fit.
template <class T>
T whole_number(const Json& json) {
  const bool fits = json.is_number_unsigned()
                        ? std::in_range<T>(json.get<uint64_t>())
                        : json.is_number_integer() && std::in_range<T>(json.get<int64_t>());
  if (!fits) {
    throw std::out_of_range("a number is too large, or not whole");
  }
  return json.get<T>();
}

FileEntry entry_of(const Json& json) {
  FileEntry file{.name = json.at("name"), .length = whole_number<int64_t>(json.at("length"))};
  if (file.name.find('/') != std::string::npos || visible(file.name) != file.name) {
    throw std::out_of_range("a file's name is not plain");
  }
  int64_t end = 0;
  for (const Json& numbers : json.at("pieces")) {
    const Range piece{whole_number<int64_t>(numbers.at(0)), whole_number<int64_t>(numbers.at(1))};
    if (piece.begin < end || piece.end < piece.begin || piece.end > file.length) {
      throw std::out_of_range("pieces are not in order inside their file");
    }
    end = piece.end;
    file.pieces.push_back(piece);
  }
  json.at("xxh3_128").get_to(file.hash);
  return file;
}

Manifest manifest_of(const Json& json) {
  Manifest manifest;
  json.at("config").get_to(manifest.config);
  manifest.step = whole_number<int64_t>(json.at("step"));
  manifest.sampler_epoch = whole_number<int64_t>(json.at("sampler").at("epoch"));
  manifest.sampler_position = whole_number<int64_t>(json.at("sampler").at("position"));
  json.at("data_hash").get_to(manifest.data_hash);
  manifest.vocabulary_hash = json.value("vocabulary_hash", "");
  manifest.seed = whole_number<uint64_t>(json.at("seed"));
  json.at("schedule").get_to(manifest.schedule);
  manifest.world_size = whole_number<int>(json.at("world_size"));
  if (std::min({manifest.step, manifest.sampler_epoch, manifest.sampler_position,
                int64_t{manifest.world_size}}) < 0) {
    throw std::out_of_range("a number is negative");
  }
  if (json.contains("validation_loss")) {
    const Json& loss = json.at("validation_loss");
    manifest.validation_loss = loss.is_null() ? std::nan("") : loss.get<double>();
  }
  manifest.files = mapped(json.at("files"), entry_of);
  for (const Json& base : json.value("bases", Json::array())) {
    manifest.bases.push_back(
        {base.at("path"), base.at("xxh3_128"), base.at("tensors").get<std::vector<std::string>>()});
  }
  return manifest;
}

}  // namespace

std::string FileEntry::text() const { return json_of(*this).dump(); }

FileEntry FileEntry::from_text(std::string_view text) { return entry_of(Json::parse(text)); }

FileEntry describe_file(const std::string& path, std::vector<Range> pieces) {
  const FileReader file(path);
  const std::string hash = hash_outside(file, pieces, file.bytes()).hex();
  return {.name = std::filesystem::path(path).filename().string(),
          .length = file.bytes(),
          .pieces = std::move(pieces),
          .hash = hash};
}

std::string to_json(const Manifest& manifest) {
  Json json;
  json["format"] = kFormat;
  json["format_version"] = manifest.format_version;
  json["step"] = manifest.step;
  json["sampler"] = {{"epoch", manifest.sampler_epoch}, {"position", manifest.sampler_position}};
  json["data_hash"] = manifest.data_hash;
  if (!manifest.vocabulary_hash.empty()) {
    json["vocabulary_hash"] = manifest.vocabulary_hash;
  }
  json["seed"] = manifest.seed;
  json["schedule"] = Json::object();
  for (const auto& [name, value] : manifest.schedule) {
    if (std::isfinite(value)) {
      json["schedule"][name] = value;
    }
  }
  json["world_size"] = manifest.world_size;
  if (manifest.validation_loss) {
    json["validation_loss"] = *manifest.validation_loss;  // null if it is not finite
  }
  json["files"] = mapped(manifest.files, json_of);
  for (const Manifest::Base& base : manifest.bases) {
    json["bases"].push_back(
        {{"path", base.path}, {"xxh3_128", base.hash}, {"tensors", base.tensors}});
  }
  json["config"] = manifest.config;
  // Parsed again first, so that the hash is of what a reader will see.
  json = Json::parse(dump(json, -1));
  json["xxh3_128"] = hash_of_json(json);
  return dump(json, 2) + "\n";
}

Manifest manifest_from_json(const std::string& text, const std::string& path) {
  try {
    if (json_depth(text) > kDeepest) {
      throw std::out_of_range("nested too deeply");
    }
    Json json = Json::parse(text);
    if (json.at("format") != kFormat) {
      fail_data(path, ": not the manifest of a checkpoint");
    }
    const int version = whole_number<int>(json.at("format_version"));
    if (version < Manifest::kOldestFormat || version > Manifest::kFormatVersion) {
      fail_data(path, ": format version ", version, "; this program reads versions ",
                Manifest::kOldestFormat, " and ", Manifest::kFormatVersion,
                ": use the release that wrote it");
    }
    const std::string hash = json.at("xxh3_128").get<std::string>();
    json.erase("xxh3_128");
    if (hash_of_json(json) != hash) {
      fail_data(path,
                ": damaged: its content does not have the hash it states; use another checkpoint");
    }
    Manifest manifest = manifest_of(json);
    manifest.format_version = version;
    return manifest;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_data(path, ": damaged, use another checkpoint (", error.what(), ")");
  }
}

}  // namespace tandem
