// What a setting chooses by name, such as model.kind: rows, each with settings of its own.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/options/options.h"

namespace tandem {

// Kind: a base class with `void bind(Options&)`, which binds the settings that this kind reads. A
// copy of Kinds has copies of all rows, so their settings are its own.
template <class Kind>
class Kinds {
 public:
  // T is derived from Kind. The first row is chosen until the bound setting names another one.
  template <class T>
  void add(const std::string& name, T kind) {
    rows_.push_back({name, std::make_shared<T>(std::move(kind)), [](const Kind& from) {
                       return std::make_shared<T>(static_cast<const T&>(from));
                     }});
    chosen_ = rows_.front().name;
  }

  Kinds() = default;
  Kinds(const Kinds& other) : rows_(other.rows_), chosen_(other.chosen_) {
    for (Row& row : rows_) {
      row.kind = row.copy(*row.kind);
    }
  }
  Kinds& operator=(const Kinds& other) {
    Kinds copy(other);
    std::swap(rows_, copy.rows_);
    std::swap(chosen_, copy.chosen_);
    return *this;
  }

  const std::string& name() const { return chosen_; }  // of the chosen row
  const Kind& chosen() const { return *std::ranges::find(rows_, chosen_, &Row::name)->kind; }

  // Binds `key`, which chooses a row, and the settings of all rows. Throws Error(kInternal) if two
  // rows have one name. add() would throw before main() could catch it.
  void bind(Options& options, const std::string& key, const std::string& help) {
    Choices<std::string> names;
    for (const Row& row : rows_) {
      if (std::ranges::count(rows_, row.name, &Row::name) > 1) {
        fail(ExitCode::kInternal, key, " = ", row.name, " is registered twice");
      }
      names.emplace_back(row.name, row.name);
    }
    options.add_choice(key, chosen_, names, help);
    for (const Row& row : rows_) {
      options.only_if(
          key, [this, name = row.name] { return chosen_ == name; },
          [&] { row.kind->bind(options); });
    }
  }

 private:
  struct Row {
    std::string name;
    std::shared_ptr<Kind> kind;  // of this object alone
    std::function<std::shared_ptr<Kind>(const Kind&)> copy;
  };
  std::vector<Row> rows_;
  std::string chosen_;
};

}  // namespace tandem
