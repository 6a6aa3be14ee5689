// lockstep evaluate: the task's measures of one or more models on the validation set, each sample counted once.
//
// A model is a run directory (its best checkpoint is used), a checkpoint, a .safetensors file, or a Hugging Face
// directory. It records everything that is needed to build it. The configuration says on which data it is evaluated:
// RUN/config.yaml for a run and the files in it, plus what the command line adds.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/current_world.h"
#include "base/file.h"
#include "base/stop_signal.h"
#include "checkpoint/model_file.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/evaluate_answers.h"
#include "commands/evaluate_choices.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "config/parser.h"
#include "hdf5/reader.h"
#include "inference/adapters.h"
#include "inference/inference.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "models/family.h"
#include "tasks/task.h"
#include "train/batch_shape.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxBatch =
    128;  // samples per rank, unless evaluation.batch_per_rank is set. A signal ends an evaluation after a batch

struct EvaluateArguments {
  std::vector<std::string> operands, checkpoints;
  std::string json, confusion, choices, tokenizer;
  AnswersArguments answers{};
  std::string about_answers{};  // the given option, if any, that only applies to answers to conversations
  bool averages = false;
};

// ------------------------------------------------------------------------------------------------- what is evaluated

struct Model {
  std::string path;    // of the file
  std::string folder;  // of its run; empty if it does not belong to a run
};

/// Also false if a folder of the path is not readable: opening the file then reports why.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Decides by the name of the file, or of the target of a link (`best`).
bool is_model_file(const std::string& operand) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(operand, error);
  return fs::path(operand).extension() == ".safetensors" || file.extension() == ".h5" ||
         file.extension() == ".safetensors";
}

/// Decides by the name. The name of a special file, such as a pipe, means nothing.
bool is_configuration(const std::string& operand) {
  const fs::path extension = fs::path(operand).extension();
  return extension == ".yaml" || extension == ".yml" || (is_there(operand) && !fs::is_regular_file(operand));
}

std::string extension_text(const std::string& operand) {
  const std::string extension = fs::path(operand).extension().string();
  return extension.empty() ? ", found a name without extension" : fmt::format(", found the extension {}", extension);
}

/// RUN/checkpoints/FILE, RUN/FILE and RUN/model belong to RUN.
Model model_of_file(const std::string& path) {
  const fs::path file = path.ends_with('/') ? fs::path(path).parent_path() : fs::path(path);
  const fs::path beside = file.parent_path();
  for (const fs::path& folder : {beside, beside / ".."})
    if (is_there(folder / "config.yaml") && is_there(folder / "checkpoints"))
      return {.path = path, .folder = folder.string()};
  return {.path = path, .folder = ""};
}

/// The model in a directory of a run or of Hugging Face.
Model model_of_directory(const std::string& directory) {
  if (checkpoint::is_model_directory(directory)) return model_of_file(directory);
  return {.path = checkpoint_of_run(directory), .folder = directory};
}

struct Request {
  std::vector<Model> models;
  std::vector<std::string> configuration;  // from the command line: files and overrides
  bool describes_model = false;            // `configuration` contains a file, or keys of the model but its family
  checkpoint::WeightsOf weights = checkpoint::WeightsOf::model;
};

