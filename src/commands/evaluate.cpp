// lockstep evaluate: the task's measures of one or more models on the validation set, each sample counted once.
//
// A model is a run directory, of which the best checkpoint is taken, a checkpoint, or a .safetensors file. What it
// records suffices to build it. The configuration says on which data it is evaluated: RUN/config.yaml for a run and the
// files in it, and in any case what the command line adds.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/current_world.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "config/parser.h"
#include "hdf5/version.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/inference.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxBatch = 128;  // samples per rank, unless evaluation.batch_per_rank is set

struct EvaluateArguments {
  std::vector<std::string> operands, checkpoints;
  std::string json, confusion;
};

// ------------------------------------------------------------------------------------------------- what is evaluated

struct Model {
  std::string path;    // of the file
  std::string folder;  // of its run; empty: it is not in one
};

/// By the name of the file, or of the file that a link (`best`) names.
bool is_model_file(const std::string& operand) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(operand, error);
  return fs::path(operand).extension() == ".safetensors" || file.extension() == ".h5" ||
         file.extension() == ".safetensors";
}

Model model_of_run(const std::string& folder) { return {.path = checkpoint_of_run(folder), .folder = folder}; }

/// RUN/checkpoints/FILE and RUN/FILE belong to RUN.
Model model_of_file(const std::string& path) {
  const fs::path beside = fs::path(path).parent_path();
  for (const fs::path& folder : {beside, beside / ".."})
    if (fs::exists(folder / "config.yaml") && fs::exists(folder / "checkpoints"))
      return {.path = path, .folder = folder.string()};
  return {.path = path, .folder = ""};
}

struct Request {
  std::vector<Model> models;
  std::vector<std::string> configuration;  // of the command line: files and overrides
  bool describes_model = false;            // `configuration` contains a file, or keys of the model
};

Request understand(const EvaluateArguments& arguments) {
  Request out;
  for (const std::string& operand : arguments.operands) {
    if (is_override(operand)) {
      out.configuration.push_back(operand);
      out.describes_model = out.describes_model || operand.starts_with("model.");
    } else if (fs::is_directory(operand)) {
      out.models.push_back(model_of_run(operand));
    } else if (is_model_file(operand)) {
      out.models.push_back(model_of_file(operand));
    } else {
      out.configuration.push_back(operand);
      out.describes_model = true;
    }
  }
  for (const std::string& path : arguments.checkpoints)
    out.models.push_back(fs::is_directory(path) ? model_of_run(path) : Model{.path = path, .folder = ""});
  require(!out.models.empty(), ErrorCode::usage,
          "expected the directory of a run, a checkpoint or a .safetensors file to evaluate, found only {}",
          out.configuration.empty() ? "options" : "a configuration: name the file with --checkpoint FILE");
  return out;
}

/// Of one model: that of its run, unless the command line names files, and then the command line.
Config configure(const Request& request, const Model& model) {
  std::vector<std::string> sources;
  const bool has_files = std::ranges::any_of(request.configuration, [](const auto& c) { return !is_override(c); });
  const std::string of_run = model.folder.empty() ? "" : (fs::path(model.folder) / "config.yaml").string();
  if (!has_files && fs::exists(of_run)) sources.push_back(of_run);
  sources.insert(sources.end(), request.configuration.begin(), request.configuration.end());
  Config config = config::parse(sources);
  require(!config.data.validation.empty(), ErrorCode::usage,
          "there is no data set to evaluate {} on: set data.validation=FILE", model.path);
  return config;
}

/// A configuration that describes another model than the file's is a mistake.
void check_same_model(const Config& config, const Config& of_file, const std::string& path) {
  const nlohmann::json wanted = tasks::make_task(config)->model_stamp();
  const nlohmann::json found = tasks::make_task(of_file)->model_stamp();
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& key) {
    const auto shown = [&](const nlohmann::json& stamp) {
      return stamp.contains(key) ? stamp[key].dump() : "its default";
    };
    if (shown(wanted) == shown(found)) return;
    differences.push_back(
        fmt::format("model.{} is {} in the file and {} in the configuration", key, shown(found), shown(wanted)));
  };
  for (const auto& [key, value] : wanted.items()) compare(key);
  for (const auto& [key, value] : found.items())
    if (!wanted.contains(key)) compare(key);
  require(differences.empty(), ErrorCode::checkpoint_mismatch, "{} contains another model than the configuration: {}",
          path, fmt::join(differences, ", "));
}

// -------------------------------------------------------------------------------------------------------- evaluation

struct Outcome {
  Json object;
  std::string text, picture;
};

/// How samples become inputs, and the validation set. Returns notes for the user.
std::vector<std::string> open_data(tasks::Task& task, const Config& config, const checkpoint::ModelFile& file) {
  std::vector<std::string> notes;
  if (file.state.contains("inference")) {
    notes = task.adopt(file.state["inference"], file.path);
  } else {
    require(!config.data.train.empty(), ErrorCode::usage,
            "{} does not record the size and the normalisation of its images: set data.train to the data set that it "
            "was trained on",
            file.path);
    notes.push_back(fmt::format("{} does not record the size and the normalisation of its images: they are those of {}",
                                file.path, config.data.train));
    task.open_train_set();
  }
  task.open_validation_set();
  return notes;
}

