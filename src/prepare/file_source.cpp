#include "src/prepare/file_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/core/visible_text.h"
#include "src/io/byte_stream.h"
#include "src/prepare/tar_reader.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& name) {
  return std::any_of(name.begin(), name.end(), [](const fs::path& part) {
    const std::string text = part.string();
    return text == "__MACOSX" || (text.starts_with('.') && text != "." && text != "..");
  });
}

// True for a link to a folder that contains the link: following it would never end.
bool leads_back(const fs::directory_entry& entry) {
  std::error_code error;
  if (!entry.is_symlink(error) || !entry.is_directory(error)) {
    return false;
  }
  const fs::path target = fs::canonical(entry.path(), error);
  const fs::path place = fs::canonical(entry.path().parent_path(), error);
  return !error && std::mismatch(target.begin(), target.end(), place.begin(), place.end()).first ==
                       target.end();
}

// Such a name could forge messages and class names.
void require_visible(const fs::path& name, const std::string& path) {
  if (visible(name.string()) != name.string()) {
    fail_data(path, ": the name \"", visible(name.string()),
              "\" has a control character; rename the file");
  }
}

// Why an entry of a folder that is no folder has no content; empty for a regular file.
std::string problem_of(const fs::directory_entry& entry) {
  std::error_code error;
  if (entry.is_regular_file(error)) {
    return "";
  }
  return error ? "cannot be read: " + error.message() : "not a regular file";
}

void walk_folder(const fs::path& root, RecordLimit limit,
                 const std::function<void(const SourceFile&)>& use) {
  std::vector<std::pair<std::string, std::string>> files;  // name, problem
  std::error_code error;
  fs::recursive_directory_iterator walk(root, fs::directory_options::follow_directory_symlink,
                                        error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    const fs::path name = walk->path().lexically_relative(root);
    if (leads_back(*walk)) {
      walk.disable_recursion_pending();
    }
    if (!is_hidden(name) && !walk->is_directory(error)) {
      require_visible(name, root.string());
      files.emplace_back(name.generic_string(), problem_of(*walk));
    }
  }
  if (error) {
    fail_data(root.string(), ": cannot list the folder: ", error.message());
  }
  std::sort(files.begin(), files.end());
  for (const auto& [name, problem] : files) {
    const std::string place = (root / name).string();
    use({name, place, problem, [&] {
           if (!problem.empty()) {
             fail_data(place, ": ", problem);
           }
           // Not unpacked: callers do that, as they do for the files of an archive.
           return read_whole_file(place, ByteStream::Unpack::kOff, limit);
         }});
  }
}

void walk_archive(const std::string& path, RecordLimit limit,
                  const std::function<void(const SourceFile&)>& use) {
  TarReader archive(path);
  for (TarEntry entry; archive.next(&entry);) {
    const fs::path name = fs::path(entry.name).lexically_normal();
    if ((entry.is_file || entry.is_link) && !is_hidden(name)) {
      require_visible(name, path);
      use({name.generic_string(), path + ": " + name.generic_string(),
           entry.is_link ? "a link inside an archive" : "",
           [&] { return archive.content(limit); }});
    }
  }
}

}  // namespace

void for_each_file(const std::string& path, RecordLimit limit,
                   const std::function<void(const SourceFile&)>& use) {
  if (fs::is_directory(path)) {
    walk_folder(path, limit, use);
  } else if (TarReader::is_tar(path)) {
    walk_archive(path, limit, use);
  } else {
    fail_data(path,
              ": neither a folder nor a .tar or .tar.gz archive; of single files, such as MNIST's, "
              "name the folder that holds them");
  }
}

}  // namespace tandem
