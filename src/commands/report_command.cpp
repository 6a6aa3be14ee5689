// lockstep report RUN: one HTML page with the figures of a run, drawn from its files; --json also gives the figures.
//
// lockstep report memory FILE...: reports peak, mean and mode of the memory that GPUs and processes used, from the CSV
// files of RUN/usage (src/run/usage_log.h) or from files that nvidia-smi wrote.
//
// lockstep report mlflow RUN: sends the parameters, metrics and files of a run to an MLflow server, as a run with
// log.mlflow does while it trains. It is for what such a run could not send, and for runs without log.mlflow. Sends
// only what the server does not have yet (RUN/mlflow.json), so that a second call sends nothing.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/numbers.h"
#include "base/progress_bar.h"
#include "base/standard_streams.h"
#include "commands/commands.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "commands/run_record.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "mlflow/upload.h"
#include "page/page.h"
#include "run/metrics.h"
#include "run/run_lock.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// --------------------------------------------------------------------------------------------------------- memory

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    fields.push_back(trimmed(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return fields;
}

/// Formats a line for a message: truncated, and without bytes that a terminal would interpret.
std::string shown(std::string_view line) {
  std::string text(line.substr(0, 120));
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return text;
}

/// Parses the whole text as a number, optionally followed by the unit " MiB".
template <typename T>
std::optional<T> number(std::string_view text) {
  if (text.ends_with("MiB")) text = trimmed(text.substr(0, text.size() - 3));
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0 && value < T(1 << 30)))
    return std::nullopt;
  return value;
}

/// The columns with the GPU or rank, and with its memory. Their names are ours or those of nvidia-smi, which may end
/// with "[MiB]".
struct Columns {
  std::size_t number = 0, memory = 0;
  bool is_of_processes = false;
};

Columns columns_of(const std::string& path, std::string_view header) {
  const std::vector<std::string_view> names = fields_of(header);
  const auto find = [&](std::initializer_list<std::string_view> accepted_names) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (std::ranges::find(accepted_names, trimmed(names[i].substr(0, names[i].find('[')))) != accepted_names.end())
        return i;
    return std::nullopt;
  };
  const auto gpu = find({"gpu", "index"}), rank = find({"rank"});
  const auto of_gpu = find({"memory_used_mib", "memory.used"}), of_process = find({"rss_mib"});
  if (gpu && of_gpu) return {.number = *gpu, .memory = *of_gpu};
  require(
      rank && of_process, ErrorCode::usage,
      "{}:1: expected the names of columns, with gpu or index and memory_used_mib or memory.used, or rank and rss_mib, "
      "found \"{}\"",
      path, shown(header));
  return {.number = *rank, .memory = *of_process, .is_of_processes = true};
}

struct Use {
  int number = 0;  // of the GPU, or rank
  std::size_t samples = 0;
  double peak_mib = 0, mean_mib = 0, mode_mib = 0;
};

struct Log {
  std::string path, name;  // "gpu_memory_log"
  bool is_of_processes = false;
  std::vector<Use> uses{};
};

/// `counts`: how often each amount occurred, in ascending order.
Use use_of(int number, const std::map<double, std::size_t>& counts) {
  Use use{.number = number, .peak_mib = counts.rbegin()->first};
  std::size_t most = 0;
  for (const auto& [mib, count] : counts) {
    use.mean_mib += mib * static_cast<double>(count);
    use.samples += count;
    if (count <= most) continue;  // among equally frequent amounts, the smallest wins
    most = count;
    use.mode_mib = mib;
  }
  use.mean_mib /= static_cast<double>(use.samples);
  return use;
}

/// The file's name without ".csv". Our own file names also lose the host.
std::string name_of(const std::string& path) {
  std::string stem = fs::path(path).stem().string();
  for (const std::string_view ours : {"gpu_memory_log", "process_log"})
    if (stem.starts_with(std::string(ours) + "_")) return std::string(ours);
  return stem;
}

