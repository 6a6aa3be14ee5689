// lockstep compare RUN...: how the configurations of runs differ (RUN/config.yaml), and their figures
// (RUN/metrics.json), one column per run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/printable.h"
#include "commands/commands.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;
constexpr const char* kNothing = "-";
constexpr const char *kConfiguration = "/config.yaml", *kMetrics = "/metrics.json", *kStatus = "/status";  // of a run

struct RunFiles {
  std::string path;
  Config config;
  Json figures;      // from metrics.json; empty if the file cannot be used
  std::string note;  // why `figures` is empty or incomplete
};

struct Row {
  std::string name;
  std::vector<Json> values;  // one per run; null if the run has no value
};

/// The figures of the file: numbers, the status, and the versions. `note`: what is not used, and why.
Json usable_figures(const std::string& path, std::string& note) {
  Json read;
  try {
    read = Json::parse(read_file(path, kMaxBytes));
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    note = fmt::format("{} is damaged: its figures are missing ({})", path, what.substr(what.find("] ") + 2));
    return Json::object();
  }
  if (!read.is_object()) {
    note = fmt::format("{} is not a JSON object: its figures are missing", path);
    return Json::object();
  }
  Json figures = Json::object();
  for (const auto& [name, value] : read.items()) {
    const bool is_status = name == "status", is_versions = name == "versions";
    const bool fits = is_status     ? value.is_string()
                      : is_versions ? value.is_object()
                                    : value.is_number() || value.is_null();
    if (fits)
      figures[name] = value;
    else
      note += fmt::format("{}{}: {}: expected {}, found {}", note.empty() ? "" : "\n", path, printable(name),
                          is_status     ? "text"
                          : is_versions ? "an object"
                                        : "a number",
                          printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  return figures;
}

/// If there is no metrics.json, a note says so. That is not an error, since the run may be in progress.
RunFiles read_run(const std::string& named) {
  const std::string path = run_argument(named), metrics = path + kMetrics;
  RunFiles run{.path = path, .config = config_of_run(path), .figures = Json::object(), .note = {}};
  if (std::filesystem::exists(metrics))
    run.figures = usable_figures(metrics, run.note);
  else
    run.note = fmt::format("{} has no metrics.json, which is written when a run ends: its figures are missing", path);
  if (const std::string status = status_of_run(path); !run.figures.contains("status") && !status.empty())
    run.figures["status"] = status;
  return run;
}

/// The keys whose values differ between the runs, except for the run's name and directory.
std::vector<Row> differences_of(const std::vector<RunFiles>& runs) {
  std::vector<Row> rows;
  for (const config::Key& key : config::table()) {
    if (key.name == "run.name" || key.name == "run.directory") continue;
    Row row{.name = key.name, .values = {}};
    for (const RunFiles& run : runs) row.values.emplace_back(key.get(run.config));
    if (std::ranges::adjacent_find(row.values, std::ranges::not_equal_to{}) != row.values.end())
      rows.push_back(std::move(row));
  }
  return rows;
}

/// All figures that at least one run has, in file order, and the build if the builds differ.
std::vector<Row> figures_of(const std::vector<RunFiles>& runs) {
  std::vector<std::string> names;
  for (const RunFiles& run : runs)
    for (const auto& [name, value] : run.figures.items())
      if (!value.is_structured() && std::ranges::find(names, name) == names.end()) names.push_back(name);
  std::vector<Row> rows;
  for (const std::string& name : names) {
    rows.push_back({.name = name, .values = {}});
    for (const RunFiles& run : runs) rows.back().values.push_back(run.figures.value(name, Json()));
  }
  Row commits{.name = "commit", .values = {}};
  for (const RunFiles& run : runs) {
    const Json versions = run.figures.value("versions", Json());
    commits.values.push_back(versions.is_object() ? versions.value("commit", Json()) : Json());
  }
  if (std::ranges::adjacent_find(commits.values, std::ranges::not_equal_to{}) != commits.values.end())
    rows.push_back(std::move(commits));
  return rows;
}

std::string text_of(const Json& value) {
  if (value.is_null()) return kNothing;
  if (value.is_number_float()) return fmt::format("{:.5g}", value.get<double>());
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

/// The first column is aligned on the left, the others on the right. A row of one cell is an empty line.
std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    if (row.size() > 1) text += fmt::format("{:<{}}", row.front(), widths.front());
    for (std::size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += "\n";
  }
  return text;
}

std::string text_of(const std::vector<RunFiles>& runs, const std::vector<Row>& differences,
                    const std::vector<Row>& figures) {
  std::vector<std::vector<std::string>> lines;
  const auto heading = [&](const std::string& title) {
    lines.push_back({title});
    for (const RunFiles& run : runs) lines.back().push_back(printable(run.path));
  };
  const auto add = [&](const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      lines.push_back({row.name});
      for (const Json& value : row.values) lines.back().push_back(text_of(value));
    }
  };
  if (!differences.empty()) {
    heading("configuration");
    add(differences);
    lines.push_back({""});
  }
  heading("figures");
  add(figures);
  std::string text = differences.empty() && runs.size() > 1 ? "The configurations do not differ.\n\n" : "";
  text += table_of(lines);
  for (const RunFiles& run : runs)
    if (!run.note.empty()) text += "\n" + run.note + "\n";
  return text;
}

Json json_of(const std::vector<Row>& rows) {
  Json object = Json::object();
  for (const Row& row : rows) object[row.name] = row.values;
  return object;
}

}  // namespace

void add_compare(CLI::App& app, Run& run) {
  struct CommandLine {
    std::vector<std::string> runs;
    std::string json;
  };
  auto options = std::make_shared<CommandLine>();
  CLI::App* command =
      app.add_subcommand("compare", "Report how runs differ: in their configurations and their results");
  add_required(*command, "RUN", options->runs, "Run directories, such as runs/quickstart");
  add_json(*command, options->json);
  set_run(*command, run, [options] {
    std::vector<RunFiles> runs;
    std::vector<std::string> inputs;
    for (const std::string& path : options->runs)
      for (const char* file : {kConfiguration, kMetrics, kStatus}) inputs.push_back(path + file);
    check_outputs({options->json}, inputs);
    for (const std::string& path : options->runs) runs.push_back(read_run(path));
    const std::vector<Row> differences = differences_of(runs), figures = figures_of(runs);
    Json object{{"runs", Json::array()}, {"configuration", json_of(differences)}, {"figures", json_of(figures)}};
    for (const RunFiles& each : runs) object["runs"].push_back(each.path);
    report(options->json, object, text_of(runs, differences, figures));
  });
}

}  // namespace lockstep::commands
