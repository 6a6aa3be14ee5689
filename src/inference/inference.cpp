#include "inference/inference.h"

#include <algorithm>
#include <cstring>

#include "base/progress_bar.h"
#include "base/signals.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "checkpoint/tensor_stream.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "models/family.h"
#include "models/llama_tensors.h"
#include "models/resnet_table.h"
#include "tasks/language_modelling/model_source.h"

namespace lockstep::inference {

namespace {

void check_place(const checkpoint::ModelFile& file, const std::string& name, const Shape& expected,
                 const checkpoint::NamedTensor* found) {
  require(found != nullptr, ErrorCode::checkpoint_mismatch, "{} has no tensor {} of shape {}, which the model needs",
          file.path, name, expected.text());
  require(found->shape == expected, ErrorCode::checkpoint_mismatch,
          "{} of {} has the shape {}; the model needs the shape {}", name, file.path, found->shape.text(),
          expected.text());
}

/// Returns null if there is no tensor of this name.
const checkpoint::NamedTensor* find(const checkpoint::ModelFile& file, const std::string& name) {
  const auto found = std::ranges::find(file.tensors, name, &checkpoint::NamedTensor::name);
  return found == file.tensors.end() ? nullptr : &*found;
}

}  // namespace

models::TensorShapes shapes_of(const std::vector<checkpoint::NamedTensor>& tensors) {
  models::TensorShapes shapes;
  for (const checkpoint::NamedTensor& tensor : tensors) shapes[tensor.name] = tensor.shape;
  return shapes;
}

Config parse_recorded(const std::vector<std::string>& keys, const std::string& path) {
  constexpr std::string_view kPlace = "command line: ";  // the place of overrides in messages
  try {
    return config::parse(keys);
  } catch (const Error& error) {
    std::string_view problem = error.what();
    if (problem.starts_with(kPlace)) problem.remove_prefix(kPlace.size());
    fail(ErrorCode::checkpoint_damaged, "{} describes its model wrongly: {}", path, problem);
  }
}

void check_tensors(const Config::Model& model, const checkpoint::ModelFile& file) {
  if (models::is_language_model(model.family) && !file.config.empty())
    models::check_llama_tensors(tasks::model_source(model), shapes_of(file.tensors), file.path);
}

void fix_order_for_inference(graph::ParameterTable& table) {
  std::vector<graph::ParameterId> order;
  for (std::size_t i = 0; i < table.parameters().size(); ++i)
    if (table.parameters()[i].trainable) order.push_back(static_cast<graph::ParameterId>(i));
  table.fix_order(order);
}

void set_model(Config& config, const checkpoint::ModelFile& file) {
  Config::Model model;
  if (file.state.contains("model")) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : file.state["model"].items())
      keys.push_back(fmt::format("model.{}={}", key, value.dump()));
    model = parse_recorded(keys, file.path).model;
  } else if (!file.config.empty()) {
    const std::string path = file.path + "/" + checkpoint::kHuggingFaceConfig;
    const models::LlamaConfig described = models::parse_llama_config(file.config, path, config.model.ignore_keys);
    models::check_llama_tensors(described, shapes_of(file.tensors), file.path);
    model.family = "llama";
    model.config = models::to_json(described).dump();
  } else {
    const models::TensorShapes shapes = shapes_of(file.tensors);
    require(!models::has_llama_names(shapes), ErrorCode::checkpoint_mismatch,
            "{} contains the weights of a language model, which {} describes: give the directory that contains both",
            file.path, checkpoint::kHuggingFaceConfig);
    model = models::infer_resnet(shapes, file.path);
  }
  config.model = model;
}

