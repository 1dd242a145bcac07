// Walks over the files of a folder, or of a tar archive of one, in the same terms.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace tandem {

struct SourceFile {
  std::string name;                      // relative to the root, with '/', without a leading "./"
  std::string place;                     // for messages: the path of the file, or "ARCHIVE: name"
  bool is_link = false;                  // of an archive: without content
  std::function<std::string()> content;  // reads it; valid during the call only
};

// Calls `use` for every regular file: of a folder in the order of names, following symbolic links;
// of an archive in its order. Hidden files and folders (".name", "__MACOSX") are passed over.
// Throws kData when `path` is neither folder nor archive, or the archive is damaged.
void for_each_file(const std::string& path, const std::function<void(const SourceFile&)>& use);

}  // namespace tandem
