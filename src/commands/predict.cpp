// lockstep predict: the most probable classes of image files, according to a run, a checkpoint or a .safetensors file.
//
// The file records everything that is needed: the model, how images become inputs, and the names of the classes. Images
// are decoded, resized and normalised by the same code as for validation, so that predictions equal those of
// `evaluate`.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file.h"
#include "base/numbers.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/progress_bar.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "config/parser.h"
#include "data/file.h"
#include "data/image_files.h"
#include "inference/inference.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "models/family.h"
#include "run/metrics.h"
#include "tasks/image_classification/description.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kTop = 5;             // classes that are reported for each image
constexpr std::int64_t kMaxBatch = 64;      // images, unless evaluation.batch_per_rank is set
constexpr int kMaxReaders = 8;              // threads that decode
constexpr std::size_t kMaxFileColumn = 60;  // characters

struct PredictArguments {
  std::string model, json, csv;
  std::vector<std::string> operands;
  checkpoint::WeightsOf weights = checkpoint::WeightsOf::model;
};

// ----------------------------------------------------------------------------------------------------- what is read

struct Request {
  std::vector<std::string> files, overrides;
  std::vector<data::FolderListing::Unread> unread;  // folders
};

void add_folder(const std::string& folder, Request& out) {
  data::FolderListing found = data::list_readable_files(folder, data::has_image_name);
  require(!found.files.empty() || !found.unread.empty(), ErrorCode::usage,
          "{} contains no images: expected *.jpg, *.jpeg or *.png files in the folder or in its subfolders", folder);
  std::ranges::move(found.files, std::back_inserter(out.files));
  std::ranges::move(found.unread, std::back_inserter(out.unread));
}

Request understand(const PredictArguments& arguments) {
  Request out;
  for (const std::string& operand : arguments.operands) {
    if (operand == "-") {
      for (std::string line; std::getline(std::cin, line);)
        if (!line.empty()) out.files.push_back(line);
    } else if (is_folder(operand)) {
      add_folder(operand, out);
    } else if (is_override(operand)) {
      out.overrides.push_back(operand);
    } else {
      out.files.push_back(operand);
    }
  }
  if (out.files.empty() && !out.unread.empty())
    fail(ErrorCode::data_source, "cannot list {}: {}", out.unread.front().path, out.unread.front().reason);
  require(!out.files.empty(), ErrorCode::usage,
          "expected the images to predict: files, folders, or - to read the names of files from standard input");
  return out;
}

/// All files that are read, possibly including standard input.
std::vector<std::string> inputs_of(const PredictArguments& arguments, const Request& request,
                                   const std::string& model) {
  std::vector<std::string> files = request.files;
  files.push_back(model);
  if (std::ranges::find(arguments.operands, "-") != arguments.operands.end()) files.push_back("/dev/stdin");
  return files;
}

// ------------------------------------------------------------------------------------------------------ the model

/// The description of images in the model file. If the file has none, the overrides describe them.
nlohmann::json inference_of(const checkpoint::ModelFile& file, const Config& config) {
  if (file.state.contains("inference")) return file.state["inference"];
  const ConfiguredImages images = configured_images(config);
  require(images.missing.empty(), ErrorCode::usage,
          "{} does not record the size and the normalisation of its images: add what is missing, such as {}", file.path,
          images.missing);
  return images.inference;
}

// ---------------------------------------------------------------------------------------------------- predictions

struct Ranked {
  int index = 0;
  double probability = 0;
};

/// The classes with the greatest outputs, and their softmax probabilities. Among equal outputs, the lower class comes
/// first, as in `evaluate`.
std::vector<Ranked> top_of(std::span<const float> outputs) {
  std::vector<int> order(outputs.size());
  std::iota(order.begin(), order.end(), 0);
  const auto output = [&](int k) { return outputs[static_cast<std::size_t>(k)]; };
  const auto rank = [&](int k) { return std::isnan(output(k)) ? -INFINITY : output(k); };
  const std::size_t n = std::min(kTop, order.size());
  std::ranges::stable_sort(order, std::ranges::greater(), rank);
  double sum = 0;
  for (const float v : outputs) sum += std::exp(double{v} - double{output(order[0])});
  std::vector<Ranked> top;
  for (std::size_t i = 0; i < n; ++i)
    top.push_back({order[i], std::exp(double{output(order[i])} - double{output(order[0])}) / sum});
  return top;
}

