// A resolved configuration. src/config/table.cpp lists every key with its unit and meaning; the parser,
// `lockstep help config` and RUN/config.yaml use that table. The defaults are here.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dtype.h"

namespace lockstep {

struct Config {
  static constexpr int kAuto = -1;  // train/batch_fit.h determines the number

  struct Run {
    std::string name = "run";
    std::string directory = "runs";
    std::uint32_t seed = 1;
    bool is_checked = false;  // none | quick: the checks of `lockstep doctor --quick`, before the first step
    std::string path() const { return directory + "/" + name; }
  } run;

  std::string device = "auto";  // auto | cpu | cuda
  Precision precision = Precision::fp32;
  bool precision_is_automatic = true;  // train/precision.h replaces the value above by one that suits the device

  struct Model {
    std::string family = "resnet";  // resnet | llama
    int depth = 18;                 // 18 | 34 | 50 | 101 | 152
    std::string stem = "cifar";     // cifar | imagenet
    int width = 64;                 // channels of the first stage; less only in tests
    int classes = 10;
    bool zero_gamma = false;  // last batch norm of each block starts at 0 (He et al., "Bag of Tricks", 2019)
    std::string initialize_from;
    // llama
    std::string from = "none";             // a Hugging Face directory: weights, config.json and tokenizer
    std::string config;                    // a preset, a config.json, a directory with one, or a JSON object
    std::vector<std::string> ignore_keys;  // of config.json
    std::string recompute = "none";        // none | block | selective
    std::string base_precision = "same";   // matrices of a frozen base: same (as `precision`) | nf4
    std::string license;                   // of the trained model, for its card; empty: unknown
    /// Low-rank adapters beside the matrices of a frozen base.
    struct Lora {
      int rank = 0;  // 0: none
      double alpha = 16;
      double dropout = 0;
      std::vector<std::string> targets = {"q", "k", "v", "o", "gate", "up", "down"};
      bool rslora = false;  // the scale is alpha / sqrt(rank) instead of alpha / rank
      bool is_on() const { return rank > 0; }
    } lora;
  } model;

  struct Data {
    std::string train;       // a file, or "synthetic"
    std::string validation;  // a file, "synthetic", or empty: no evaluation
    bool shuffle = true;
    std::vector<std::string> augment;  // crop, flip, resized_crop, trivial_augment
    int crop_padding = 4;              // pixels
    double mixup = 0.0;                // alpha; 0: none
    double cutmix = 0.0;               // alpha; 0: none
    double random_erase = 0.0;         // probability
    std::vector<double> color_jitter;  // brightness, contrast, saturation, hue; empty: none
    std::vector<double> mean;          // empty: auto, from the train file
    std::vector<double> std;
    bool drop_last = true;
    std::int64_t start = 0;  // a range of samples; both 0: all
    std::int64_t end = 0;
    int readers = 1;            // threads per rank
    int prefetch = 3;           // batches prepared in advance
    int image_size = 0;         // height and width, pixels; 0: as stored; synthetic images: 32
    int validation_size = 0;    // image_size for validation, pixels; 0: as in training
    int validation_resize = 0;  // shorter side before the crop to image_size, pixels; 0: 8/7 of their size
    bool balance = false;       // draw samples of all classes equally often
    std::int64_t synthetic_samples = 10000;
    // text
    std::int64_t sequence_length = 1024;  // tokens
    bool pack = true;                     // documents follow one another in a window
    bool cross_documents = false;         // with pack: attend across documents, as in one text
  } data;

  struct Train {
    int epochs = 3;
    std::int64_t max_steps = 0;         // 0: no limit
    std::int64_t global_batch = 128;    // 0: batch_per_rank is in effect
    std::int64_t batch_per_rank = 0;    // 0: global_batch is in effect; kAuto: what fits
    int accumulate = 1;                 // micro-batches per rank and step; kAuto: as few as fit
    int micro_batches = 0;              // per step on all ranks, summed by one fixed tree; 0: off
    std::string shard = "none";         // none | optimizer | gradients | parameters
    std::string offload = "none";       // none | optimizer
    DType gradient_type = DType::fp32;  // fp32 | bf16
    double label_smoothing = 0.0;
    std::vector<double> class_weights;              // of the loss; empty: all 1
    std::vector<std::string> freeze;                // name patterns of parameters that are not trained
    double clip_norm = 0.0;                         // 0: none
    std::int64_t check_replicas_every_steps = 200;  // 0: never
    double spike_z_score = 0.0;                     // 0: losses are not checked for spikes
    int max_skipped_in_a_row = 10;

    bool shards_gradients() const { return shard == "gradients" || shard == "parameters"; }
  } train;

  struct LossScale {
    std::string kind = "auto";  // auto | dynamic | constant | none
    double initial = 65536;
    int growth_steps = 2000;
  } loss_scale;

  struct Optimizer {
    std::string kind = "sgd";  // sgd | adamw | lars
    double learning_rate = 0.1;
    double momentum = 0.9;
    bool nesterov = false;
    double weight_decay = 5e-4;
    bool decay_norms_and_biases = true;
    bool decay_norms = true;  // false: norms have no decay, and biases may have it
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double trust_coefficient = 0.001;
    std::int64_t learning_rate_batch = 0;  // the global batch that learning_rate is meant for; 0: the one in use
    DType moments = DType::fp32;           // fp32 | bf16, of adamw
    bool masters = true;                   // fp32 | none: copies of bf16 weights
    std::vector<std::string> groups;       // "PATTERN learning_rate=X weight_decay=Y": values for matching parameters
  } optimizer;

