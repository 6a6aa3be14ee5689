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
  decode_ = make_step(config, options, sizes.slots, dtype, tf32, table, /*decodes=*/true);
  for (const Step& step : prefill_)
    require(step.graph->cache_bytes() == decode_.graph->cache_bytes(), ErrorCode::internal,
            "the graphs of prefill and of decoding have caches of {} and {} bytes", step.graph->cache_bytes(),
            decode_.graph->cache_bytes());
}

Decoder::Step Decoder::make_step(const models::LlamaConfig& config, const models::LlamaOptions& options,
                                 std::int64_t rows, DType dtype, bool tf32, graph::ParameterTable& table,
                                 bool decodes) {
  Step step{.graph = std::make_unique<graph::Graph>(
                graph::GraphOptions{
                    .mode = graph::Mode::inference, .dtype = dtype, .tf32 = tf32, .batch = rows, .layout_batch = rows},
                table),
            .rows = rows};
  graph::Graph& graph = *step.graph;
  const auto field = [&](const char* name, std::int64_t n, std::size_t size_bytes = sizeof(std::int32_t)) {
    return graph.memory().add(name, static_cast<std::size_t>(n) * size_bytes, /*persistent=*/true);
  };
  step.ids = field("tokens", rows);
  step.slots = field("slots", rows);
  step.positions = field("positions", rows);
  step.cache_indirection = field("cache_indirection", sizes_.slots * sizes_.capacity);
  if (!decodes) step.selected = field("selected", sizes_.slots);
  step.settings = field("sampling", 1, sizeof(Sample::Settings));
  step.sequences = field("drawn sequences", sizes_.slots, sizeof(SampledSequence));
  step.occurred = field("occurred tokens", occurred_words());
  const models::LlamaInputs inputs{.sequence_length = 1,
                                   .tokens = step.ids,
                                   .positions = step.positions,
                                   .cache = {.slots = sizes_.slots,
                                             .capacity = sizes_.capacity,
                                             .slot = step.slots,
                                             .cache_indirection = step.cache_indirection},
                                   .n_positions = sizes_.positions > 0 ? sizes_.positions : sizes_.capacity};
  const graph::ActivationId hidden = models::llama(graph, config, inputs, options);
  const graph::ActivationId last =
      decodes ? hidden : layers::select_rows(graph, hidden, step.selected, sizes_.slots, "last tokens");
  const graph::ActivationId logits = layers::linear(graph, last, "lm_head",
                                                    {.out_features = config.vocabulary,
                                                     .bias = false,
                                                     .weight = models::llama_head(config) + ".weight",
                                                     .initial = models::llama_initializer(config),
                                                     .fp32_output = true});
  layers::sample(graph, logits, "sample",
                 {.sequences = sizes_.slots,
                  .settings = step.settings,
                  .of_each = step.sequences,
                  .occurred = step.occurred,
                  .ids = decodes ? step.ids : graph::kNoTensor,
                  .positions = decodes ? step.positions : graph::kNoTensor});
  graph.plan(backend_);
  step.logits = graph.activation(logits).data;  // written by the last product, so nothing overwrites them
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

template <typename T>
std::span<T> Decoder::host_memory(std::int64_t n, const char* purpose) {
  const auto size = static_cast<std::size_t>(n);
  host_memory_.push_back(backend_.allocate_host(size * sizeof(T), purpose));
  return {static_cast<T*>(host_memory_.back()->data()), size};
}

void Decoder::become_ready() {
  captured_ = backend_.make_captured_graph();
  if (stream_) return;
  stream_ = backend_.make_stream();
  for (int i = 0; i < kMostQueued; ++i) done_.push_back(backend_.make_event());
  const std::int64_t rows = std::max(sizes_.chunk, sizes_.slots);
  for (auto* field : {&ids_, &slots_, &positions_, &selected_}) *field = host_memory<std::int32_t>(rows, "tokens");
  cache_indirection_ = host_memory<std::int32_t>(sizes_.slots * sizes_.capacity, "cache indirection");
  uploaded_settings_ = host_memory<Sample::Settings>(1, "sampling");
  sequences_ = host_memory<SampledSequence>(sizes_.slots, "drawn sequences");
  results_ = host_memory<SampledSequence>(kMostQueued * sizes_.slots, "drawn tokens");
  occurred_ = host_memory<std::uint32_t>(occurred_words(), "occurred tokens");
  logits_ = host_memory<float>(sizes_.slots * vocabulary_, "logits");
}

void Decoder::reset() {
  // Places that no token has filled are never used. Zeros make sure that they contain valid numbers.
  backend_.fill_zero(decode_.graph->bindings().cache, decode_.graph->cache_bytes(), *stream_);
  stream_->synchronize();
  const auto capacity = static_cast<std::size_t>(sizes_.capacity);
  for (std::int32_t slot = 0; slot < sizes_.slots; ++slot)
    std::ranges::fill(cache_indirection_.subspan(static_cast<std::size_t>(slot) * capacity, capacity), slot);
  has_new_indirection_ = true;
}

std::string Decoder::describe() const {
  std::string out;
  for (const auto& node : decode_.graph->nodes())
    if (const std::string ops = node->describe_ops(); !ops.empty()) out += fmt::format("{}: {}\n", node->name(), ops);
  return out;
}

template <typename T>
void Decoder::upload(const Step& step, graph::TensorId tensor, std::span<const T> values) {
  backend_.copy(step.graph->tensor(tensor), values.data(), values.size_bytes(), *stream_);
}

std::size_t Decoder::prepare(Step& step, std::span<const NewToken> tokens, std::span<const DrawnSequence> drawn) {
  require(captured_ != nullptr && std::ssize(tokens) <= step.rows && std::ssize(drawn) <= sizes_.slots,
          ErrorCode::internal, "a step of {} tokens in a graph of {}", tokens.size(), step.rows);
  n_queued_ = n_read_ = 0;
  n_drawn_ = 0;
  stream_->synchronize();  // steps that are not read still use this memory
  std::ranges::fill(ids_, 0);
  std::ranges::fill(slots_, 0);
  std::ranges::fill(positions_, -1);  // padding
  std::ranges::fill(selected_, -1);
  std::ranges::fill(sequences_, SampledSequence{});
  std::size_t n_selected = 0;
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
    has_new_indirection_ = has_new_indirection_ || cache_indirection != token.slot;
    cache_indirection = token.slot;
    if (token.wants_logits) selected_[n_selected++] = static_cast<std::int32_t>(i);
  }
  const bool penalizes = settings_.options.repetition_penalty != 1;
  if (penalizes) std::ranges::fill(occurred_, 0);
  const auto words = static_cast<std::int64_t>(occurred_.size()) / sizes_.slots;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    sequences_[i] = {.row = &step == &decode_ ? static_cast<std::int32_t>(i) : 0,
                     .prompt = drawn[i].prompt,
                     .reply = drawn[i].reply,
                     .position = drawn[i].n_drawn};
    for (const std::int32_t id : drawn[i].occurred)
      if (penalizes && id >= 0 && id < vocabulary_)
        occurred_[static_cast<std::size_t>(static_cast<std::int64_t>(i) * words + id / 32)] |= 1u << (id % 32);
  }
  const auto rows = static_cast<std::size_t>(step.rows);
  upload<std::int32_t>(step, step.ids, ids_.first(rows));
  upload<std::int32_t>(step, step.slots, slots_.first(rows));
  upload<std::int32_t>(step, step.positions, positions_.first(rows));
  if (&step != &decode_)
    upload<std::int32_t>(step, step.selected, selected_.first(static_cast<std::size_t>(sizes_.slots)));
  upload<SampledSequence>(step, step.sequences, sequences_);
  if (!drawn.empty()) {
    uploaded_settings_[0] = settings_;
    upload<Sample::Settings>(step, step.settings, uploaded_settings_);
    if (penalizes) upload<std::uint32_t>(step, step.occurred, occurred_);
  }
  if (has_new_indirection_ || has_indirection_ != &step)
    upload<std::int32_t>(step, step.cache_indirection, cache_indirection_);
  has_new_indirection_ = false;
  has_indirection_ = &step;  // the graphs share the memory for activations, but place this tensor differently
  return n_selected;
}