struct Prediction {
  std::string file;
  std::vector<Ranked> top;  // empty: the file was skipped
  std::string problem;
};

/// Reads, decodes and predicts the files in batches, while reader threads prepare the next ones.
std::vector<Prediction> predict(inference::Inference& inference, std::vector<std::string> files,
                                std::shared_ptr<const data::ImageFiles> set, Backend& backend) {
  const auto n = static_cast<std::int64_t>(files.size());
  const std::int64_t batch = inference.capacity(), steps = (n + batch - 1) / batch;
  data::Loader loader(set, {.global_batch = batch,
                            .capacity = batch,
                            .shuffle = false,
                            .drop_last = false,
                            .readers = std::clamp(n_usable_processors(), 1, kMaxReaders),
                            .prefetch = 2,
                            .last_step = steps,
                            .backend = &backend});
  ProgressBar bar("predict", n, true);
  std::vector<Prediction> out;
  for (std::int64_t step = 0; step < steps; ++step) {
    const data::Batch& images = loader.next();
    const std::span<const float> outputs = inference.run(images).outputs;
    const auto n_outputs = static_cast<std::size_t>(inference.n_outputs());
    for (std::size_t i = 0; i < static_cast<std::size_t>(images.n_samples); ++i) {
      const std::size_t sample = out.size();
      Prediction prediction{.file = std::move(files[sample]), .top = {}, .problem = {}};
      prediction.problem = set->problem(static_cast<std::int64_t>(sample));
      if (prediction.problem.empty()) prediction.top = top_of(outputs.subspan(i * n_outputs, n_outputs));
      out.push_back(std::move(prediction));
    }
    bar.update(static_cast<std::int64_t>(out.size()), "");
  }
  return out;
}

// --------------------------------------------------------------------------------------------------------- report

class Report {
 public:
  Report(std::string model, std::vector<std::string> class_names) : model_(std::move(model)), names_(class_names) {}

  std::string text(const std::vector<Prediction>& predictions) const {
    std::size_t file_width = 4, class_width = 5;
    for (const Prediction& p : predictions) {
      if (p.top.empty()) continue;
      file_width = std::max(file_width, std::min(printable(p.file).size(), kMaxFileColumn));
      class_width = std::max(class_width, shown_name(p.top[0].index).size());
    }
    std::string out =
        fmt::format("{:<{}}  {:<{}}  {:>11}  {}\n", "file", file_width, "class", class_width, "probability", "next");
    for (const Prediction& p : predictions) {
      if (p.top.empty()) continue;
      std::vector<std::string> next;
      for (const Ranked& r : std::span(p.top).subspan(1))
        next.push_back(fmt::format("{} {:.2f}%", shown_name(r.index), 100 * r.probability));
      out += fmt::format("{:<{}}  {:<{}}  {:>10.2f}%  {}\n", printable(p.file), file_width, shown_name(p.top[0].index),
                         class_width, 100 * p.top[0].probability, fmt::join(next, ", "));
    }
    return out;
  }

  Json json(const std::vector<Prediction>& predictions, const Json& step) const {
    Json found = Json::array(), skipped = Json::array();
    for (const Prediction& p : predictions) {
      if (p.top.empty()) {
        skipped.push_back({{"file", p.file}, {"reason", p.problem}});
        continue;
      }
      Json top = Json::array();
      for (const Ranked& r : p.top)
        top.push_back({{"class", name(r.index)}, {"index", r.index}, {"probability", r.probability}});
      Json object{{"file", p.file}};
      object.update(top[0]);
      object["top"] = top;
      found.push_back(std::move(object));
    }
    return {{"checkpoint", model_}, {"step", step}, {"predictions", found}, {"skipped", skipped}};
  }

  std::string csv(const std::vector<Prediction>& predictions) const {
    std::size_t n_top = 1;
    for (const Prediction& p : predictions) n_top = std::max(n_top, p.top.size());
    std::string out = "file,class,probability";
    for (std::size_t i = 2; i <= n_top; ++i) out += fmt::format(",class_{0},probability_{0}", i);
    out += "\n";
    for (const Prediction& p : predictions) {
      if (p.top.empty()) continue;
      out += quoted(p.file);
      for (const Ranked& r : p.top) out += fmt::format(",{},{:.6g}", quoted(name(r.index)), r.probability);
      out += "\n";
    }
    return out;
  }