Request understand(const EvaluateArguments& arguments) {
  Request out;
  if (arguments.averages) out.weights = checkpoint::WeightsOf::averages;
  for (const std::string& operand : arguments.operands) {
    const std::string broken = is_override(operand) ? "" : broken_link_text(operand);
    require(broken.empty(), ErrorCode::cannot_open, "{}", broken);
    std::error_code error;
    const bool is_known = is_override(operand) || fs::exists(operand, error) || !error;
    require(is_known, ErrorCode::cannot_open, "cannot open {}: {}", operand, error.message());
    if (is_override(operand)) {
      out.configuration.push_back(operand);
      // model.from also names the base of adapters.
      const bool is_of_model = operand.starts_with("model.") && !operand.starts_with("model.from=") &&
                               !operand.starts_with("model.family=") && !operand.starts_with("model.ignore_keys=");
      out.describes_model = out.describes_model || is_of_model;
    } else if (is_folder(operand)) {
      out.models.push_back(model_of_directory(operand));
    } else if (is_model_file(operand)) {
      out.models.push_back(model_of_file(operand));
    } else {
      constexpr const char* kAccepted =
          "expected the directory of a run or of a model, a checkpoint (*.h5), a .safetensors file, a configuration "
          "(*.yaml) or key=value";
      require(is_configuration(operand) || is_there(operand), ErrorCode::cannot_open, "{} does not exist: {}", operand,
              kAccepted);
      require(is_configuration(operand), ErrorCode::usage, "{} cannot be evaluated: {}{}", operand, kAccepted,
              extension_text(operand));
      out.configuration.push_back(operand);
      out.describes_model = true;
    }
  }
  for (const std::string& path : arguments.checkpoints)
    out.models.push_back(is_folder(path) ? model_of_directory(path) : Model{.path = path, .folder = ""});
  require(
      !out.models.empty(), ErrorCode::usage,
      "expected the directory of a run or of a model, a checkpoint or a .safetensors file to evaluate, found only {}",
      out.configuration.empty() ? "options" : "a configuration: name the file with --checkpoint FILE");
  return out;
}

/// The configuration for one model: that of its run, unless the command line names files; then the command line.
Config configure(const Request& request, const Model& model) {
  std::vector<std::string> sources;
  const bool has_files = std::ranges::any_of(request.configuration, [](const auto& c) { return !is_override(c); });
  const std::string of_run = model.folder.empty() ? "" : (fs::path(model.folder) / "config.yaml").string();
  if (!has_files && is_there(of_run)) sources.push_back(of_run);
  sources.insert(sources.end(), request.configuration.begin(), request.configuration.end());
  Config config = config::parse(sources);
  const std::string& set = config.data.validation;
  const bool is_of_run =
      sources.size() > request.configuration.size() &&
      std::ranges::none_of(request.configuration, [](const auto& c) { return c.starts_with("data.validation="); });
  require(!set.empty(), ErrorCode::usage, "there is no data set to evaluate {} on: set data.validation=FILE",
          model.path);
  require(set == "synthetic" || fs::path(set).is_absolute() || is_there(set), ErrorCode::cannot_open,
          "data.validation={}{} does not exist in the working directory {}, to which it is relative: {}set "
          "data.validation=FILE",
          set, is_of_run ? " of " + of_run : "", fs::current_path().string(),
          is_of_run ? "change to the directory in which the run was started, or " : "");
  return config;
}

/// All files that are read.
std::vector<std::string> inputs_of(const Request& request) {
  std::vector<std::string> files;
  for (const Model& model : request.models) {
    files.push_back(model.path);
    files.push_back(model.folder);
    const std::vector<std::string> more = configuration_files(request.configuration, configure(request, model));
    files.insert(files.end(), more.begin(), more.end());
  }
  return files;
}

/// Throws if the configuration describes a different model than the file contains.
void check_same_model(const Request& request, const Config& config, const Config& of_file, const std::string& path) {
  require(!config.origins.contains("model.family") || config.model.family == of_file.model.family,
          ErrorCode::checkpoint_mismatch, "{} contains a {}, but model.family is {} in the configuration", path,
          of_file.model.family, config.model.family);
  if (!request.describes_model) return;
  std::vector<std::string> differences;
  for (const auto& [key, found, wanted] :
       tasks::stamp_differences(tasks::make_task(of_file)->model_stamp(), tasks::make_task(config)->model_stamp()))
    differences.push_back(fmt::format("model.{} is {} in the file and {} in the configuration", key, found, wanted));
  require(differences.empty(), ErrorCode::checkpoint_mismatch, "{} contains another model than the configuration: {}",
          path, fmt::join(differences, ", "));
}

// -------------------------------------------------------------------------------------------------------- evaluation

struct Outcome {
  Json object;
  std::string text, picture, answers;
  bool lacks_answers = false;  // a signal stopped their generation
};