std::int64_t batch_of(const Config& config, std::int64_t n_samples, int ranks) {
  if (config.evaluation.batch_per_rank > 0) return config.evaluation.batch_per_rank;
  return std::clamp<std::int64_t>((n_samples + ranks - 1) / ranks, 1, kMaxBatch);
}

Outcome evaluate_model(const Request& request, const Model& model, World& world) {
  Config config = configure(request, model);
  const checkpoint::ModelFile file = checkpoint::read_model_file(model.path);
  Config of_file = config;
  train::set_model(of_file, file);
  if (request.describes_model) check_same_model(config, of_file, model.path);
  config.model = of_file.model;
  const std::unique_ptr<tasks::Task> task = tasks::make_task(config);
  const std::vector<std::string> notes = open_data(*task, config, file);
  if (world.rank() == 0)
    for (const std::string& note : notes) log::info("{}", note);
  const bool is_configured = !model.folder.empty() || request.describes_model || sets_precision(request.configuration);
  const auto [backend, warning] =
      open_model_backend(config, file, is_configured ? PrecisionOf::user : PrecisionOf::model,
                         {.device = config.device,
                          .threads = config.cpu.threads,
                          .local_rank = world.local_rank(),
                          .local_size = world.local_size()});
  if (!warning.empty() && world.rank() == 0) log::warning("{}", warning);
  const std::shared_ptr<const data::Dataset> set = task->validation_set();
  train::Inference inference(config, *task, set->fields(), *backend,
                             batch_of(config, set->info().n_samples, world.size()));
  inference.load(file);
  const Clock::time_point begin = Clock::now();
  const train::Evaluation result = train::evaluate(inference, config, *task, set, *backend, world, "evaluation");
  const double seconds = seconds_since(begin);

  const tasks::CountUnit& unit = task->count_unit();
  const auto count = static_cast<std::int64_t>(result.sums.count);
  const double rate = result.sums.count / seconds;
  const Json step = file.state.contains("step") ? Json(file.state["step"]) : Json();
  Outcome out{.object = {{"event", "evaluation"}, {"checkpoint", model.path}, {"step", step}, {unit.name, count}},
              .text = {},
              .picture = result.tally->picture(model.path)};
  std::string measures;
  for (const tasks::Measure& measure : task->measures()) {
    const double value = measure.of(result.sums);
    out.object[measure.key] = value;
    measures +=
        fmt::format("{}{} {}", measures.empty() ? "" : ", ", measure.key, measure.text(value, measure.result_digits));
  }
  if (const std::string summary = result.tally->summary(); !summary.empty()) measures += ", " + summary;
  out.object.update({{"seconds", seconds}, {unit.rate_key, rate}, {"ranks", world.size()}});
  out.object.update(result.tally->json());
  out.text = fmt::format("{}{} on {}: {} of {} {}, {:.1f} {}\n{}", model.path,
                         step.is_null() ? "" : fmt::format(" (step {})", step.dump()), set->info().path, measures,
                         count, unit.name, rate, unit.rate_unit, result.tally->text());
  return out;
}

int run_evaluation(const EvaluateArguments& arguments, const Arguments& program) {
  const Request request = understand(arguments);
  require(arguments.confusion.empty() || request.models.size() == 1, ErrorCode::usage,
          "--confusion FILE draws one model, found {}", request.models.size());
  const Config first = configure(request, request.models.front());
  hdf5::version();  // as in train: before MPI
  World& world = *(current_world() = comm::start_world(program.argc, program.argv, first.comm.watchdog_seconds));
  log::configure(world.rank(), world.size(), world.host(), first.log.all_ranks);
  Json objects = Json::array();
  std::string text, picture;
  for (const Model& model : request.models) {
    Outcome outcome = evaluate_model(request, model, world);
    text += (text.empty() ? "" : "\n") + outcome.text;
    objects.push_back(std::move(outcome.object));
    picture = std::move(outcome.picture);
  }
  if (world.rank() != 0) return kExitDone;
  if (!arguments.confusion.empty()) write_result(arguments.confusion, picture);
  report(arguments.json, objects.size() == 1 ? objects.front() : Json{{"evaluations", objects}}, text);
  return kExitDone;
}

}  // namespace

void add_evaluate(CLI::App& app, Run& run, const Arguments& program) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command = app.add_subcommand("evaluate", "Evaluate runs, checkpoints and .safetensors files");
  command
      ->add_option("MODEL", arguments->operands,
                   "Run directories, checkpoints, .safetensors files; YAML files and key=value overrides")
      ->required();
  command->add_option("--checkpoint", arguments->checkpoints, "A checkpoint or .safetensors file to evaluate")
      ->allow_extra_args(false);
  command->add_option("--confusion", arguments->confusion, "Draw the confusion matrix as an SVG picture into this file")
      ->type_name("FILE.svg");
  add_json(*command, arguments->json);
  command->callback(
      [arguments, &run, program] { run = [arguments, program] { return run_evaluation(*arguments, program); }; });
}

}  // namespace lockstep::commands