/// The log of psrecord, "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)", in our columns. Its MB are MiB.
std::string from_psrecord(const std::string& text, const std::string& path) {
  std::istringstream lines(text);
  std::string line, found = "rank,rss_mib";
  std::getline(lines, line);
  for (double seconds, cpu, real; std::getline(lines, line); found += fmt::format("\n0,{}", real))
    require(!!(std::istringstream(line) >> seconds >> cpu >> real), ErrorCode::usage,
            "{}: expected seconds, CPU and memory in each line of psrecord, found \"{}\"", path, shown(line));
  return found;
}

Log log_of(const std::string& path) {
  std::string text = read_file(path, kMaxBytes);
  text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n'));  // the last line may not be complete yet
  if (text.starts_with("# Elapsed time")) text = from_psrecord(text, path);
  require(!trimmed(text).empty(), ErrorCode::usage,
          "{}: expected a line of column names and lines of numbers, found nothing", path);
  Log log{.path = path, .name = name_of(path)};
  std::map<int, std::map<double, std::size_t>> counts;
  std::string_view rest = text, header;
  Columns columns;
  for (int line_number = 1; !rest.empty(); ++line_number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line_number == 1) {
      header = line;
      columns = columns_of(path, header);
      log.is_of_processes = columns.is_of_processes;
      continue;
    }
    if (line.empty() || line == header) continue;  // a repeated header: nvidia-smi was started again with the same file
    const std::vector<std::string_view> fields = fields_of(line);
    const bool is_whole = fields.size() > std::max(columns.number, columns.memory);
    const auto whose = is_whole ? number<int>(fields[columns.number]) : std::nullopt;
    const auto mib = is_whole ? number<double>(fields[columns.memory]) : std::nullopt;
    require(whose && mib, ErrorCode::usage,
            "{}:{}: expected the columns {} with the number of a {} and MiB, found \"{}\"", path, line_number,
            shown(header), columns.is_of_processes ? "rank" : "GPU", shown(line));
    ++counts[*whose][*mib];
  }
  require(!counts.empty(), ErrorCode::usage, "{}: expected lines of numbers below the column names, found none", path);
  for (const auto& [whose, of_it] : counts) log.uses.push_back(use_of(whose, of_it));
  return log;
}

Json json_of(const std::vector<Log>& logs) {
  Json all = Json::array();
  for (const Log& log : logs)
    for (const Use& use : log.uses)
      all.push_back({{"file", log.path},
                     {"name", log.name},
                     {log.is_of_processes ? "rank" : "gpu", use.number},
                     {"samples", use.samples},
                     {"peak_mib", use.peak_mib},
                     {"mean_mib", use.mean_mib},
                     {"mode_mib", use.mode_mib}});
  return {{"memory", all}};
}

std::string text_of(const std::vector<Log>& logs) {
  std::string text;
  for (const Log& log : logs) {
    if (logs.size() > 1) text += log.path + "\n";
    for (const Use& use : log.uses)
      text += fmt::format("[{} - {} {}] Peak = {:.10g} MiB, Avg = {:.2f} MiB, Mode = {:.10g} MiB\n", log.name,
                          log.is_of_processes ? "rank" : "GPU", use.number, use.peak_mib, use.mean_mib, use.mode_mib);
  }
  return text;
}

void add_memory(CLI::App& group, Run& run) {
  struct CommandLine {
    std::vector<std::string> files;
    std::string json;
  };
  auto options = std::make_shared<CommandLine>();
  CLI::App* command =
      group.add_subcommand("memory", "Report peak, mean and mode of the memory that GPUs and processes used");
  add_required(*command, "FILE", options->files,
               "Files of RUN/usage, which log.usage_seconds enables, or of `nvidia-smi "
               "--query-gpu=timestamp,index,memory.used --format=csv -l 5`, or logs of psrecord");
  command->footer(
      "The mode is the most frequent amount; of equally frequent amounts, the smallest. A last line without line feed "
      "is\n"
      "ignored, since it is still being written.");
  add_json(*command, options->json);
  set_run(*command, run, [options] {
    check_outputs({options->json}, options->files);
    std::vector<Log> logs;
    try {
      for (const std::string& path : options->files) logs.push_back(log_of(path));
    } catch (const Error& e) {  // the help names the files that can be read
      fail(ErrorCode::usage, "{}; see `lockstep report memory --help`", e.what());
    }
    report(options->json, json_of(logs), text_of(logs));
  });
}

