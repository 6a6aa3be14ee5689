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
#include "base/failure.h"
#include "base/file.h"
#include "base/signals.h"
#include "checkpoint/model_file.h"
#include "commands/commands.h"
#include "commands/evaluate_text.h"
#include "commands/job.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "config/parser.h"
#include "inference/adapters.h"
#include "inference/inference.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "models/family.h"
#include "run/run_directory.h"
#include "tasks/task.h"
#include "train/batch_shape.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxBatch =
    128;  // samples per rank, unless evaluation.batch_per_rank is set. A signal ends an evaluation after a batch

// ------------------------------------------------------------------------------------------------- what is evaluated

/// Whether the configuration describes the model: it has files, or keys of the model but its family. model.from also
/// names the base of adapters.
bool describes_model(const NamedModels& named) {
  return named.has_files || std::ranges::any_of(named.configuration, [](const std::string& c) {
           return c.starts_with("model.") && !c.starts_with("model.from=") && !c.starts_with("model.family=") &&
                  !c.starts_with("model.ignore_keys=");
         });
}

/// RUN/config.yaml, with which a model of a run is evaluated; empty if there is none.
std::string configuration_of_run(const NamedModel& model) {
  const std::string file = model.run + "/config.yaml";
  return !model.is_option && !model.run.empty() && is_there(file) ? file : "";
}

