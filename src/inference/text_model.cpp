#include "inference/text_model.h"

#include <algorithm>
#include <set>

#include "inference/inference.h"
#include "layers/layers.h"
#include "lockstep/error.h"
#include "models/llama.h"

namespace lockstep::inference {

namespace {

constexpr std::int64_t kShortest = 32;      // the minimum window, in tokens
constexpr std::int64_t kStepTokens = 2048;  // tokens per step of the model: enough for efficient matrix products

/// The number of input tokens of a text: its last token is only predicted.
std::int64_t inputs_of(const ScoredText& text) { return static_cast<std::int64_t>(text.tokens.size()) - 1; }

/// The window for a text: the next power of two, but at most the positions of the model.
std::int64_t window_of(std::int64_t n_inputs, std::int64_t positions) {
  std::int64_t length = kShortest;
  while (length < n_inputs) length *= 2;
  return std::min(length, positions);
}

}  // namespace

/// A graph, and where its inputs and outputs are.
struct TextScorer::Step {
  std::unique_ptr<graph::Graph> graph;
  std::int64_t rows = 0, length = 0;
  graph::TensorId tokens = graph::kNoTensor, targets = graph::kNoTensor, positions = graph::kNoTensor,
                  losses = graph::kNoTensor;
};

TextScorer::TextScorer(const models::LlamaConfig& model, std::span<const ScoredText> texts, Precision precision,
                       const checkpoint::ModelFile& file, Backend& backend, World& world)
    : backend_(backend), stream_(backend.make_stream()) {
  std::set<std::int64_t> lengths{std::min(kShortest, model.positions)};
  for (const ScoredText& text : texts) {
    require(text.first >= 1 && text.first <= inputs_of(text) && inputs_of(text) <= model.positions, ErrorCode::internal,
            "a text of {} tokens from {} on, for a model of {} positions", text.tokens.size(), text.first,
            model.positions);
    lengths.insert(window_of(inputs_of(text), model.positions));
  }
  for (const std::int64_t length : lengths) steps_.push_back(make_step(model, length, *lengths.rbegin(), precision));
  fix_order_for_inference(table_);
  const DType dtype = storage_type(precision);
  parameters_ = std::make_unique<graph::ParameterArena>(table_, dtype, backend);
  load_parameters(file, table_, Loaded::all, *parameters_, *stream_, world);
  parameters_->refresh(*stream_);
  stream_->synchronize();
  std::vector<graph::Graph*> graphs;
  for (const auto& step : steps_) graphs.push_back(step->graph.get());
  arenas_ = std::make_unique<graph::ForwardArenas>(graphs, parameters_->bindings(), backend);
}

TextScorer::~TextScorer() = default;

std::unique_ptr<TextScorer::Step> TextScorer::make_step(const models::LlamaConfig& model, std::int64_t length,
                                                        std::int64_t n_positions, Precision precision) {
  auto step = std::make_unique<Step>();
  step->length = length;
  step->rows = std::max<std::int64_t>(1, kStepTokens / length);
  step->graph = std::make_unique<graph::Graph>(graph::GraphOptions{.mode = graph::Mode::inference,
                                                                   .dtype = storage_type(precision),
                                                                   .tf32 = precision == Precision::tf32,
                                                                   .batch = step->rows,
                                                                   .layout_batch = step->rows},
                                               table_);
  graph::Graph& graph = *step->graph;
  const auto field = [&](const char* name) {
    return graph.memory().add(name, static_cast<std::size_t>(step->rows * length) * sizeof(std::int32_t),
                              /*persistent=*/true);
  };
  step->tokens = field("tokens");
  step->targets = field("targets");
  step->positions = field("positions");
  step->losses = field("losses");
  static_assert(sizeof(float) == sizeof(std::int32_t));
  const graph::ActivationId hidden = models::llama(
      graph, model,
      {.sequence_length = length, .tokens = step->tokens, .positions = step->positions, .n_positions = n_positions});
  layers::linear_cross_entropy(graph, hidden, "lm_head", step->targets, graph.add_exchange(sizeof(LossSums)),
                               {.vocabulary = model.vocabulary,
                                .weight = models::llama_head(model) + ".weight",
                                .initial = models::llama_initializer(model),
                                .losses = step->losses});
  graph.plan(backend_);
  return step;
}

void TextScorer::run(Step& step, std::span<const ScoredText> texts, std::span<const std::size_t> numbers,
                     std::span<double> results) {
  const auto n = static_cast<std::size_t>(step.rows * step.length), length = static_cast<std::size_t>(step.length);
  std::vector<std::int32_t> tokens(n, 0), targets(n, -1), positions(n);
  for (std::size_t i = 0; i < n; ++i) positions[i] = static_cast<std::int32_t>(i % length);
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    const ScoredText& text = texts[numbers[row]];
    const std::size_t begin = row * length;
    std::copy(text.tokens.begin(), text.tokens.end() - 1, tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    for (auto i = static_cast<std::size_t>(text.first); i < text.tokens.size(); ++i)
      targets[begin + i - 1] = text.tokens[i];
  }
  graph::Graph& graph = *step.graph;
  const auto upload = [&](graph::TensorId tensor, const std::vector<std::int32_t>& values) {
    backend_.copy(graph.tensor(tensor), values.data(), values.size() * sizeof(std::int32_t), *stream_);
  };
  upload(step.tokens, tokens);
  upload(step.targets, targets);
  upload(step.positions, positions);
  graph.forward(*stream_);
  std::vector<float> losses(n);
  backend_.copy(losses.data(), graph.tensor(step.losses), n * sizeof(float), *stream_);
  stream_->synchronize();
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    double sum = 0;
    for (std::size_t i = row * length; i < (row + 1) * length; ++i)
      if (targets[i] >= 0) sum -= static_cast<double>(losses[i]);
    results[numbers[row]] = sum;
  }
}