Inference::Inference(const Config& config, const tasks::Task& task, std::span<const data::Field> fields,
                     Backend& backend, std::int64_t capacity)
    : backend_(backend), capacity_(capacity), stream_(backend.make_stream()) {
  const DType dtype = storage_type(config.precision);
  graph_ = std::make_unique<graph::Graph>(graph::GraphOptions{.mode = graph::Mode::inference,
                                                              .dtype = dtype,
                                                              .tf32 = config.precision == Precision::tf32,
                                                              .batch = capacity,
                                                              .layout_batch = capacity},
                                          table_);
  tasks::Wiring wiring{.fields = {}, .shapes = {}, .global_batch = capacity};
  for (const data::Field& field : fields) {
    batch_.push_back(field);
    const std::size_t size_bytes = static_cast<std::size_t>(capacity) * field.size_bytes();
    fields_.push_back(graph_->memory().add(field.name, size_bytes, /*persistent=*/true));
    wiring.fields[field.name] = fields_.back();
    wiring.shapes[field.name] = field.shape;
  }
  wiring.sums_offset = graph_->add_exchange(sizeof(LossSums));
  const graph::ActivationId output = task.wire(*graph_, wiring);
  graph_->plan(backend);
  fix_order_for_inference(table_);
  // Only the loss follows, which writes no tensor, so the outputs still exist at the end.
  const graph::Activation& activation = graph_->activation(output);
  output_ = activation.data;
  n_outputs_ = activation.shape.n_elements() / capacity;
  require(activation.dtype == DType::fp32 && output_ != graph::kNoTensor, ErrorCode::internal,
          "the outputs of the model are not stored in fp32");
  const std::size_t slot_bytes =
      graph::aligned(sizeof(LossSums) + static_cast<std::size_t>(capacity * n_outputs_) * sizeof(float));
  host_memory_ = backend.allocate_host(slots_.size() * slot_bytes, "outputs");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].host = static_cast<std::byte*>(host_memory_->data()) + i * slot_bytes;
    slots_[i].done = backend.make_event();
  }
  captured_ = backend.make_captured_graph();

  parameters_ = std::make_unique<graph::ParameterArena>(table_, dtype, backend);
  graph::Graph* const graphs[] = {graph_.get()};
  arenas_ = std::make_unique<graph::ForwardArenas>(graphs, parameters_->bindings(), backend);
}

namespace {

/// A tensor of a model, and where its values go: a part of a parameter, or a running statistic.
struct Place {
  const checkpoint::NamedTensor* tensor = nullptr;
  const graph::Parameter* parameter = nullptr;
  const graph::ParameterPart* part = nullptr;
  std::size_t begin = 0;  // of a statistic, in the arena
};

std::vector<Place> places_of(const checkpoint::ModelFile& file, const graph::ParameterTable& table, Loaded loaded) {
  std::vector<Place> places;
  const auto add = [&](const std::string& name, const Shape& shape, Place place) {
    place.tensor = find(file, name);
    check_place(file, name, shape, place.tensor);
    places.push_back(place);
  };
  for (const graph::Parameter& parameter : table.parameters())
    if (loaded == Loaded::all || parameter.is_base)
      for (const graph::ParameterPart& part : parameter.parts)
        add(part.name, part.shape, {.parameter = &parameter, .part = &part});
  if (loaded == Loaded::base) return places;
  for (const graph::RunningStatistic& statistic : table.statistics()) {
    std::size_t begin = statistic.begin;
    for (const char* name : {".running_mean", ".running_var"}) {
      add(statistic.name + name, {statistic.channels}, {.begin = begin});
      begin += static_cast<std::size_t>(statistic.channels);
    }
  }
  return places;
}

/// Writes the values of parameters that can only be written as a whole once they are complete: they are quantised, or
/// in another layout than in files. Buffers are kept: the pages of new ones would be cleared for each parameter.
class WholeParameter {
 public:
  void add(const Place& place, std::size_t first, std::span<const float> values, graph::ParameterArena& parameters,
           Stream& stream) {
    const graph::Parameter& parameter = *place.parameter;
    const auto n_elements = static_cast<std::size_t>(parameter.shape.n_elements());
    if (canonical_.size() < n_elements) canonical_.resize(n_elements);
    std::ranges::copy(values, canonical_.begin() + static_cast<std::ptrdiff_t>(place.part->begin + first));
    if (place.part != &parameter.parts.back() || first + values.size() < place.part->n_elements()) return;
    const std::span<const float> whole = std::span(canonical_).first(n_elements);
    if (!parameter.layout) return parameters.write(parameter, 0, whole, stream);
    if (packed_.size() < parameter.n_elements) packed_.resize(parameter.n_elements);
    parameter.layout->pack(whole, packed_.data());
    parameters.write(parameter, 0, std::span(packed_).first(parameter.n_elements), stream);
  }

 private:
  std::vector<float> canonical_, packed_;
};

}  // namespace

void check_places(const checkpoint::ModelFile& file, const graph::ParameterTable& table, Loaded loaded) {
  (void)places_of(file, table, loaded);
}

void load_parameters(const checkpoint::ModelFile& file, const graph::ParameterTable& table, Loaded loaded,
                     graph::ParameterArena& parameters, Stream& stream, World& world) {
  const std::vector<Place> places = places_of(file, table, loaded);
  std::vector<checkpoint::NamedTensor> tensors;
  for (const Place& place : places) tensors.push_back(*place.tensor);
  WholeParameter whole;
  checkpoint::stream_tensors(file.path, tensors, world, [&](const checkpoint::TensorPiece& piece) {
    const Place& place = places[piece.tensor];
    if (place.parameter == nullptr)
      parameters.write_masters(place.begin + piece.first, piece.values, stream);
    else if (place.parameter->is_in_nf4 || place.parameter->layout)
      whole.add(place, piece.first, piece.values, parameters, stream);
    else
      parameters.write(*place.parameter, place.part->begin + piece.first, piece.values, stream);
  });
}