void Decoder::run_step() {
  captured_->run(*stream_, [&] { decode_.graph->forward(*stream_); });
}

void Decoder::read_logits(const Step& step, std::size_t n) {
  require(n_logits_ + n <= static_cast<std::size_t>(sizes_.slots), ErrorCode::internal,
          "more logits are wanted than there are sequences");
  const auto row = static_cast<std::size_t>(vocabulary_);
  if (n > 0)
    backend_.copy(&logits_[n_logits_ * row], step.graph->tensor(step.logits), n * row * sizeof(float), *stream_);
  n_logits_ += n;
}

std::span<SampledSequence> Decoder::results(std::int64_t step_number) const {
  const auto slots = static_cast<std::size_t>(sizes_.slots);
  return results_.subspan(static_cast<std::size_t>(step_number % kMostQueued) * slots, slots);
}

void Decoder::read_draws(const Step& step, std::int64_t step_number) {
  const std::span<SampledSequence> target = results(step_number);
  backend_.copy(target.data(), step.graph->tensor(step.sequences), target.size_bytes(), *stream_);
}

std::span<const Choice> Decoder::choices(std::int64_t step_number, std::size_t n) {
  choices_.clear();
  for (const SampledSequence& sequence : results(step_number).first(n))
    choices_.push_back({sequence.id, sequence.log_probability});
  return choices_;
}

