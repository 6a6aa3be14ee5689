#include "train/run_directory.h"

#include <filesystem>

#include "base/file.h"
#include "lockstep/error.h"

namespace lockstep::train {

namespace fs = std::filesystem;

std::string RunDirectory::checkpoint(std::int64_t step, std::int64_t epoch) const {
  std::string name = name_template_;
  const auto fill = [&](const std::string& field, const std::string& value) {
    for (std::size_t at = name.find(field); at != std::string::npos; at = name.find(field))
      name.replace(at, field.size(), value);
  };
  fill("{step}", fmt::format("{:08d}", step));
  fill("{epoch}", std::to_string(epoch));
  return checkpoints() + "/" + name + ".h5";
}

void RunDirectory::create() const {
  std::error_code error;
  fs::create_directories(checkpoints(), error);
  require(!error, ErrorCode::run_directory, "the run directory {} cannot be made: {}", path_, error.message());
}

std::string RunDirectory::set_aside() const {
  if (!fs::exists(path_)) return "";
  for (int i = 1;; ++i) {
    const std::string target = path_ + "." + std::to_string(i);
    if (fs::exists(target)) continue;
    std::error_code error;
    fs::rename(path_, target, error);
    require(!error, ErrorCode::run_directory, "{} cannot be moved to {}: {}", path_, target, error.message());
    return target;
  }
}

void RunDirectory::write_status(const std::string& status) const { write_file("status", status + "\n"); }

void RunDirectory::write_file(const std::string& name, const std::string& content) const {
  replace_file(file(name), content);
}

std::string RunDirectory::read_file(const std::string& name) const {
  return fs::exists(file(name)) ? lockstep::read_file(file(name)) : "";
}

}  // namespace lockstep::train