/// Determines how samples become inputs, and opens the validation set. Returns notes for the user.
std::vector<std::string> open_data(tasks::Task& task, const Config& config, const checkpoint::ModelFile& file) {
  std::vector<std::string> notes;
  if (file.state.contains("inference") || models::is_language_model(config.model.family)) {
    notes = task.adopt(file.state.value("inference", nlohmann::json::object()), file.path);
  } else if (const ConfiguredImages images = configured_images(config); images.missing.empty()) {
    notes = task.adopt(images.inference, file.path);
    notes.push_back(
        fmt::format("{} does not record the size and the normalisation of its images: they are those of "
                    "data.image_size, data.mean and data.std",
                    file.path));
  } else {
    require(!config.data.train.empty(), ErrorCode::usage,
            "{} does not record the size and the normalisation of its images: set data.train to the data set that it "
            "was trained on, or add what is missing, such as {}",
            file.path, images.missing);
    notes.push_back(fmt::format("{} does not record the size and the normalisation of its images: they are those of {}",
                                file.path, config.data.train));
    task.open_train_set();
  }
  task.open_validation_set();
  return notes;
}

std::int64_t batch_of(const Config& config, std::int64_t n_samples, int ranks) {
  if (config.evaluation.batch_per_rank > 0) return config.evaluation.batch_per_rank;
  const std::int64_t trained = train::configured_global_batch(config, ranks) / ranks;
  const std::int64_t most = trained > 0 ? std::min(trained, kMaxBatch) : kMaxBatch;
  return std::clamp<std::int64_t>((n_samples + ranks - 1) / ranks, 1, most);
}

/// Whether a language model also generates answers. If not, rank 0 reports why.
bool answers_too(const EvaluateArguments& arguments, const Config& config, const Model& model, World& world) {
  if (!models::is_language_model(config.model.family) || arguments.answers.loss_only) return false;
  const std::string& set = config.data.validation;
  if (has_answers(set)) return true;
  require(arguments.about_answers.empty(), ErrorCode::usage,
          "{} is about answers to conversations, but {} has no answers: leave it out, or make the data set with "
          "`lockstep data import chat`",
          arguments.about_answers, set);
  if (world.rank() == 0)
    log::info("{} has no answers, so {} is evaluated for its loss only", printable(set), printable(model.path));
  return false;
}

Outcome evaluate_model(const EvaluateArguments& arguments, const Request& request, const Model& model, World& world) {
  Config config = configure(request, model);
  stop_if_requested(world);
  const checkpoint::ModelFile file =
      inference::with_base(checkpoint::read_model_file(model.path, request.weights), inference::base_of(config.model));
  Config of_file = config;
  inference::set_model(of_file, file);
  check_same_model(request, config, of_file, model.path);
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
  const bool has_answers = answers_too(arguments, config, model, world);
  const std::shared_ptr<const data::Dataset> set = task->validation_set();
  auto inference = std::make_unique<inference::Inference>(config, *task, set->fields(), *backend,
                                                          batch_of(config, set->info().n_samples, world.size()));
  inference->load(file);
  const Clock::time_point begin = Clock::now();
  const inference::Evaluation result =
      inference::evaluate(*inference, config, *task, set, *backend, world, "evaluation");
  const double seconds = seconds_since(begin);
  inference.reset();  // frees its memory before the generator allocates its own

  const tasks::CountUnit& unit = task->count_unit();
  const auto count = static_cast<std::int64_t>(result.sums.count);
  const double loss_rate = result.sums.count / seconds;
  const double rate = task->processed_count(inference::evaluated_samples(config, *set)) / seconds;
  const Json step = file.state.contains("step") ? Json(file.state["step"]) : Json();
  Outcome out{.object = {{"event", "evaluation"}, {"checkpoint", model.path}, {"step", step}, {unit.name, count}},
              .text = {},
              .picture = result.tally->picture(model.path),
              .answers = {}};
  std::string measures;
  for (const tasks::Measure& measure : task->measures()) {
    const double value = measure.of(result.sums);
    out.object[measure.key] = value;
    measures +=
        fmt::format("{}{} {}", measures.empty() ? "" : ", ", measure.key, measure.text(value, measure.result_digits));
  }
  if (const std::string summary = result.tally->summary(); !summary.empty()) measures += ", " + summary;
  if (arguments.averages) out.object["ema"] = true;
  out.object.update({{"seconds", seconds}, {unit.rate_key, rate}});
  if (unit.counts_part) out.object[unit.loss_rate_key()] = loss_rate;
  out.object["ranks"] = world.size();
  out.object.update(result.tally->json());
  out.text = fmt::format("{}{}{} on {}: {} of {} {}, {}\n{}", model.path,
                         step.is_null() ? "" : fmt::format(" (step {})", step.dump()),
                         arguments.averages ? ", average of the weights," : "", set->info().path, measures, count,
                         unit.name, unit.rate_text(rate, loss_rate), result.tally->text());
  if (!has_answers) return out;
  try {
    AnswersOutcome answers = evaluate_answers(arguments.answers, config, file, *backend, world);
    out.object["answers"] = std::move(answers.object);
    out.text += answers.text;
    out.answers = std::move(answers.lines);
  } catch (const StoppedBySignal&) {
    out.lacks_answers = true;
  }
  return out;
}