std::vector<double> TextScorer::score(std::span<const ScoredText> texts,
                                      const std::function<void(std::int64_t)>& after_batch) {
  std::vector<std::vector<std::size_t>> of_step(steps_.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto enough =
        std::ranges::find_if(steps_, [&](const auto& step) { return step->length >= inputs_of(texts[i]); });
    require(enough != steps_.end(), ErrorCode::internal, "a text of {} tokens: there is no graph for it",
            texts[i].tokens.size());
    of_step[static_cast<std::size_t>(enough - steps_.begin())].push_back(i);
  }
  std::vector<double> results(texts.size());
  std::int64_t n_done = 0;
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    std::span<const std::size_t> left = of_step[s];
    while (!left.empty()) {
      const std::size_t n = std::min(left.size(), static_cast<std::size_t>(steps_[s]->rows));
      run(*steps_[s], texts, left.first(n), results);
      left = left.subspan(n);
      n_done += static_cast<std::int64_t>(n);
      if (after_batch) after_batch(n_done);
    }
  }
  return results;
}

namespace {

/// The weights never change, so 16-bit weights need no fp32 master copies.
graph::ParameterTable table_of_base() {
  graph::ParameterTable table;
  table.set_base([](const std::string&) { return true; });
  return table;
}

}  // namespace

TextModel::TextModel(const models::LlamaConfig& model, const generate::DecoderSizes& sizes, Precision precision,
                     const checkpoint::ModelFile& file, Backend& backend, World& world,
                     const models::LlamaOptions& options)
    : table_(table_of_base()),
      decoder_(model, sizes, storage_type(precision), precision == Precision::tf32, backend, table_, options) {
  const DType dtype = storage_type(precision);
  table_.fix_order(
      {}, dtype == DType::fp32 ? std::function<bool(graph::ParameterId)>()
                               : [this](graph::ParameterId id) { return decoder_.is_read_in_fp32(id); });
  const std::unique_ptr<Stream> stream = backend.make_stream();
  parameters_ = std::make_unique<graph::ParameterArena>(table_, dtype, backend);
  load_parameters(file, table_, Loaded::all, *parameters_, *stream, world);
  parameters_->refresh(*stream);
  stream->synchronize();
  decoder_.allocate(parameters_->bindings());
}

}  // namespace lockstep::inference
