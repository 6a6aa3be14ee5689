#include "commands/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>

#include "base/file.h"
#include "base/model_files.h"
#include "base/standard_streams.h"
#include "commands/model_argument.h"
#include "page/page.h"

namespace lockstep::commands {

namespace fs = std::filesystem;

/// Pipes, devices and files in a folder that is not writable cannot be replaced, so they are overwritten in place. A
/// link stands for its target.
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
    if (std::string_view(failure.what()).starts_with("cannot write")) throw;
    fail(failure.code(), "cannot write {}: {}", path, failure.what());
  }
}

namespace {

/// The absolute path without links and `..`. The file need not exist.
fs::path resolved(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  const fs::path target = error ? fs::path(path) : fs::weakly_canonical(absolute, error);
  return error ? fs::path(path) : target;
}

}  // namespace

void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  std::ranges::copy_if(outputs, std::back_inserter(files), [](const auto& o) { return !o.empty() && o != "-"; });
  for (std::size_t i = 0; i < files.size(); ++i) {
    require_no_input(files[i], inputs);
    for (std::size_t j = 0; j < i; ++j) {
      std::error_code error;
      require(resolved(files[i]) != resolved(files[j]) || fs::is_other(files[i], error), ErrorCode::usage,
              "two outputs have the same name, {}: give each a name of its own", files[i]);
    }
  }
}

void check_writable(const std::vector<std::string>& outputs) {
  for (const std::string& path : outputs) {
    std::error_code error;
    if (path.empty() || path == "-" || fs::is_other(path, error)) continue;
    const fs::path target = resolved(path), folder = target.parent_path();
    require(!is_folder(target), ErrorCode::usage, "cannot write {}, which is a folder: give the output another name",
            path);
    require(is_folder(folder), ErrorCode::usage,
            "cannot write {}: there is no folder {}; create it, or give the output another name", path,
            folder.string());
    require(::access(folder.c_str(), W_OK) == 0 || ::access(target.c_str(), W_OK) == 0, ErrorCode::usage,
            "cannot write {}: you may not write to the folder {}; give the output another name", path, folder.string());
  }
}

std::vector<std::string> configuration_files(const std::vector<std::string>& command_line, const Config& config) {
  std::vector<std::string> files{config.data.train, config.data.validation, config.model.initialize_from,
                                 config.model.from, config.checkpoint.resume_from};
  std::ranges::copy_if(command_line, std::back_inserter(files), [](const auto& a) { return !is_override(a); });
  std::erase(files, "");
  return files;
}

void add_configuration(CLI::App& app, std::vector<std::string>& configuration) {
  app.add_option("CONFIG", configuration, "YAML files and key=value overrides; later ones override earlier ones")
      ->required();
}

void add_deepspeed(CLI::App& app, std::string& deepspeed) {
  add_value(app, "--deepspeed", "FILE", deepspeed,
            "A configuration of DeepSpeed (ds.json), which overrides the YAML files; overrides after them override it");
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        const std::vector<std::string>& words, const std::string& text) {
  return app.add_option(name, value, text)->check(CLI::IsMember(words))->capture_default_str();
}

void add_json(CLI::App& app, std::string& json) {
  app.add_flag("--json{-}", json,
               "Print one JSON object on standard output, or with --json=FILE write it to that file");
}

void report(const std::string& json, const nlohmann::ordered_json& object, const std::string& text) {
  // File names need not be valid UTF-8, but JSON must be.
  const auto dump = [&](int indent) {
    return object.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  };
  if (json == "-") {
    write_to_standard_error(printable_lines(text));
    fmt::print("{}", dump(-1));
    return;
  }
  print_text("{}", text);
  if (!json.empty()) write_result(json, dump(2));
}

std::string write_page(const page::Page& page, const std::string& html, const std::string& figures) {
  const std::string content = page.html();
  write_result(html, content);
  std::string text = fmt::format("{}: {} figures, {} kB\n", html, page.figures().size(), (content.size() + 999) / 1000);
  if (figures.empty()) return text;
  const page::WrittenFigures written = page::write_figures(page, figures);
  for (const std::string& path : written.paths) text += path + "\n";
  if (!written.has_png)
    text += "There are no PNG files, because rsvg-convert is not installed (Debian: librsvg2-bin).\n";
  return text;
}

}  // namespace lockstep::commands