// --------------------------------------------------------------------------------------------------------- mlflow

struct MlflowArguments {
  std::string run, uri, experiment;
  bool dry_run = false;
};

std::string text_of(const mlflow::Amount& amount) {
  const auto number = [](std::int64_t n, const char* what) {
    return fmt::format("{} {}{}", with_commas(static_cast<double>(n)), what, n == 1 ? "" : "s");
  };
  return fmt::format("{}, {}, {}{}", number(amount.parameters, "parameter"), number(amount.metrics, "metric"),
                     number(amount.files, "file"), amount.status ? " and the status" : "");
}

mlflow::UploadOptions upload_options(const MlflowArguments& line) {
  mlflow::UploadOptions options{
      .run = line.run, .address = line.uri, .experiment = line.experiment, .config = config_of_run(line.run)};
  if (!options.address.empty()) {
    config::check_mlflow_address(options.address, "--uri");
  } else if (!options.config.log.mlflow.empty()) {
    options.address = options.config.log.mlflow;
  } else {
    const char* address = std::getenv("MLFLOW_TRACKING_URI");
    require(address != nullptr && *address != '\0', ErrorCode::usage,
            "{} was trained without log.mlflow: give the address of the server with --uri, or with the environment "
            "variable MLFLOW_TRACKING_URI",
            line.run);
    config::check_mlflow_address(options.address = address, "MLFLOW_TRACKING_URI");
  }
  if (options.experiment.empty()) options.experiment = options.config.log.mlflow_experiment;
  return options;
}

/// The final status for MLflow. Empty for a run that seems to be in progress: its status on the server stays.
std::string final_status(const std::string& run) {
  const std::string status = mlflow::status_for(status_of_run(run));
  return status == "RUNNING" ? "" : status;
}

void send(mlflow::Upload& upload, const std::string& run, const std::string& status) {
  ProgressBar bar(
      "sending",
      static_cast<std::int64_t>(fs::exists(run + "/metrics.jsonl") ? fs::file_size(run + "/metrics.jsonl") : 0), true);
  upload.open();
  upload.send_parameters();
  upload.send_metrics([&](std::uint64_t done, std::uint64_t) { bar.update(static_cast<std::int64_t>(done), ""); });
  upload.send_status(status);
  upload.send_files(mlflow::kFilesAtEnd);
}

/// If the server is busy, the upload is tried two more times.
void send_with_attempts(mlflow::Upload& upload, const std::string& run, const std::string& status) {
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    try {
      send(upload, run, status);
      return;
    } catch (const mlflow::Problem& problem) {
      if (problem.is_temporary() && attempt < kAttempts) {
        write_to_standard_error(fmt::format("lockstep: {}; trying again\n", problem.what()));
        std::this_thread::sleep_for(std::chrono::seconds(attempt));
        continue;
      }
      fail(ErrorCode::mlflow, "{}{}", problem.what(),
           upload.sent().any() ? fmt::format("; sent before that: {}", text_of(upload.sent())) : "");
    }
  }
}