int run_evaluation(const EvaluateArguments& arguments, const Arguments& program) {
  const Request request = understand(arguments);
  const std::string& picture_file = arguments.confusion;
  require(picture_file.empty() || picture_file.ends_with(".svg") ||
              (fs::exists(picture_file) && !fs::is_regular_file(picture_file) && !fs::is_directory(picture_file)),
          ErrorCode::usage, "--confusion writes an SVG picture: expected a name that ends in .svg, found {}",
          picture_file);
  require(arguments.confusion.empty() || request.models.size() == 1, ErrorCode::usage,
          "--confusion FILE draws one model, found {}", request.models.size());
  require(arguments.answers.file.empty() || request.models.size() == 1, ErrorCode::usage,
          "--answers FILE has the answers of one model, found {}", request.models.size());
  check_outputs({arguments.json, arguments.confusion, arguments.answers.file}, inputs_of(request));
  check_writable({arguments.json, arguments.confusion, arguments.answers.file});
  const Config first = configure(request, request.models.front());
  hdf5::version();  // initialises HDF5 before MPI, as in train
  World& world = *(current_world() = comm::start_world(program.argc, program.argv, first.comm.watchdog_seconds));
  log::configure(world.rank(), world.size(), world.host(), first.log.all_ranks);
  Json objects = Json::array();
  std::string text, picture, answers;
  int status = kExitDone;
  try {
    for (const Model& model : request.models) {
      Outcome outcome = evaluate_model(arguments, request, model, world);
      text += (text.empty() ? "" : "\n") + outcome.text;
      objects.push_back(std::move(outcome.object));
      picture = std::move(outcome.picture);
      answers = std::move(outcome.answers);
      if (outcome.lacks_answers) throw StoppedBySignal{};
    }
  } catch (const StoppedBySignal&) {
    status = kExitStopped;
  }
  if (world.rank() != 0) return status;
  if (status == kExitStopped)
    log::warning("stopped by a signal: the results {}; rerun the command",
                 objects.empty() ? "are missing" : "are incomplete");
  if (objects.empty()) return status;
  require(arguments.confusion.empty() || !picture.empty(), ErrorCode::usage,
          "--confusion: {} is a language model, which has no confusion matrix", request.models.front().path);
  if (!arguments.confusion.empty()) write_result(arguments.confusion, picture);
  if (!arguments.answers.file.empty()) write_result(arguments.answers.file, answers);
  report(arguments.json, request.models.size() == 1 ? objects.front() : Json{{"evaluations", objects}}, text);
  return status;
}

int run_choices(const EvaluateArguments& a, const Arguments& program) {
  require(a.checkpoints.size() <= 1, ErrorCode::usage, "--choices evaluates one model, found {} with --checkpoint",
          a.checkpoints.size());
  require(a.confusion.empty(), ErrorCode::usage,
          "--confusion draws the classes of images, and --choices evaluates a language model: leave out one of them");
  return evaluate_choices({.model = {.operands = a.operands,
                                     .checkpoint = a.checkpoints.empty() ? "" : a.checkpoints.front(),
                                     .tokenizer = a.tokenizer,
                                     .averages = a.averages},
                           .choices = a.choices,
                           .answers = a.answers.file,
                           .json = a.json},
                          program);
}