std::span<const float> Decoder::logits() const {
  return logits_.first(n_logits_ * static_cast<std::size_t>(vocabulary_));
}

template <typename Work>
void Decoder::in_chunks(std::span<const NewToken> tokens, const Work& work) {
  while (!tokens.empty()) {
    std::size_t n = 1;  // consecutive tokens of one sequence
    while (n < tokens.size() && tokens[n].slot == tokens[0].slot && tokens[n].position == tokens[n - 1].position + 1)
      ++n;
    const auto enough =
        std::ranges::find_if(prefill_, [&](const Step& s) { return s.rows >= std::ssize(tokens.first(n)); });
    Step& step = enough != prefill_.end() ? *enough : prefill_.back();
    n = std::min(n, static_cast<std::size_t>(step.rows));
    work(step, tokens.first(n));
    tokens = tokens.subspan(n);
  }
}

std::span<const float> Decoder::prefill(std::span<const NewToken> tokens) {
  n_logits_ = 0;
  in_chunks(tokens, [&](Step& step, std::span<const NewToken> chunk) {
    const std::size_t n = prepare(step, chunk, {});
    step.graph->forward(*stream_);
    read_logits(step, n);
  });
  stream_->synchronize();
  return logits();
}

std::span<const float> Decoder::decode(std::span<const NewToken> tokens) {
  n_logits_ = 0;
  prepare(decode_, tokens, {});
  run_step();
  read_logits(decode_, tokens.size());
  stream_->synchronize();
  return logits();
}

std::vector<Choice> Decoder::prefill(std::span<const NewToken> tokens, std::span<const DrawnSequence> drawn) {
  std::vector<Choice> all;
  std::int32_t number = 0;  // of the logits
  in_chunks(tokens, [&](Step& step, std::span<const NewToken> chunk) {
    const bool draws = std::ranges::any_of(chunk, &NewToken::wants_logits);
    std::size_t n = 0;
    while (draws && n < drawn.size() && drawn[n].logits == number) ++n;
    prepare(step, chunk, drawn.first(n));
    step.graph->forward(*stream_);
    if (!draws) return;
    read_draws(step, 0);
    stream_->synchronize();
    std::ranges::copy(choices(0, n), std::back_inserter(all));
    drawn = drawn.subspan(n);
    ++number;
  });
  return all;
}

void Decoder::begin_steps(std::span<const DrawnSequence> drawn) {
  std::vector<NewToken> tokens;
  const auto capacity = static_cast<std::size_t>(sizes_.capacity);
  for (const DrawnSequence& sequence : drawn) {
    tokens.push_back({.id = sequence.id, .slot = sequence.slot, .position = sequence.position});
    const auto position = static_cast<std::size_t>(sequence.position);
    std::ranges::fill(
        cache_indirection().subspan(static_cast<std::size_t>(sequence.slot) * capacity + position, capacity - position),
        sequence.slot);
  }
  prepare(decode_, tokens, drawn);
  n_drawn_ = drawn.size();
}

void Decoder::queue_step() {
  require(n_queued_ - n_read_ < kMostQueued && n_drawn_ > 0, ErrorCode::internal, "{} steps are queued",
          n_queued_ - n_read_);
  run_step();
  read_draws(decode_, n_queued_);
  done_[static_cast<std::size_t>(n_queued_++ % kMostQueued)]->record(*stream_);
}

bool Decoder::has_result() const {
  return n_read_ < n_queued_ && done_[static_cast<std::size_t>(n_read_ % kMostQueued)]->is_done();
}

std::span<const Choice> Decoder::read_step() {
  require(n_read_ < n_queued_, ErrorCode::internal, "no step is queued");
  done_[static_cast<std::size_t>(n_read_ % kMostQueued)]->synchronize();
  return choices(n_read_++, n_drawn_);
}

}  // namespace lockstep::generate
