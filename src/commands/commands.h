// Each function adds a subcommand (CLI11) to the program. Parsing the chosen one sets `run`, which main calls. A
// command returns its exit status or throws Error.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace lockstep::commands {

/// The arguments of main, for commands that start MPI.
struct Arguments {
  int* argc = nullptr;
  char*** argv = nullptr;
};

using Run = std::function<int()>;

void add_train(CLI::App& app, Run& run, const Arguments& arguments);
void add_evaluate(CLI::App& app, Run& run, const Arguments& arguments);
void add_predict(CLI::App& app, Run& run);
void add_generate(CLI::App& app, Run& run, const Arguments& arguments);
void add_plan(CLI::App& app, Run& run, const Arguments& arguments);
void add_data(CLI::App& app, Run& run);
/// `data import`; `data` is the subcommand.
void add_data_import(CLI::App& data, Run& run);
/// `data show`
void add_data_show(CLI::App& data, Run& run);
/// `data encode` and `data decode`; `data` is the subcommand.
void add_encode_and_decode(CLI::App& data, Run& run);
void add_checkpoint(CLI::App& app, Run& run);
void add_compare(CLI::App& app, Run& run);
void add_report(CLI::App& app, Run& run);
/// `report memory`; `report` is the subcommand.
void add_report_memory(CLI::App& report, Run& run);
/// `report mlflow`
void add_report_mlflow(CLI::App& report, Run& run);
void add_top(CLI::App& app, Run& run);
void add_scaling(CLI::App& app, Run& run);
void add_completion(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run, const Arguments& arguments);
void add_gpu_info(CLI::App& app, Run& run);
void add_help(CLI::App& app, Run& run);

}  // namespace lockstep::commands
