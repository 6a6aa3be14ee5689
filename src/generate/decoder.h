// A decoder of the Llama family with a cache of keys and values. There are several graphs for prefill, one for each
// chunk size, and one for decoding (one token per sequence). They share the weights, the cache and all other memory.
// They are planned once, and each arena is allocated once. What changes from step to step is in device memory, so the
// decoding step can be captured as a graph.
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
  std::span<std::int32_t> cache_indirection() override {
    has_new_indirection_ = true;
    return cache_indirection_;
  }

 private:
  /// A graph and where its inputs and outputs are.
  struct Step {
    std::unique_ptr<graph::Graph> graph;
    std::int64_t rows = 0;
    graph::TensorId ids = graph::kNoTensor, slots = graph::kNoTensor, positions = graph::kNoTensor;
    graph::TensorId cache_indirection = graph::kNoTensor, selected = graph::kNoTensor, logits = graph::kNoTensor;
  };
  Step make_step(const models::LlamaConfig& config, const models::LlamaOptions& options, std::int64_t rows, DType dtype,
                 bool tf32, graph::ParameterTable& table);
  std::vector<graph::Graph*> graphs() const;
  void become_ready();
  /// Runs at most `rows` tokens, and appends the logits to `logits_`.
  void run(Step& step, std::span<const NewToken> tokens, bool all_want_logits);
  std::span<const float> logits() const;

  DecoderSizes sizes_;
  std::int64_t vocabulary_;
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<Step> prefill_;  // ascending by rows
  Step decode_;
  std::unique_ptr<graph::ForwardArenas> own_arenas_;  // null: they are lent
  std::vector<std::int32_t> cache_indirection_;
  bool has_new_indirection_ = true;
  const void* has_indirection_ = nullptr;  // the step whose tensor is up to date
  std::vector<std::int32_t> ids_, slots_, positions_, selected_;
  std::unique_ptr<CapturedGraph> captured_;  // the step of decoding; prefill is rare
  std::unique_ptr<Memory> logits_;           // of the host, (slots, vocabulary)
  std::size_t n_logits_ = 0;                 // rows
};

}  // namespace lockstep::generate
