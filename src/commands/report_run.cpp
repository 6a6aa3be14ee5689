// lockstep report RUN: one HTML page with the figures of a run, drawn from its files; --json also gives the figures.
// `report memory` and `report mlflow` are commands of their own below it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/standard_streams.h"
#include "commands/commands.h"
#include "commands/page_files.h"
#include "commands/report.h"
#include "commands/run_page.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

struct CommandLine {
  std::string run, html, figures, json;
};

int report_run(CommandLine options) {
  while (options.run.size() > 1 && options.run.ends_with('/')) options.run.pop_back();
  const std::string html = options.html.empty() ? options.run + "/report.html" : options.html;
  std::vector<std::string> inputs;
  for (const char* file : {"config.yaml", "metrics.jsonl", "metrics.json", "status", "log.txt", "trace.json"})
    inputs.push_back(options.run + "/" + file);
  check_outputs({html, options.json}, inputs);
  const RunRecord run = read_run_record(options.run);
  for (const std::string& note : run.notes) write_to_standard_error(printable_lines(note + "\n"));
  const std::string written = write_page(page_of_run(run), html, options.figures);
  report(options.json, options.json.empty() ? nlohmann::ordered_json() : json_of_run(run, html), written);
  return kExitDone;
}

}  // namespace

void add_report(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("report", "Draw the figures of a run as one HTML page");
  auto options = std::make_shared<CommandLine>();
  command->add_option("RUN", options->run, "A run directory, such as runs/quickstart");
  command->add_option("--html", options->html, "Where the page is written; RUN/report.html without it")
      ->type_name("FILE");
  command->add_option("--figures", options->figures, "Also write each figure to this folder, as SVG and PNG")
      ->type_name("DIRECTORY");
  add_json(*command, options->json);
  command->require_subcommand(0, 1);
  command->footer(
      "The run may be in progress. PNG files need the program rsvg-convert. A run that is called `memory` or `mlflow` "
      "is\nwritten as ./memory.");
  add_report_memory(*command, run);
  add_report_mlflow(*command, run);
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
    run = [options] { return report_run(*options); };
  });
}

}  // namespace lockstep::commands