void Inference::load(const checkpoint::ModelFile& file, World& world) {
  load_parameters(file, table_, Loaded::all, *parameters_, *stream_, world);
}

void Inference::start(const data::Batch& batch) {
  require(batch.n_samples <= capacity_ && batch.fields.size() == fields_.size(), ErrorCode::internal,
          "a batch of {} samples with {} fields; expected at most {} with {}", batch.n_samples, batch.fields.size(),
          capacity_, fields_.size());
  Slot& slot = slots_[static_cast<std::size_t>(n_started_++ % 2)];
  slot.n_samples = batch.n_samples;
  if (batch.n_samples == 0) return;
  parameters_->refresh(*stream_);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    // The rest of the batch is padding, which has no label and is not counted.
    const std::size_t size_bytes = std::min(batch.fields[i].size(), batch.bytes_of(batch_[i], capacity_));
    backend_.copy(graph_->tensor(fields_[i]), batch.fields[i].data(), size_bytes, *stream_);
  }
  captured_->run(*stream_, [&] { graph_->forward(*stream_); });
  backend_.copy(slot.host, arenas_->bindings().exchange, sizeof(LossSums), *stream_);
  backend_.copy(slot.host + sizeof(LossSums), graph_->tensor(output_),
                static_cast<std::size_t>(batch.n_samples * n_outputs_) * sizeof(float), *stream_);
  slot.done->record(*stream_);
}

Inference::Result Inference::finish() {
  const Slot& slot = slots_[static_cast<std::size_t>(n_finished_++ % 2)];
  if (slot.n_samples == 0) return {};
  slot.done->synchronize();
  Result result;
  std::memcpy(&result.sums, slot.host, sizeof(LossSums));
  result.outputs = {reinterpret_cast<const float*>(slot.host + sizeof(LossSums)),
                    static_cast<std::size_t>(slot.n_samples * n_outputs_)};
  return result;
}

Evaluation evaluate(Inference& inference, const Config& config, const tasks::Task& task,
                    std::shared_ptr<const data::Dataset> set, Backend& backend, World& world,
                    const std::string& title) {
  const data::LoaderOptions options = evaluation_loader(config, *set, inference.capacity(), world, backend);
  const std::int64_t steps = options.last_step;
  data::Loader loader(std::move(set), options);
  ProgressBar bar(title, steps, world.rank() == 0 && config.log.progress, WithoutTerminal::lines);
  const std::unique_ptr<tasks::Tally> mine = task.make_tally();
  LossSums sums;
  const auto finish = [&](const data::Batch& samples) {
    const Inference::Result result = inference.finish();
    sums += result.sums;
    mine->add(samples, result.outputs);
  };
  const data::Batch* running = nullptr;
  bool is_stopped = false;
  for (std::int64_t step = 0; step < steps && !is_stopped; ++step) {
    const data::Batch& samples = loader.next();
    inference.start(samples);
    if (running != nullptr) finish(*running);
    running = &samples;
    is_stopped = is_meeting(step, world) && world.any(stop_requested());
    if (world.rank() == 0) bar.update(step + 1, "");
  }
  if (running != nullptr) finish(*running);
  if (is_stopped) throw StoppedBySignal{};
  Evaluation all{.sums = {}, .tally = task.make_tally()};
  for (const std::string& text : world.all_gather({reinterpret_cast<const char*>(&sums), sizeof sums})) {
    LossSums of_rank;
    std::memcpy(&of_rank, text.data(), sizeof of_rank);
    all.sums += of_rank;
  }
  for (const std::string& counts : world.all_gather(mine->counts())) all.tally->add_counts(counts);
  return all;
}

std::int64_t evaluated_samples(const Config& config, const data::Dataset& set) {
  const std::int64_t n = set.info().n_samples, most = config.evaluation.max_samples;
  return most > 0 ? std::min(n, most) : n;
}

data::LoaderOptions evaluation_loader(const Config& config, const data::Dataset& set, std::int64_t capacity,
                                      const World& world, Backend& backend) {
  const std::int64_t n = evaluated_samples(config, set);
  const std::int64_t batch = capacity * world.size();
  return {.global_batch = batch,
          .capacity = capacity,
          .first_shard = world.rank(),
          .total_shards = world.size(),
          .seed = config.run.seed,
          .shuffle = false,
          .drop_last = false,
          .readers = config.data.readers,
          .prefetch = 2,
          .last_step = (n + batch - 1) / batch,
          .max_samples = n,
          .backend = &backend};
}

}  // namespace lockstep::inference