/// Throws usage where options contradict each other.
void check(const EvaluateArguments& a) {
  require(!a.choices.empty() || a.tokenizer.empty(), ErrorCode::usage,
          "--tokenizer is for the questions of --choices: give --choices FILE");
  require(!a.answers.loss_only || a.about_answers.empty(), ErrorCode::usage,
          "--loss-only generates no answers, and {} is about them: leave out one of them", a.about_answers);
  require(a.choices.empty() || (!a.answers.loss_only && (a.about_answers.empty() || a.about_answers == "--answers")),
          ErrorCode::usage, "--choices generates no answers: leave out {}",
          a.answers.loss_only ? "--loss-only" : a.about_answers);
}

void add_text_options(CLI::App& command, EvaluateArguments& a) {
  AnswersArguments& answers = a.answers;
  const auto whole = [&](const char* name, std::int64_t& value, std::int64_t most, const char* text) {
    command.add_option(name, value, text)
        ->check(CLI::Range(std::int64_t{1}, most))
        ->type_name("N")
        ->capture_default_str();
  };
  command.add_flag("--loss-only", answers.loss_only, "Conversations: evaluate the loss, and generate no answers");
  command
      .add_option("--answers", answers.file,
                  "Conversations: write prompts, answers and references into this file; --choices: the questions with "
                  "the log probabilities of their choices")
      ->type_name("FILE.jsonl");
  whole("--beams", answers.beams, 64, "Conversations: answer by beam search with N beams");
  whole("--max-new-tokens", answers.max_new_tokens, std::numeric_limits<std::int32_t>::max(),
        "Conversations: maximum number of new tokens in an answer");
  whole("--batch", answers.batch, 1024, "Batch size: conversations that a rank processes at the same time");
  command.add_flag_callback(
      "--stem", [&answers] { answers.stemming = text::Stemming::porter; },
      "Conversations: ROUGE of the stems of words, as rouge_score with use_stemmer");
  command
      .add_option("--choices", a.choices,
                  "Multiple-choice questions, one JSON object per line: evaluate a language model on them instead")
      ->type_name("FILE.jsonl");
  command.add_option("--tokenizer", a.tokenizer, "With --choices: another tokenizer than the model's")
      ->type_name("PATH");
}

}  // namespace

void add_evaluate(CLI::App& app, Run& run, const Arguments& program) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command = app.add_subcommand("evaluate", "Evaluate runs, checkpoints and .safetensors files");
  command
      ->add_option("MODEL", arguments->operands,
                   "Run directories, checkpoints, .safetensors files, directories of Hugging Face; YAML files and "
                   "key=value overrides")
      ->required();
  command->add_option("--checkpoint", arguments->checkpoints, "A checkpoint or .safetensors file to evaluate")
      ->allow_extra_args(false);
  command->add_option("--confusion", arguments->confusion, "Draw the confusion matrix as an SVG picture into this file")
      ->type_name("FILE.svg");
  command->add_flag("--ema", arguments->averages, "Evaluate the moving averages of the weights (ema.decay)");
  add_text_options(*command, *arguments);
  add_json(*command, arguments->json);
  command->callback([arguments, &run, program, command] {
    EvaluateArguments a = *arguments;
    for (const char* option : {"--answers", "--beams", "--max-new-tokens", "--batch", "--stem"})
      if (a.about_answers.empty() && command->count(option) > 0) a.about_answers = option;
    check(a);
    run = [a, program] {
      catch_stop_signals();
      try {
        return a.choices.empty() ? run_evaluation(a, program) : run_choices(a, program);
      } catch (const StoppedBySignal&) {
        if (current_world()->rank() == 0) log::warning("stopped by a signal: nothing is written; rerun the command");
        return kExitStopped;
      }
    };
  });
}

}  // namespace lockstep::commands