void report_mlflow(MlflowArguments line) {
  line.run = run_argument(line.run);
  const mlflow::UploadOptions options = upload_options(line);
  // During training, the run itself writes RUN/mlflow.json.
  if (!options.config.log.mlflow.empty() && !line.dry_run) run::RunLock::require_free(line.run);
  const std::string status = final_status(line.run);
  std::signal(SIGPIPE, SIG_IGN);  // raised if the server closes the connection
  const mlflow::Limits limits;
  mlflow::Upload upload(options, limits);
  if (line.dry_run) {
    print_text("{}: {} would be sent to {}\n", line.run, text_of(upload.missing(status, mlflow::kFilesAtEnd)),
               options.address);
    return;
  }
  send_with_attempts(upload, line.run, status);
  if (const std::string note = upload.files_note(); !note.empty())
    write_to_standard_error(printable_lines(fmt::format("lockstep: {}\n", note)));
  if (upload.sent().any())
    print_text("{}: {} were sent to {}\n", line.run, text_of(upload.sent()), upload.page());
  else
    print_text("{}: everything was sent before to {}\n", line.run, upload.page());
}

void add_mlflow(CLI::App& group, Run& run) {
  CLI::App* command = group.add_subcommand("mlflow", "Send parameters, metrics and files of a run to an MLflow server");
  auto options = std::make_shared<MlflowArguments>();
  add_required(*command, "RUN", options->run, "A run directory, such as runs/quickstart");
  add_value(*command, "--uri", "URI", options->uri,
            "Address of the server; without it, log.mlflow of the run, or the variable MLFLOW_TRACKING_URI");
  add_value(*command, "--experiment", "NAME", options->experiment, "The experiment; without it, log.mlflow_experiment");
  command->add_flag("--dry-run", options->dry_run, "Report what would be sent, without contacting the server");
  command->footer(
      "Only what the server does not have is sent: RUN/mlflow.json records what was sent to which server. A user,\n"
      "password or token is taken from MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN.");
  set_run(*command, run, [options] { report_mlflow(*options); });
}

// ----------------------------------------------------------------------------------------------------------- page

struct PageArguments {
  std::string run, html, figures, json;
};

void report_run(PageArguments options) {
  options.run = run_argument(options.run);
  const std::string html = options.html.empty() ? options.run + "/report.html" : options.html;
  std::vector<std::string> inputs;
  for (const char* file : {"config.yaml", "metrics.jsonl", "metrics.json", "status", "log.txt", "trace.json"})
    inputs.push_back(options.run + "/" + file);
  check_outputs({html, options.json}, inputs);
  const RunRecord run = read_run_record(options.run);
  for (const std::string& note : run.notes) write_to_standard_error(printable_lines(note + "\n"));
  const std::string written = write_page(page_of_run(run), html, options.figures);
  report(options.json, options.json.empty() ? Json() : json_of_run(run, html), written);
}

}  // namespace

void add_report(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("report", "Draw the figures of a run as one HTML page");
  auto options = std::make_shared<PageArguments>();
  command->add_option("RUN", options->run, "A run directory, such as runs/quickstart");
  add_value(*command, "--html", "FILE", options->html, "Where the page is written; RUN/report.html without it");
  add_value(*command, "--figures", "DIRECTORY", options->figures,
            "Also write each figure to this folder, as SVG and PNG");
  add_json(*command, options->json);
  command->require_subcommand(0, 1);
  command->footer(
      "The run may be in progress. PNG files need the program rsvg-convert. A run that is called `memory` or `mlflow` "
      "is\nwritten as ./memory.");
  add_memory(*command, run);
  add_mlflow(*command, run);
  command->callback([options, command, &run] {
    if (!command->get_subcommands().empty()) {
      const std::string name = command->get_subcommands().front()->get_name();
      require(options->run.empty() && options->html.empty() && options->figures.empty() && options->json.empty(),
              ErrorCode::usage,
              "`lockstep report {}` does not take the options of `lockstep report RUN`: write its own options after "
              "`{}`; `lockstep report {} --help` lists them",
              name, name, name);
      return;
    }
    require(!options->run.empty(), ErrorCode::usage,
            "RUN is missing (a run directory, such as runs/quickstart); see `lockstep report --help`");
    run = [options] { return report_run(*options), kExitDone; };
  });
}

}  // namespace lockstep::commands
