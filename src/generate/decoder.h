// A decoder of the Llama family with a cache of keys and values. There are several graphs for prefill, one for each
// chunk size, and one for decoding (one token per sequence). They share the weights, the cache and all other memory.
// They are planned once, and each arena is allocated once. What changes from step to step is in device memory, and the
// last op of a step draws the tokens that the next step reads, so a decoding step is one captured graph, and several
// can be queued. The host reads tokens behind. Only beam search copies logits to the host.
//
// How a prompt is cut into chunks depends on its length alone: all but the last chunk have the greatest size, and the
// last one has the smallest size that suffices. The logits of a prompt therefore have the same bits in any batch.
//
//   Decoder decoder(config, sizes, {.dtype = ...}, backend, table);   // plans
//   table.fix_order(...); arenas with the table's places are allocated and filled
//   decoder.bind({.parameters = ..., .compute_weights = ..., .compute_dtype = ...});
//   decoder.prefill(tokens); decoder.decode(tokens);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "generate/language_model.h"
#include "graph/parameter_arena.h"
#include "models/llama.h"

namespace lockstep::generate {

struct DecoderSizes {
  std::int64_t slots = 1;      // sequences in the cache
  std::int64_t capacity = 0;   // tokens of each, at most the positions of the model
  std::int64_t chunk = 256;    // the largest chunk of prefill, in tokens
  std::int64_t positions = 0;  // of the table of rotary positions, which all graphs of a table share; 0: capacity
};

class Decoder final : public LanguageModel {
 public:
  /// Backend and table must outlive it. If the table is new, the decoder adds the parameters.
  Decoder(const models::LlamaConfig& config, const DecoderSizes& sizes, DType dtype, bool tf32, Backend& backend,
          graph::ParameterTable& table, const models::LlamaOptions& options = {});

  graph::ForwardSizes memory() const { return graph::forward_sizes(graphs()); }
  /// Allocates the arenas. `parameters`: ParameterArena::bindings().
  void allocate(const graph::Bindings& parameters);
  /// Instead, with arenas of the sizes in memory() that their owner lends. If it has used them in the meantime, call
  /// reset() before the next use.
  void bind(const graph::Bindings& bindings);
  /// Afterwards, no sequence has any tokens.
  void reset();
  /// What the backend chose for the ops of a decoding step, one line per op.
  std::string describe() const;

  std::int64_t n_slots() const override { return sizes_.slots; }
  std::int64_t capacity() const override { return sizes_.capacity; }
  /// Whether an op reads the fp32 master of a parameter: see ParameterTable::fix_order().
  bool is_read_in_fp32(graph::ParameterId id) const;
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::span<const float> prefill(std::span<const NewToken> tokens) override;
  std::span<const float> decode(std::span<const NewToken> tokens) override;
  void set_sampling(const Sample::Settings& settings) override { settings_ = settings; }
  std::vector<Choice> prefill(std::span<const NewToken> tokens, std::span<const DrawnSequence> drawn) override;
  void begin_steps(std::span<const DrawnSequence> drawn) override;
  void queue_step() override;
  bool has_result() const override;
  std::span<const Choice> read_step() override;
  std::span<std::int32_t> cache_indirection() override {
    has_new_indirection_ = true;
    return cache_indirection_;
  }
  /// Runs the step of decoding once, without reading anything: for lists of what it launches.
  void run_step();

 private:
  /// A graph and where its inputs and outputs are.
  struct Step {
    std::unique_ptr<graph::Graph> graph;
    std::int64_t rows = 0;
    graph::TensorId ids = graph::kNoTensor, slots = graph::kNoTensor, positions = graph::kNoTensor;
    graph::TensorId cache_indirection = graph::kNoTensor, selected = graph::kNoTensor, logits = graph::kNoTensor;
    graph::TensorId settings = graph::kNoTensor, sequences = graph::kNoTensor, occurred = graph::kNoTensor;
  };
  /// Host memory for copies to and from the device.
  template <typename T>
  std::span<T> host_memory(std::int64_t n, const char* purpose);
  Step make_step(const models::LlamaConfig& config, const models::LlamaOptions& options, std::int64_t rows, DType dtype,
                 bool tf32, graph::ParameterTable& table, bool decodes = false);
  std::vector<graph::Graph*> graphs() const;
  void become_ready();
  /// Calls `work(step, tokens)` for the chunks of prefill.
  template <typename Work>
  void in_chunks(std::span<const NewToken> tokens, const Work& work);
  /// Fills and uploads the inputs of a step. Sequence i draws from row i of the logits, or in prefill from the first.
  /// Returns how many tokens want logits.
  std::size_t prepare(Step& step, std::span<const NewToken> tokens, std::span<const DrawnSequence> drawn);
  template <typename T>
  void upload(const Step& step, graph::TensorId tensor, std::span<const T> values);
  /// Copies the first `n` rows of logits to the host, after those that are there.
  void read_logits(const Step& step, std::size_t n);
  std::span<SampledSequence> results(std::int64_t step_number) const;
  /// After the step has run, the draws of its sequences are in results().
  void read_draws(const Step& step, std::int64_t step_number);
  std::span<const Choice> choices(std::int64_t step_number, std::size_t n);
  std::int64_t occurred_words() const { return sizes_.slots * SampleDescription{1, vocabulary_}.occurred_words(); }
  std::span<const float> logits() const;

  DecoderSizes sizes_;
  std::int64_t vocabulary_;
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<Step> prefill_;  // ascending by rows
  Step decode_;
  std::unique_ptr<graph::ForwardArenas> own_arenas_;  // null: they are lent
  std::vector<std::unique_ptr<Memory>> host_memory_;
  std::span<std::int32_t> ids_, slots_, positions_, selected_, cache_indirection_;
  std::span<Sample::Settings> uploaded_settings_;
  std::span<SampledSequence> sequences_, results_;  // results_: (kMostQueued, slots)
  std::span<std::uint32_t> occurred_;
  std::span<float> logits_;   // (slots, vocabulary)
  std::size_t n_logits_ = 0;  // rows
  bool has_new_indirection_ = true;
  const void* has_indirection_ = nullptr;    // the step whose tensor is up to date
  std::unique_ptr<CapturedGraph> captured_;  // the step of decoding; prefill is rare
  Sample::Settings settings_;
  std::size_t n_drawn_ = 0;  // sequences of begin_steps()
  std::vector<Choice> choices_;
  std::vector<std::unique_ptr<Event>> done_;  // of the queued steps
  std::int64_t n_queued_ = 0, n_read_ = 0;
};

}  // namespace lockstep::generate