/// The configuration for one model: that of its run, unless the command line names files; then the command line.
Config configure(const NamedModels& named, const NamedModel& model) {
  std::vector<std::string> sources;
  const std::string of_run = configuration_of_run(model);
  const bool uses_run = !named.has_files && !of_run.empty();
  if (uses_run) sources.push_back(of_run);
  sources.insert(sources.end(), named.configuration.begin(), named.configuration.end());
  Config config = config::parse(sources);
  const std::string& set = config.data.validation;
  const bool is_of_run = uses_run && std::ranges::none_of(named.configuration, [](const std::string& c) {
                           return c.starts_with("data.validation=");
                         });
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
std::vector<std::string> inputs_of(const NamedModels& named) {
  std::vector<std::string> files;
  for (const NamedModel& model : named.models) {
    files.insert(files.end(), {model.path, model.run});
    std::ranges::copy(configuration_files(named.configuration, configure(named, model)), std::back_inserter(files));
  }
  return files;
}

/// Throws if the configuration describes a different model than the file contains.
void check_same_model(const NamedModels& named, const Config& config, const Config& of_file, const std::string& path) {
  require(!config.origins.contains("model.family") || config.model.family == of_file.model.family,
          ErrorCode::checkpoint_mismatch, "{} contains a {}, but model.family is {} in the configuration", path,
          of_file.model.family, config.model.family);
  if (!describes_model(named)) return;
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
bool answers_too(const EvaluateArguments& arguments, const Config& config, const NamedModel& model, World& world) {
  if (!models::is_language_model(config.model.family) || arguments.answers.loss_only) return false;
  const std::string& set = config.data.validation;
  if (tasks::has_answers(set)) return true;
  require(arguments.about_answers.empty(), ErrorCode::usage,
          "{} is about answers to conversations, but {} has no answers: leave it out, or make the data set with "
          "`lockstep data import chat`",
          arguments.about_answers, set);
  if (world.rank() == 0)
    log::info("{} has no answers, so {} is evaluated for its loss only", printable(set), printable(model.path));
  return false;
}

Outcome evaluate_model(const EvaluateArguments& arguments, const NamedModels& named, const NamedModel& model,
                       World& world) {
  Config config = configure(named, model);
  stop_if_requested(world);
  checkpoint::ModelFile own = checkpoint::read_model_file(model.path, arguments.model.weights);
  const auto weights_hash = std::make_shared<std::string>();  // when they have been read
  inference::hash_while_read(own.tensors, [weights_hash](const std::string& hash) { *weights_hash = hash; });
  const checkpoint::ModelFile file = inference::with_base(std::move(own), inference::base_of(config.model));
  Config of_file = config;
  inference::set_model(of_file, file);
  check_same_model(named, config, of_file, model.path);
  config.model = of_file.model;
  const std::unique_ptr<tasks::Task> task = tasks::make_task(config);
  const std::vector<std::string> notes = open_data(*task, config, file);
  if (world.rank() == 0)
    for (const std::string& note : notes) log::info("{}", note);
  const auto backend = open_model_backend(config, file);
  const bool has_answers = answers_too(arguments, config, model, world);
  const std::shared_ptr<const data::Dataset> set = task->validation_set();
  auto inference = std::make_unique<inference::Inference>(config, *task, set->fields(), *backend,
                                                          batch_of(config, set->info().n_samples, world.size()));
  inference->load(file, world);
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
  const bool is_average = arguments.model.weights == checkpoint::WeightsOf::averages;
  if (is_average) out.object["ema"] = true;
  out.object.update({{"seconds", seconds}, {unit.rate_key, rate}});
  if (unit.counts_part) out.object[unit.loss_rate_key()] = loss_rate;
  out.object["ranks"] = world.size();
  out.object.update(result.tally->json());
  out.text = fmt::format("{}{}{} on {}: {} of {} {}, {}\n{}", model.path,
                         step.is_null() ? "" : fmt::format(" (step {})", step.dump()),
                         is_average ? ", average of the weights," : "", set->info().path, measures, count, unit.name,
                         unit.rate_text(rate, loss_rate), result.tally->text());
  if (!has_answers) return out;
  try {
    world.broadcast_text(*weights_hash);  // only the ranks that read have it
    const bool is_of_run = !model.run.empty() && !step.is_null();
    AnswersOutcome answers = evaluate_answers(
        arguments.answers, config,
        {.file = file,
         .weights_hash = *weights_hash,
         .base_hash = file.state.value("base", checkpoint::StateJson::object()).value("hash", std::string()),
         .stamp = task->model_stamp().dump(),
         .known_answers =
             is_of_run ? run::answers_path(model.run, step.get<std::int64_t>(), is_average) : std::string()},
        *backend, world);
    out.object["answers"] = std::move(answers.object);
    out.text += answers.text;
    out.answers = std::move(answers.lines);
  } catch (const StoppedBySignal&) {
    out.lacks_answers = true;
  }
  return out;
}

int run_evaluation(const EvaluateArguments& arguments, const Arguments& program) {
  const NamedModels named = named_models(arguments.model);
  const std::string& picture_file = arguments.confusion;
  require(picture_file.empty() || picture_file.ends_with(".svg") ||
              (fs::exists(picture_file) && !fs::is_regular_file(picture_file) && !fs::is_directory(picture_file)),
          ErrorCode::usage, "--confusion writes an SVG picture: expected a name that ends in .svg, found {}",
          picture_file);
  require(arguments.confusion.empty() || named.models.size() == 1, ErrorCode::usage,
          "--confusion FILE draws one model, found {}", named.models.size());
  require(arguments.answers.file.empty() || named.models.size() == 1, ErrorCode::usage,
          "--answers FILE has the answers of one model, found {}", named.models.size());
  check_outputs({arguments.json, arguments.confusion, arguments.answers.file}, inputs_of(named));
  check_writable({arguments.json, arguments.confusion, arguments.answers.file});
  World& world = start_ranks(program, configure(named, named.models.front()));
  Json objects = Json::array();
  std::string text, picture, answers;
  int status = kExitDone;
  try {
    for (const NamedModel& model : named.models) {
      Outcome outcome = evaluate_model(arguments, named, model, world);
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
          "--confusion: {} is a language model, which has no confusion matrix", named.models.front().path);
  if (!arguments.confusion.empty()) write_result(arguments.confusion, picture);
  if (!arguments.answers.file.empty()) write_result(arguments.answers.file, answers);
  report(arguments.json, named.models.size() == 1 ? objects.front() : Json{{"evaluations", objects}}, text);
  return status;
}

/// Throws usage where options contradict each other.
void check(const EvaluateArguments& a) {
  require(!a.choices.empty() || a.model.tokenizer.empty(), ErrorCode::usage,
          "--tokenizer is for the questions of --choices: give --choices FILE");
  require(!a.answers.loss_only || a.about_answers.empty(), ErrorCode::usage,
          "--loss-only generates no answers, and {} is about them: leave out one of them", a.about_answers);
  require(a.choices.empty() || (!a.answers.loss_only && (a.about_answers.empty() || a.about_answers == "--answers")),
          ErrorCode::usage, "--choices generates no answers: leave out {}",
          a.answers.loss_only ? "--loss-only" : a.about_answers);
  require(a.choices.empty() || a.confusion.empty(), ErrorCode::usage,
          "--confusion draws the classes of images, and --choices evaluates a language model: leave out one of them");
}

void add_text_options(CLI::App& command, EvaluateArguments& a) {
  AnswersArguments& answers = a.answers;
  command.add_flag("--loss-only", answers.loss_only, "Conversations: evaluate the loss, and generate no answers");
  add_value(command, "--answers", "FILE.jsonl", answers.file,
            "Conversations: write prompts, answers and references into this file; --choices: the questions with "
            "the log probabilities of their choices");
  add_number(
      command, "--beams", answers.beams, 1, 64,
      "Conversations: answer by beam search with N beams (evaluation.beams with evaluation.answers, otherwise 1)");
  add_number(
      command, "--max-new-tokens", answers.max_new_tokens, 1, std::numeric_limits<std::int32_t>::max(),
      "Conversations: maximum number of new tokens in an answer (evaluation.answer_tokens with evaluation.answers, "
      "otherwise 256)");
  add_number(command, "--batch", answers.batch, 1, 1024,
             "Batch size: conversations that a rank processes at the same time");
  command.add_flag_callback(
      "--stem", [&answers] { answers.stemming = text::Stemming::porter; },
      "Conversations: ROUGE of the stems of words, as rouge_score with use_stemmer");
  add_value(command, "--choices", "FILE.jsonl", a.choices,
            "Multiple-choice questions, one JSON object per line: evaluate a language model on them instead");
  add_value(command, "--tokenizer", "PATH", a.model.tokenizer, "With --choices: another tokenizer than the model's");
}

}  // namespace

void add_evaluate(CLI::App& app, Run& run, const Arguments& program) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command = app.add_subcommand("evaluate", "Evaluate runs, checkpoints and .safetensors files");
  add_required(*command, "MODEL", arguments->model.operands,
               "Run directories, checkpoints, .safetensors files, directories of Hugging Face; YAML files and "
               "key=value overrides");
  command->add_option("--checkpoint", arguments->model.checkpoints, "A checkpoint or .safetensors file to evaluate")
      ->allow_extra_args(false);
  add_value(*command, "--confusion", "FILE.svg", arguments->confusion,
            "Draw the confusion matrix as an SVG picture into this file");
  add_averages(*command, arguments->model.weights, "Evaluate the moving averages of the weights");
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
        return a.choices.empty() ? run_evaluation(a, program) : evaluate_choices(a, program);
      } catch (const StoppedBySignal&) {
        if (current_world()->rank() == 0) log::warning("stopped by a signal: nothing is written; rerun the command");
        return kExitStopped;
      }
    };
  });
}

}  // namespace lockstep::commands