 private:
  std::string name(int index) const {
    const auto at = static_cast<std::size_t>(index);
    return at < names_.size() ? names_[at] : fmt::format("class {}", index);
  }
  std::string shown_name(int index) const { return printable(name(index), kMaxColumnBytes); }
  /// RFC 4180
  static std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
  }

  std::string model_;
  std::vector<std::string> names_;
};

int run_predict(const PredictArguments& arguments) {
  require(arguments.json != "-" || arguments.csv != "-", ErrorCode::usage,
          "--json and --csv cannot both be printed: give one of them a file, as in --csv=FILE");
  Request request = understand(arguments);
  Config config = config::parse(request.overrides);
  const std::string model = is_folder(arguments.model) ? checkpoint_of_run(arguments.model) : arguments.model;
  check_outputs({arguments.json, arguments.csv}, inputs_of(arguments, request, model));
  const checkpoint::ModelFile file = checkpoint::read_model_file(model, arguments.weights);
  inference::set_model(config, file);
  require(!models::is_language_model(config.model.family), ErrorCode::usage,
          "predict classifies images, but {} is a language model; `lockstep evaluate` reports its loss", model);
  const auto backend = open_model_backend(config, file);
  const std::unique_ptr<tasks::Task> task = tasks::make_task(config);
  for (const std::string& note : task->adopt(inference_of(file, config), file.path)) log::info("{}", note);
  const tasks::ImageDescription input =
      tasks::image_description(task->inference_stamp(), config.model.classes, file.path);
  const auto n = static_cast<std::int64_t>(request.files.size());
  // A model whose training images were stored at its input size gets other images without a border crop: only the
  // excess of the longer side is cut off.
  const auto set = std::make_shared<const data::ImageFiles>(
      request.files, data::ImageFilesOptions{.height = input.height,
                                             .width = input.width,
                                             .channels = input.channels,
                                             .resize = input.resize > 0 ? input.resize : input.height});
  const std::int64_t batch =
      config.evaluation.batch_per_rank > 0 ? config.evaluation.batch_per_rank : std::min(n, kMaxBatch);
  inference::Inference inference(config, *task, set->fields(), *backend, batch);
  inference.load(file, *comm::single_world());
  std::vector<Prediction> predictions = predict(inference, std::move(request.files), set, *backend);
  for (const auto& [path, reason] : request.unread)
    predictions.push_back({.file = path, .top = {}, .problem = fmt::format("cannot list {}: {}", path, reason)});

  std::size_t n_skipped = 0;
  for (const Prediction& p : predictions) {
    if (p.problem.empty()) continue;
    ++n_skipped;
    const bool names_file = p.problem.find(p.file) != std::string::npos;
    log::warning("skipped: {}", names_file ? p.problem : fmt::format("{}: {}", p.file, p.problem));
  }
  const Report results(file.path, input.class_names);
  std::string text;
  if (arguments.csv.empty()) {
    text = results.text(predictions);
  } else if (arguments.csv == "-") {
    text = results.csv(predictions);
  } else {
    write_result(arguments.csv, results.csv(predictions));
    text = fmt::format("{}: {}\n", arguments.csv, counted(predictions.size() - n_skipped, "prediction"));
  }
  const Json step = file.state.contains("step") ? Json(file.state["step"]) : Json();
  report(arguments.json, results.json(predictions, step), text);
  if (n_skipped > 0)
    log::warning("{} of {} {} were skipped", n_skipped, predictions.size(),
                 request.unread.empty() ? "files" : "files and folders");
  return n_skipped > 0 ? kExitFailed : kExitDone;
}

}  // namespace

void add_predict(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<PredictArguments>();
  CLI::App* command = app.add_subcommand("predict", "Predict the classes of image files");
  add_required(*command, "MODEL", arguments->model,
               "The directory of a run, of which the best checkpoint is taken, a checkpoint or a .safetensors file");
  add_required(*command, "FILE", arguments->operands,
               "JPEG and PNG files, folders with such files, or - to read names of files from standard input; and "
               "key=value overrides, such as device=cpu");
  add_averages(*command, arguments->weights, "Predict with the moving averages of the weights");
  add_json(*command, arguments->json);
  command->add_flag("--csv{-}", arguments->csv,
                    "Print comma-separated values instead of the table, or with --csv=FILE write them to that file");
  command->footer("Files that cannot be read are named and skipped, and the exit status is then 1.");
  set_run(*command, run, [arguments] { return run_predict(*arguments); });
}

}  // namespace lockstep::commands
