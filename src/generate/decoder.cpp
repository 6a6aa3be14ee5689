#include "generate/decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::generate {
namespace {

/// Chunk sizes in addition to the largest. Each needs a graph of its own, which takes a few milliseconds to plan.
constexpr std::int64_t kSmallChunks[] = {16, 96};

}  // namespace

Decoder::Decoder(const models::LlamaConfig& config, const DecoderSizes& sizes, DType dtype, bool tf32, Backend& backend,
                 graph::ParameterTable& table, const models::LlamaOptions& options)
    : sizes_(sizes), vocabulary_(config.vocabulary), backend_(backend) {
  require(sizes.slots > 0 && sizes.capacity > 0 && sizes.chunk > 0 && sizes.capacity <= config.positions,
          ErrorCode::internal, "a decoder of {} sequences of {} tokens with chunks of {}, for a model of {} positions",
          sizes.slots, sizes.capacity, sizes.chunk, config.positions);
  for (const std::int64_t rows : kSmallChunks)
    if (rows < sizes.chunk) prefill_.push_back(make_step(config, options, rows, dtype, tf32, table));
  prefill_.push_back(make_step(config, options, sizes.chunk, dtype, tf32, table));
  decode_ = make_step(config, options, sizes.slots, dtype, tf32, table);
  for (const Step& step : prefill_)
    require(step.graph->cache_bytes() == decode_.graph->cache_bytes(), ErrorCode::internal,
            "the graphs of prefill and of decoding have caches of {} and {} bytes", step.graph->cache_bytes(),
            decode_.graph->cache_bytes());
  const auto rows = static_cast<std::size_t>(std::max(sizes.chunk, sizes.slots));
  for (auto* field : {&ids_, &slots_, &positions_, &selected_}) field->reserve(rows);
}

Decoder::Step Decoder::make_step(const models::LlamaConfig& config, const models::LlamaOptions& options,
                                 std::int64_t rows, DType dtype, bool tf32, graph::ParameterTable& table) {
  Step step{.graph = std::make_unique<graph::Graph>(
                graph::GraphOptions{
                    .mode = graph::Mode::inference, .dtype = dtype, .tf32 = tf32, .batch = rows, .layout_batch = rows},
                table),
            .rows = rows};
  graph::Graph& graph = *step.graph;
  const auto field = [&](const char* name, std::int64_t n) {
    return graph.memory().add(name, static_cast<std::size_t>(n) * sizeof(std::int32_t), /*persistent=*/true);
  };
  step.ids = field("tokens", rows);
  step.slots = field("slots", rows);
  step.positions = field("positions", rows);
  step.cache_indirection = field("cache_indirection", sizes_.slots * sizes_.capacity);
  step.selected = field("selected", sizes_.slots);
  const models::LlamaInputs inputs{.sequence_length = 1,
                                   .tokens = step.ids,
                                   .positions = step.positions,
                                   .cache = {.slots = sizes_.slots,
                                             .capacity = sizes_.capacity,
                                             .slot = step.slots,
                                             .cache_indirection = step.cache_indirection},
                                   .n_positions = sizes_.positions > 0 ? sizes_.positions : sizes_.capacity};
  const graph::ActivationId hidden = models::llama(graph, config, inputs, options);
  const graph::ActivationId last = layers::select_rows(graph, hidden, step.selected, sizes_.slots, "last tokens");
  const graph::ActivationId logits = layers::linear(graph, last, "lm_head",
                                                    {.out_features = config.vocabulary,
                                                     .bias = false,
                                                     .weight = models::llama_head(config) + ".weight",
                                                     .initial = models::llama_initializer(config),
                                                     .fp32_output = true});
  graph.plan(backend_);
  step.logits = graph.activation(logits).data;  // written by the last node, so nothing overwrites them
  return step;
}

bool Decoder::is_read_in_fp32(graph::ParameterId id) const {
  return decode_.graph->is_read_in_fp32(id) ||
         std::ranges::any_of(prefill_, [&](const Step& step) { return step.graph->is_read_in_fp32(id); });
}

std::vector<graph::Graph*> Decoder::graphs() const {
  std::vector<graph::Graph*> graphs{decode_.graph.get()};
  for (const Step& step : prefill_) graphs.push_back(step.graph.get());
  return graphs;
}

void Decoder::allocate(const graph::Bindings& parameters) {
  own_arenas_ = std::make_unique<graph::ForwardArenas>(graphs(), parameters, backend_);
  become_ready();
  reset();
}

void Decoder::bind(const graph::Bindings& bindings) {
  for (graph::Graph* graph : graphs()) graph->bind(bindings);
  become_ready();
}

void Decoder::become_ready() {
  if (!stream_) stream_ = backend_.make_stream();
  captured_ = backend_.make_captured_graph();
  if (!logits_)
    logits_ = backend_.allocate_host(static_cast<std::size_t>(sizes_.slots * vocabulary_) * sizeof(float), "logits");
}

