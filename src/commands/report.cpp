#include "commands/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/standard_streams.h"

namespace lockstep::commands {

namespace fs = std::filesystem;

/// A pipe, a device and a file in a folder without permission to write cannot be replaced, but written to. A link means
/// its target.
void write_result(const std::string& path, const std::string& content) {
  std::error_code error;
  fs::path target = fs::weakly_canonical(path, error);
  if (error) target = path;
  const fs::file_status status = fs::status(target, error);
  const bool is_replaced = fs::is_regular_file(status) && ::access(target.parent_path().c_str(), W_OK) == 0;
  try {
    if (fs::exists(status) && !is_replaced)
      write_fully(open_file(path, O_WRONLY | O_TRUNC).get(), content, path);
    else
      replace_file(target, content);
  } catch (const Error& failure) {
    fail(failure.code(), "cannot write {}: {}", path, failure.what());
  }
}

void add_json(CLI::App& app, std::string& json) {
  app.add_flag("--json{-}", json,
               "Print one JSON object on standard output, or with --json=FILE write it to that file");
}

void report(const std::string& json, const nlohmann::ordered_json& object, const std::string& text) {
  // Names of files need not be UTF-8, which JSON must be.
  const auto dump = [&](int indent) {
    return object.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  };
  if (json == "-") {
    write_to_standard_error(text);
    fmt::print("{}", dump(-1));
    return;
  }
  fmt::print("{}", text);
  if (!json.empty()) write_result(json, dump(2));
}

}  // namespace lockstep::commands
