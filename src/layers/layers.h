// The layers that models are made of. Each function adds a node to the graph and returns its output. Convolution, batch
// norm and linear name and initialise their parameters as torchvision's resnet does. No backend is named here.
// To add a layer, add a file with its Node to this folder and declare its function here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "lockstep/ops/activation_function.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/ops/rotary.h"

namespace lockstep::layers {

using graph::ActivationId;
using graph::Graph;

struct ImageInputOptions {
  int height = 0, width = 0, channels = 0;  // pixels
  std::vector<float> mean, stddev;
  int crop_padding = 0;
  bool flip = false;
  std::uint32_t seed = 0;
  RegionLimits regions{};  // if the images are regions of different sizes
};
struct ImageRegionTensors {
  graph::TensorId regions = graph::kNoTensor;  // (N) ImageRegion
  graph::TensorId places = graph::kNoTensor;   // (N) int32: where the pixels of each begin in `images`
};
/// Converts images (N, H, W, C) uint8, or regions that are resized to that, to normalised images (N, H, W, C), and
/// crops and flips them. `sample_ids`: (N) uint32.
ActivationId image_input(Graph& graph, const ImageInputOptions& options, graph::TensorId images,
                         graph::TensorId sample_ids, const ImageRegionTensors& regions = {});

struct RandomEraseOptions {
  double probability = 0;
  std::uint32_t seed = 0;
};
/// In training, sets a rectangle of some images (N, H, W, C) to 0. `sample_ids`: (N) uint32.
ActivationId random_erase(Graph& graph, ActivationId images, const RandomEraseOptions& options,
                          graph::TensorId sample_ids);

struct MixImagesOptions {
  double mixup_alpha = 0, cutmix_alpha = 0;  // 0: none
  std::uint32_t seed = 0;
};
/// A batch of images, each mixed with a partner image, and the labels of the partners.
struct MixedImages {
  ActivationId images = graph::kNoActivation;
  graph::TensorId partner_labels = graph::kNoTensor;  // (N) int32; kNoTensor: images are not mixed
  graph::TensorId weight = graph::kNoTensor;          // (1) fp32: the weight of an image's own label
};
/// Mixup or cutmix of the images (N, H, W, C) of a micro-batch, in training. `labels`: (N) int32. `sample_ids`: (N)
/// uint32.
MixedImages mix_images(Graph& graph, ActivationId images, const MixImagesOptions& options, graph::TensorId labels,
                       graph::TensorId sample_ids);

struct ConvolutionOptions {
  std::int64_t out_channels = 0;
  int kernel_size = 3, stride = 1, padding = 1;
  bool trainable = true;  // false: frozen
};
/// It has no bias, since a batch norm follows. Weights: normal, variance 2 / (K * R * S) (He et al. 2015, fan out).
ActivationId convolution(Graph& graph, ActivationId x, const std::string& name, const ConvolutionOptions& options);

struct BatchNormOptions {
  float epsilon = 1e-5f;
  bool synchronize = false;       // batch statistics are over the micro-batches with the same number on all ranks
  std::int64_t global_batch = 0;  // synchronize: samples of those micro-batches together
  int n_micro_batches = 1;        // of all ranks in a step: running statistics are updated from the mean over them
  double gamma = 1;               // initial scale
  bool trainable = true;
};
/// Returns a pending activation: normalised, not yet applied. `x` is the output of a convolution.
ActivationId batch_norm(Graph& graph, ActivationId x, const std::string& name, const BatchNormOptions& options);
/// ReLU becomes part of a pending activation that has none yet; otherwise it is a node of its own.
ActivationId relu(Graph& graph, ActivationId x);
/// f(x), as a node of its own.
ActivationId activation(Graph& graph, ActivationId x, ActivationFunction function);
/// a + b, of one shape and type. It becomes part of `a` if that is pending without ReLU and without an addition; `b`
/// must then be another such activation, or one that an earlier layer has read. Otherwise it is a node of its own.
ActivationId add(Graph& graph, ActivationId a, ActivationId b);

struct EmbeddingOptions {
  std::int64_t sequence = 0;    // ids of a sample
  std::int64_t vocabulary = 0;  // rows of the weight
  std::int64_t width = 0;
  float scale = 1;                                                                   // of the result
  graph::Initializer initial{.kind = graph::Initializer::Kind::normal, .value = 1};  // as torch.nn.Embedding
  bool trainable = true;
};
/// Looks up the row of NAME.weight for each of `ids`, (batch, sequence) int32. Returns (batch, sequence, width) in the
/// graph's type. An id outside of the vocabulary gives zeros. A linear layer can share the weight
/// (LinearOptions::weight).
ActivationId embedding(Graph& graph, graph::TensorId ids, const std::string& name, const EmbeddingOptions& options);

struct RmsNormOptions {
  float epsilon = 1e-5f;
  bool is_around_one = false;  // the factor is 1 + weight, and the weight starts at 0; else, it starts at 1
  bool trainable = true;
};
inline float weight_offset(const RmsNormOptions& options) { return options.is_around_one ? 1.0f : 0.0f; }
/// NAME.weight, (width), fp32.
graph::ParameterId norm_weight(Graph& graph, const std::string& name, std::int64_t width,
                               const RmsNormOptions& options);
/// RMS norm over the last dimension.
ActivationId rms_norm(Graph& graph, ActivationId x, const std::string& name, const RmsNormOptions& options);
/// The same for the new residual stream, x + residual, in one op. No other layer reads x. Other layers may read the
/// residual only before those that x comes from.
struct NormalizedStream {
  ActivationId stream = graph::kNoActivation;
  ActivationId y = graph::kNoActivation;
};
NormalizedStream add_rms_norm(Graph& graph, ActivationId x, ActivationId residual, const std::string& name,
                              const RmsNormOptions& options);

/// f(gate) * up. The input is (..., 2 F), with the gates before the ups, since one linear layer computes both. The
/// output is (..., F).
ActivationId glu(Graph& graph, ActivationId gate_and_up, ActivationFunction function = ActivationFunction::silu);

/// A table of rotary positions (lockstep/ops/rotary.h), which layers of a model share by its name: `frequencies` are
/// those of the head_dim / 2 pairs, in radians per position.
graph::ConstantId rotary_positions(Graph& graph, const std::string& name, std::span<const double> frequencies,
                                   double factor, std::int64_t max_positions);

struct RotaryOptions {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  graph::ConstantId table = graph::kNoConstant;  // rotary_positions()
  RotaryPairs pairs = RotaryPairs::half_split;
  std::string q_norm{}, k_norm{};  // RMS norms of each head before the rotation: NAME.weight (head_dim); empty: none
  RmsNormOptions norms{};
};
/// Rotates the queries and keys of a row [queries | keys | values], (batch, sequence, (heads + 2 kv_heads) * head_dim),
/// by `positions`, (batch, sequence) int32, and copies the values.
ActivationId rotary(Graph& graph, ActivationId qkv, graph::TensorId positions, const std::string& name,
                    const RotaryOptions& options);

struct AttentionOptions {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;          // of the scores; 0: 1 / sqrt(head_dim)
  std::int64_t window = 0;  // tokens that a token attends to, itself included; 0: all
};
/// Causal attention of a row [queries | keys | values], (batch, sequence, (heads + 2 kv_heads) * head_dim), which no
/// other layer reads: (batch, sequence, heads * head_dim). `document_start`, (batch, sequence) int32: the first token
/// that each token attends to, as an index within the sample; kNoTensor: a sample is one document.
ActivationId attention(Graph& graph, ActivationId qkv, graph::TensorId document_start, const std::string& name,
                       const AttentionOptions& options);

/// For inference: the same for new tokens of several sequences, (tokens, 1, (heads + 2 kv_heads) * head_dim), whose
/// keys and values are added to a cache of the graph (lockstep/ops/cached_attention.h).
struct CachedAttentionOptions {
  AttentionOptions attention{};
  std::int64_t slots = 0;                                                 // sequences that the cache has room for
  std::int64_t capacity = 0;                                              // tokens of each
  graph::TensorId slot = graph::kNoTensor, positions = graph::kNoTensor;  // (tokens) int32
  graph::TensorId cache_indirection = graph::kNoTensor;                   // (slots, capacity) int32
};
ActivationId cached_attention(Graph& graph, ActivationId qkv, const std::string& name,
                              const CachedAttentionOptions& options);

/// For inference: selects the rows of x with these numbers, (n) int32, as (n, 1, features). A number that is out of
/// range gives a row of zeros.
ActivationId select_rows(Graph& graph, ActivationId x, graph::TensorId numbers, std::int64_t n,
                         const std::string& name);

/// For inference: draws tokens from the logits, (rows, 1, vocabulary) fp32 (lockstep/ops/sample.h).
struct SampleOptions {
  std::int64_t sequences = 0;
  graph::TensorId settings = graph::kNoTensor;  // Sample::Settings
  graph::TensorId of_each = graph::kNoTensor;   // (sequences) SampledSequence
  graph::TensorId occurred = graph::kNoTensor;  // (sequences, SampleDescription::occurred_words()) uint32
  graph::TensorId ids = graph::kNoTensor, positions = graph::kNoTensor;  // (sequences) int32; kNoTensor: not written
};
void sample(Graph& graph, ActivationId logits, const std::string& name, const SampleOptions& options);

/// The op of a layer computes the gradients of its weight and its bias (kNoParameter: none) together. Throws
/// config_invalid if train.freeze selects only one of them.
void require_frozen_together(const graph::ParameterTable& table, graph::ParameterId weight, graph::ParameterId bias);

ActivationId max_pool(Graph& graph, ActivationId x, const std::string& name, int kernel_size, int stride, int padding);
ActivationId global_average_pool(Graph& graph, ActivationId x, const std::string& name);

/// Low-rank adapters (LoRA) beside the matrix of a layer (lockstep/ops/lora.h), for those of its parts that are
/// targets. Part P has the parameters P.lora_A.weight (rank, in) and P.lora_B.weight (out of P, rank), as in PEFT.
struct AdapterOptions {
  std::int64_t rank = 0;  // 0: there are none
  float scale = 1;
  std::vector<std::string> targets{};             // names of layers: of parts, or of a layer without parts
  double dropout = 0;                             // in training, of each part's input
  std::uint32_t seed = 0;                         // of the dropout
  graph::TensorId sample_ids = graph::kNoTensor;  // (batch) uint32; only needed with a dropout
};

struct LinearOptions {
  std::int64_t out_features = 0;
  bool bias = true;
  ActivationFunction activation = ActivationFunction::none;  // applied to the result, by the same op
  std::string weight{};                                      // another layer's weight, shared; empty: NAME.weight
  std::vector<graph::NamedRows> parts{};        // layers that files store instead of this one: names, and rows of each
  std::optional<graph::Initializer> initial{};  // empty: uniform in +-1/sqrt(in), as torch.nn.Linear
  std::optional<graph::Initializer> initial_bias{};  // empty: as the weight
  bool trainable = true;
  bool fp32_output = false;  // for inference, without bias and activation
  bool allows_fp8 = false;   // with GraphOptions::fp8, x and the weight are rounded to it; without activation
  bool is_in_nf4 = false;    // the weight is frozen, and stored in NF4; without activation
  AdapterOptions adapter{};  // without activation, and x must be (batch, sequence, features)
};
/// y = f(x W^T + b), plus what adapters add, over the last dimension of x, in the type of x or in fp32.
ActivationId linear(Graph& graph, ActivationId x, const std::string& name, const LinearOptions& options);

/// The cross-entropy loss of (..., classes) logits and `labels`, (...) int32. Its LossSums are written at `sums_offset`
/// bytes in exchange memory. Label smoothing and class weights (empty: none) apply in training.
struct CrossEntropyOptions {
  float label_smoothing = 0;
  std::vector<float> class_weights{};  // empty: none
  MixedImages mixed{};                 // labels are mixed as the images are
};
void cross_entropy(Graph& graph, ActivationId logits, graph::TensorId labels, std::size_t sums_offset,
                   const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  std::int64_t vocabulary = 0;
  std::string weight{};                         // another layer's weight, shared; empty: NAME.weight
  std::optional<graph::Initializer> initial{};  // empty: uniform in +-1/sqrt(width), as torch.nn.Linear
  bool trainable = true;
  graph::TensorId losses = graph::kNoTensor;  // (...) fp32: each position's loss is written there
};
/// linear() without bias, and cross_entropy() of its result with `targets`, (...) int32, in chunks of positions, so
/// that the logits of a batch never exist. The gradients are computed in the forward pass, so this must be the last
/// layer that reads x or uses the weight.
void linear_cross_entropy(Graph& graph, ActivationId x, const std::string& name, graph::TensorId targets,
                          std::size_t sums_offset, const LinearCrossEntropyOptions& options);

// The distribution Beta(alpha, alpha) as a table, from which mixup and cutmix draw their weights
// (lockstep/ops/mix_images.h).

/// The quantiles at (i + 1/2) / kBetaQuantiles, ascending. 0 < alpha <= 10.
std::vector<float> beta_quantiles(double alpha);

}  // namespace lockstep::layers