void Decoder::reset() {
  // Places that no token has filled are never used. Zeros make sure that they contain valid numbers.
  backend_.fill_zero(decode_.graph->bindings().cache, decode_.graph->cache_bytes(), *stream_);
  stream_->synchronize();
  cache_indirection_.clear();
  for (std::int64_t slot = 0; slot < sizes_.slots; ++slot)
    cache_indirection_.insert(cache_indirection_.end(), static_cast<std::size_t>(sizes_.capacity),
                              static_cast<std::int32_t>(slot));
  has_new_indirection_ = true;
}

std::string Decoder::describe() const {
  std::string out;
  for (const auto& node : decode_.graph->nodes())
    if (const std::string ops = node->describe_ops(); !ops.empty()) out += fmt::format("{}: {}\n", node->name(), ops);
  return out;
}

void Decoder::run(Step& step, std::span<const NewToken> tokens, bool all_want_logits) {
  require(captured_ != nullptr && static_cast<std::int64_t>(tokens.size()) <= step.rows, ErrorCode::internal,
          "a step of {} tokens in a graph of {}", tokens.size(), step.rows);
  ids_.assign(static_cast<std::size_t>(step.rows), 0);
  slots_.assign(static_cast<std::size_t>(step.rows), 0);
  positions_.assign(static_cast<std::size_t>(step.rows), -1);  // padding
  selected_.assign(static_cast<std::size_t>(sizes_.slots), -1);
  std::size_t n_selected = 0;
  bool changes_indirection = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const NewToken& token = tokens[i];
    require(token.slot >= 0 && token.slot < sizes_.slots && token.position >= 0 && token.position < sizes_.capacity,
            ErrorCode::internal, "a token at position {} of sequence {}: there are {} of {} tokens", token.position,
            token.slot, sizes_.slots, sizes_.capacity);
    ids_[i] = token.id;
    slots_[i] = token.slot;
    positions_[i] = token.position;
    std::int32_t& cache_indirection =
        cache_indirection_[static_cast<std::size_t>(token.slot * sizes_.capacity + token.position)];
    changes_indirection = changes_indirection || cache_indirection != token.slot;
    cache_indirection = token.slot;
    if (!all_want_logits && !token.wants_logits) continue;
    require(n_selected < selected_.size(), ErrorCode::internal, "more logits are wanted than there are sequences");
    selected_[n_selected++] = static_cast<std::int32_t>(i);
  }
  graph::Graph& graph = *step.graph;
  const auto upload = [&](graph::TensorId tensor, const std::vector<std::int32_t>& values) {
    backend_.copy(graph.tensor(tensor), values.data(), values.size() * sizeof(std::int32_t), *stream_);
  };
  upload(step.ids, ids_);
  upload(step.slots, slots_);
  upload(step.positions, positions_);
  upload(step.selected, selected_);
  if (has_new_indirection_ || changes_indirection || has_indirection_ != &step)
    upload(step.cache_indirection, cache_indirection_);
  has_new_indirection_ = false;
  has_indirection_ = &step;  // the graphs share the memory for activations, but place this tensor differently
  if (&step == &decode_)
    captured_->run(*stream_, [&] { graph.forward(*stream_); });
  else
    graph.forward(*stream_);
  if (n_selected > 0) {
    require(n_logits_ + n_selected <= static_cast<std::size_t>(sizes_.slots), ErrorCode::internal,
            "more logits are wanted than there are sequences");
    const auto row = static_cast<std::size_t>(vocabulary_);
    backend_.copy(static_cast<float*>(logits_->data()) + n_logits_ * row, graph.tensor(step.logits),
                  n_selected * row * sizeof(float), *stream_);
    n_logits_ += n_selected;
  }
  stream_->synchronize();
}

std::span<const float> Decoder::logits() const {
  return {static_cast<const float*>(logits_->data()), n_logits_ * static_cast<std::size_t>(vocabulary_)};
}

std::span<const float> Decoder::prefill(std::span<const NewToken> tokens) {
  n_logits_ = 0;
  while (!tokens.empty()) {
    std::size_t n = 1;  // consecutive tokens of one sequence
    while (n < tokens.size() && tokens[n].slot == tokens[0].slot && tokens[n].position == tokens[n - 1].position + 1)
      ++n;
    const auto enough =
        std::ranges::find_if(prefill_, [&](const Step& s) { return s.rows >= std::ssize(tokens.first(n)); });
    Step& step = enough != prefill_.end() ? *enough : prefill_.back();
    n = std::min(n, static_cast<std::size_t>(step.rows));
    run(step, tokens.first(n), /*all_want_logits=*/false);
    tokens = tokens.subspan(n);
  }
  return logits();
}

std::span<const float> Decoder::decode(std::span<const NewToken> tokens) {
  n_logits_ = 0;
  run(decode_, tokens, /*all_want_logits=*/true);
  return logits();
}

}  // namespace lockstep::generate
