// lockstep report mlflow RUN: sends the parameters, metrics and files of a run to an MLflow server, as a run with
// log.mlflow does while it trains. It is for what such a run could not send, and for runs without log.mlflow. Sends
// only what the server does not have yet (RUN/mlflow.json), so that a second call sends nothing.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "base/file.h"
#include "base/number_text.h"
#include "base/progress_bar.h"
#include "base/standard_streams.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "mlflow/upload.h"
#include "run/metrics.h"
#include "run/run_lock.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

struct CommandLine {
  std::string run, uri, experiment;
  bool dry_run = false;
};

std::string counted(std::int64_t n, const char* what) {
  return fmt::format("{} {}{}", with_commas(static_cast<double>(n)), what, n == 1 ? "" : "s");
}

std::string text_of(const mlflow::Amount& amount) {
  return fmt::format("{}, {}, {}{}", counted(amount.parameters, "parameter"), counted(amount.metrics, "metric"),
                     counted(amount.files, "file"), amount.status ? " and the status" : "");
}

mlflow::UploadOptions upload_options(const CommandLine& line) {
  const std::string broken = broken_link_text(line.run);
  require(fs::is_directory(line.run), ErrorCode::usage,
          "there is no run {}: expected a run directory, such as runs/quickstart{}", line.run,
          broken.empty() ? "" : fmt::format("; {}", broken));
  const std::string file = line.run + "/config.yaml";
  require(fs::exists(file), ErrorCode::usage,
          "{} is not a run directory: it has no config.yaml, which a run writes when it starts", line.run);
  mlflow::UploadOptions options{
      .run = line.run, .address = line.uri, .experiment = line.experiment, .config = config::parse({file})};
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
  constexpr std::uint64_t kMaxBytes = 4096;
  const std::string path = run + "/status";
  if (!fs::exists(path)) return "";
  const std::string text = read_file(path, kMaxBytes);
  const std::string status = mlflow::status_for(text.substr(0, text.find('\n')));
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
  upload.send_files(mlflow::files_at_end());
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

int report_mlflow(CommandLine line) {
  while (line.run.size() > 1 && line.run.ends_with('/')) line.run.pop_back();
  const mlflow::UploadOptions options = upload_options(line);
  // During training, the run itself writes RUN/mlflow.json.
  if (!options.config.log.mlflow.empty() && !line.dry_run) run::RunLock::require_free(line.run);
  const std::string status = final_status(line.run);
  std::signal(SIGPIPE, SIG_IGN);  // raised if the server closes the connection
  const mlflow::Limits limits;
  mlflow::Upload upload(options, limits);
  if (line.dry_run) {
    print_text("{}: {} would be sent to {}\n", line.run, text_of(upload.missing(status, mlflow::files_at_end())),
               options.address);
    return kExitDone;
  }
  send_with_attempts(upload, line.run, status);
  if (const std::string note = upload.files_note(); !note.empty())
    write_to_standard_error(printable_lines(fmt::format("lockstep: {}\n", note)));
  if (upload.sent().any())
    print_text("{}: {} were sent to {}\n", line.run, text_of(upload.sent()), upload.page());
  else
    print_text("{}: everything was sent before to {}\n", line.run, upload.page());
  return kExitDone;
}

}  // namespace

void add_report_mlflow(CLI::App& report, Run& run) {
  CLI::App* command =
      report.add_subcommand("mlflow", "Send parameters, metrics and files of a run to an MLflow server");
  auto options = std::make_shared<CommandLine>();
  command->add_option("RUN", options->run, "A run directory, such as runs/quickstart")->required();
  command
      ->add_option("--uri", options->uri,
                   "Address of the server; without it, log.mlflow of the run, or the variable MLFLOW_TRACKING_URI")
      ->type_name("URI");
  command->add_option("--experiment", options->experiment, "The experiment; without it, log.mlflow_experiment")
      ->type_name("NAME");
  command->add_flag("--dry-run", options->dry_run, "Report what would be sent, without contacting the server");
  command->footer(
      "Only what the server does not have is sent: RUN/mlflow.json records what was sent to which server. A user,\n"
      "password or token is taken from MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN.");
  command->callback([options, &run] { run = [options] { return report_mlflow(*options); }; });
}

}  // namespace lockstep::commands
