#include "src/io/manifest.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/core/error.h"
#include "src/io/file.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tandem checkpoint";

std::string hex(const XXH128_hash_t& hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes.digest) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Of the content, so that it does not depend on how the text is laid out.
std::string hash_of(const Json& json) {
  const std::string text = dump(json, -1);
  return hex(XXH3_128bits(text.data(), text.size()));
}

Manifest manifest_of(const Json& json) {
  Manifest manifest;
  json.at("config").get_to(manifest.config);
  json.at("step").get_to(manifest.step);
  json.at("sampler").at("epoch").get_to(manifest.sampler_epoch);
  json.at("sampler").at("position").get_to(manifest.sampler_position);
  json.at("data_hash").get_to(manifest.data_hash);
  json.at("seed").get_to(manifest.seed);
  json.at("schedule").get_to(manifest.schedule);
  json.at("world_size").get_to(manifest.world_size);
  if (json.contains("validation_loss")) {
    manifest.validation_loss = json.at("validation_loss").get<double>();
  }
  for (const Json& file : json.at("files")) {
    manifest.files.push_back({.name = file.at("name").get<std::string>(),
                              .length = file.at("length").get<int64_t>(),
                              .hash = file.at("xxh3_128").get<std::string>()});
  }
  return manifest;
}

}  // namespace

std::string FileEntry::text() const { return str(name, ' ', length, ' ', hash); }

FileEntry FileEntry::from_text(std::string_view text) {
  std::istringstream in{std::string(text)};
  FileEntry entry;
  std::string rest;
  const bool whole = static_cast<bool>(in >> entry.name >> entry.length >> entry.hash);
  require(whole && !(in >> rest) && entry.length >= 0 && entry.hash.size() == 32,
          [&] { return str("FileEntry: not one: '", text, "'"); });
  return entry;
}

FileEntry describe_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    fail_file(path, "open", errno);
  }
  FileEntry entry{.name = std::filesystem::path(path).filename().string(), .length = 0, .hash = {}};
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<char> buffer(size_t{1} << 20U);
  ssize_t got = 0;
  do {
    got = ::read(descriptor, buffer.data(), buffer.size());
    if (got > 0) {
      XXH3_128bits_update(state.get(), buffer.data(), static_cast<size_t>(got));
      entry.length += got;
    }
  } while (got > 0 || (got < 0 && errno == EINTR));
  const int error_number = errno;
  ::close(descriptor);
  if (got < 0) {
    fail_file(path, "read", error_number);
  }
  entry.hash = hex(XXH3_128bits_digest(state.get()));
  return entry;
}

std::string to_json(const Manifest& manifest) {
  Json json;
  json["format"] = kFormat;
  json["format_version"] = Manifest::kFormatVersion;
  json["step"] = manifest.step;
  json["sampler"] = {{"epoch", manifest.sampler_epoch}, {"position", manifest.sampler_position}};
  json["data_hash"] = manifest.data_hash;
  json["seed"] = manifest.seed;
  json["schedule"] = Json::object();
  for (const auto& [name, value] : manifest.schedule) {
    if (std::isfinite(value)) {
      json["schedule"][name] = value;
    }
  }
  json["world_size"] = manifest.world_size;
  if (manifest.validation_loss && std::isfinite(*manifest.validation_loss)) {
    json["validation_loss"] = *manifest.validation_loss;
  }
  json["files"] = Json::array();
  for (const FileEntry& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"length", file.length}, {"xxh3_128", file.hash}});
  }
  json["config"] = manifest.config;
  // Parsed back first: what is hashed is what a reader will see.
  json = Json::parse(dump(json, -1));
  json["xxh3_128"] = hash_of(json);
  return dump(json, 2) + "\n";
}

Manifest manifest_from_json(const std::string& text, const std::string& path) {
  try {
    Json json = Json::parse(text);
    if (json.at("format") != kFormat) {
      fail(ExitCode::kData, str(path, ": not the manifest of a checkpoint"));
    }
    const int version = json.at("format_version").get<int>();
    if (version != Manifest::kFormatVersion) {
      fail(ExitCode::kData, str(path, ": format version ", version, "; this program reads version ",
                                Manifest::kFormatVersion, ": use the release that wrote it"));
    }
    const std::string hash = json.at("xxh3_128").get<std::string>();
    json.erase("xxh3_128");
    if (hash_of(json) != hash) {
      fail(ExitCode::kData, str(path,
                                ": damaged: its content does not have the hash it states; "
                                "use another checkpoint"));
    }
    return manifest_of(json);
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::kData, str(path, ": damaged, use another checkpoint (", error.what(), ")"));
  }
}

}  // namespace tandem
