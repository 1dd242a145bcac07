#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "tests/support/file_calls.h"

namespace tandem::testing {

using Kind = FileCall::Kind;

std::string pack(const std::vector<FileCall>& calls) {
  nlohmann::json list = nlohmann::json::array();
  for (const FileCall& call : calls) {
    const std::vector<uint8_t> bytes(call.bytes.begin(), call.bytes.end());
    list.push_back({static_cast<int>(call.kind), call.time_ns, call.file, call.name.folder,
                    call.name.name, call.target.folder, call.target.name, call.at,
                    nlohmann::json::binary(bytes), call.path});
  }
  std::string packed;
  nlohmann::json::to_cbor(list, packed);
  return packed;
}

std::vector<FileCall> unpack(const std::string& bytes) {
  std::vector<FileCall> calls;
  for (const nlohmann::json& one : nlohmann::json::from_cbor(bytes)) {
    const auto& written = one[8].get_binary();
    calls.push_back({.kind = static_cast<Kind>(one[0].get<int>()),
                     .time_ns = one[1],
                     .file = one[2],
                     .name = {one[3], one[4]},
                     .target = {one[5], one[6]},
                     .at = one[7],
                     .bytes = std::string(written.begin(), written.end()),
                     .path = one[9]});
  }
  return calls;
}

void FileTree::apply(const FileCall& call) {
  const auto entries = [this](const FileCall::Name& name) -> std::map<std::string, uint64_t>& {
    Node& folder = nodes_[name.folder];
    folder.is_folder = true;
    return folder.entries;
  };
  Node& node = nodes_[call.file];
  switch (call.kind) {
    case Kind::kSync:
      break;
    case Kind::kMakeFolder:
      node.is_folder = true;
      [[fallthrough]];
    case Kind::kCreate:
      entries(call.name)[call.name.name] = call.file;
      break;
    case Kind::kWrite:
      node.bytes.resize(
          std::max(node.bytes.size(), static_cast<size_t>(call.at) + call.bytes.size()));
      node.bytes.replace(static_cast<size_t>(call.at), call.bytes.size(), call.bytes);
      break;
    case Kind::kResize:
      node.bytes.resize(static_cast<size_t>(call.at));
      break;
    case Kind::kExchange: {
      const uint64_t former = entries(call.target)[call.target.name];
      entries(call.target)[call.target.name] = call.file;
      entries(call.name)[call.name.name] = former;
      break;
    }
    case Kind::kRename:
      entries(call.name).erase(call.name.name);
      [[fallthrough]];
    case Kind::kLink:
      entries(call.target)[call.target.name] = call.file;
      break;
    case Kind::kRemove:
      entries(call.name).erase(call.name.name);
      break;
  }
}

void FileTree::collect(const Node& folder, const std::string& path,
                       std::map<std::string, const Node*>& found) const {
  for (const auto& [name, number] : folder.entries) {
    if (const auto node = nodes_.find(number); node != nodes_.end()) {
      found[path + name] = &node->second;
      collect(node->second, path + name + "/", found);
    }
  }
}

std::string FileTree::text() const {
  std::map<std::string, const Node*> found;
  collect(nodes_.at(root_), "", found);
  std::string text;
  for (const auto& [path, node] : found) {
    text += str(path, node->is_folder ? "/" : "", "\n", node->bytes.size(), "\n", node->bytes);
  }
  return text;
}

void FileTree::write_to(const std::string& folder) const {
  std::map<std::string, const Node*> found;
  collect(nodes_.at(root_), "", found);
  for (const auto& [path, node] : found) {
    if (node->is_folder) {
      std::filesystem::create_directories(folder + "/" + path);
    } else {
      std::ofstream(folder + "/" + path, std::ios::binary) << node->bytes;
    }
  }
}

std::vector<size_t> unsynced(const std::vector<FileCall>& calls, size_t count) {
  std::vector<size_t> found;
  std::set<uint64_t> synced;  // by the calls after
  for (size_t i = count; i-- > 0;) {
    const FileCall& call = calls[i];
    if (call.kind == Kind::kSync) {
      synced.insert(call.file);
      continue;
    }
    const bool is_data = call.kind == Kind::kWrite || call.kind == Kind::kResize;
    const bool is_on_disk =
        is_data ? synced.contains(call.file)
                : (call.name.folder == 0 || call.kind == Kind::kLink ||
                   synced.contains(call.name.folder)) &&
                      (call.target.folder == 0 || synced.contains(call.target.folder));
    if (!is_on_disk) {
      found.push_back(i);
    }
  }
  std::ranges::reverse(found);
  return found;
}

}  // namespace tandem::testing