  /// The exponential moving average of the weights.
  struct Ema {
    double decay = 0.0;             // per update; 0: no average
    std::int64_t every_steps = 1;   // between updates
    std::string intervals = "run";  // run | epoch: where intervals begin
    bool is_on() const { return decay > 0; }
  } ema;

  struct Schedule {
    std::string kind = "cosine";  // constant | step | cosine | polynomial
    double warmup_epochs = 0;
    std::int64_t warmup_steps = 0;  // only one of the two may be set
    double warmup_start = 0;        // part of the learning rate in step 0; 0: 1 / W with W steps
    std::string update = "step";    // step | epoch: when the learning rate changes
    std::int64_t steps = 0;         // length; 0: epochs x steps per epoch
    int step_epochs = 30;           // step: interval
    double gamma = 0.1;             // step: factor
    double power = 1.0;             // polynomial
    double final_learning_rate = 0.0;
  } schedule;

  struct Evaluation {
    int every_epochs = 1;  // 0: only at the end
    std::int64_t every_steps = 0;
    std::int64_t max_samples = 0;       // 0: all
    std::int64_t batch_per_rank = 0;    // 0: as in training
    int patience = 0;                   // evaluations without improvement after which the run ends; 0: no limit
    std::vector<std::string> generate;  // prompts whose replies evaluations write; empty: none
    int generate_tokens = 64;           // maximum number of new tokens of such a reply
    std::int64_t answers = 0;           // conversations that evaluations answer; 0: none
    int answer_tokens = 64;             // maximum number of new tokens of such an answer
    int beams = 1;                      // with which it is searched for
  } evaluation;

  struct BatchNorm {
    bool synchronize = false;
    double momentum = 0.1;
    double epsilon = 1e-5;
  } batch_norm;

  struct Comm {
    std::string backend = "auto";    // auto | nccl | staged | shared | mpi
    std::string gradients = "fp32";  // fp32 | bf16 | fp16: between nodes
    double bucket_mb = 25;           // MiB
    double sleep_ms = 0;             // for tests: delay of each bucket
    double watchdog_seconds = 60;    // a rank that waits this long in a collective ends the job
    bool nccl_blocking = false;      // NCCL's calls return when their work is queued, and start no thread for that
  } comm;

  struct Cpu {
    int threads = 0;  // 0: auto
  } cpu;

  struct Cuda {
    bool graph = true;                            // the step is captured as a CUDA graph
    std::string weight_gradient_stream = "auto";  // auto | on | off
    double tuning_seconds = 60;                   // for timing algorithms, before the first step
  } cuda;

  struct Checkpoint {
    int every_epochs = 1;  // 0: only at the end
    std::int64_t every_steps = 0;
    double every_minutes = 0;     // measured by rank 0; 0: never
    int keep = 3;                 // 0: all
    std::int64_t keep_every = 0;  // keeps checkpoints whose step is a multiple of this; 0: none
    std::string resume_from;
    std::string best = "auto";  // the validation metric that decides which checkpoint is best
    std::string name = "step-{step}";
    std::string max_shard_size = "5GB";  // of a .safetensors file of a language model
  } checkpoint;

  struct Log {
    int every_steps = 10;
    bool all_ranks = false;         // zero | all
    double slow_rank_percent = 20;  // warns if others wait for one rank for more than this % of their time; 0: never
    bool tensorboard = true;
    bool progress = true;
    double usage_seconds = 0;  // interval of RUN/usage/; 0: never
    std::string mlflow;        // "http://host:5000", the tracking server; empty: none
    std::string mlflow_experiment = "lockstep";
  } log;

  /// What a hardware file says of its machine, for `plan` only. 0: unknown.
  struct Hardware {
    std::vector<std::string> families;  // of models that the file is for; empty: all
    int cores_per_rank = 0;
    double core_samples_per_second = 0;                     // encoded (JPEG, PNG), read and decoded by one core
    double core_gb_per_second = 0;                          // 1e9 bytes/s of decoded samples, read by one core
    double core_resize_megapixels_per_second = 0;           // output pixels of one core
    double core_trivial_augment_megapixels_per_second = 0;  // pixels augmented by one core
    double core_color_jitter_megapixels_per_second = 0;
    double storage_gb_per_second = 0;      // 1e9 bytes/s that a node reads
    double pcie_gb_per_second = 0;         // 1e9 bytes/s between the host and the GPU of a rank, in one direction
    double memory_gb_per_second = 0;       // 1e9 bytes/s that a rank reads and writes in the memory of the host
    double device_samples_per_second = 0;  // trained by the device of one rank
  } hardware;

  bool reproducible = false;
  bool trace = false;  // write RUN/trace.json

  /// What the user should know about how the configuration was read.
  std::vector<std::string> notes;
  /// Where each key was set, if it was: "train.yaml:12" or "command line".
  std::map<std::string, std::string, std::less<>> origins;
  /// The beginning of a message about these keys: "train.yaml:12, command line: ", the places where they were set.
  /// Empty if all have their defaults.
  std::string places(std::initializer_list<std::string_view> keys) const;
};

}  // namespace lockstep
