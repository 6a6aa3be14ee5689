#include "config/table.h"

#include <algorithm>

#include "config/key_types.h"
#include "lockstep/philox.h"

namespace lockstep::config {
namespace {

constexpr Effect kLearning = Effect::learning;
constexpr Effect kFixed = Effect::fixed;
constexpr Effect kNone = Effect::none;
constexpr int kMaxThreads = 1024;  // OpenMP crashes without a message if the system provides fewer threads
const Range kUpToADay{.high = 86400e3, .accepts = "0 to 86400000"};
const Range kUpToAYear{.high = 525600, .accepts = "0 to 525600"};
const Range kProbability{.high = 1, .accepts = "0 to 1"};
const Range kUpToTen{.high = 10, .accepts = "0 to 10"};
const Range kPercent{.high = 100, .accepts = "0 to 100"};
const Range kUpToATebibyte{.high = 1 << 20, .low_excluded = true, .accepts = "greater than 0, up to 1048576"};

/// What `table()` has besides the key itself: its effect, unit and meaning.
struct Row {
  Effect effect;
  const char* unit;
  Key key;
  const char* meaning;
};

Key number_type(std::string name, Field<DType> field) {
  return choice_of<DType>(std::move(name), field, {{"fp32", DType::fp32}, {"bf16", DType::bf16}});
}

Key precision() {
  Key key = choice_of<Precision>(KEY(precision), {{"fp32", Precision::fp32},
                                                  {"tf32", Precision::tf32},
                                                  {"bf16", Precision::bf16},
                                                  {"fp16", Precision::fp16},
                                                  {"fp8", Precision::fp8}});
  key.accepts = "auto | " + key.accepts;
  key.choices.insert(key.choices.begin(), "auto");
  key.set = [set = key.set](Config& config, const Value& value) {
    const bool is_automatic = !value.is_list && value.text == "auto";
    const Fit fit = is_automatic ? Fit::good : set(config, value);
    if (fit == Fit::good) config.precision_is_automatic = is_automatic;
    return fit;
  };
  key.get = [get = key.get](const Config& config) { return config.precision_is_automatic ? "auto" : get(config); };
  return key;
}

std::vector<Row> run_and_device_keys() {
  return {
      {kNone, "", text(KEY(run.name)), "Name of the run. Its directory is run.directory/run.name."},
      {kNone, "", path(KEY(run.directory)), "Directory that contains the run directories."},
      {kLearning, "", integer(KEY(run.seed), 0, kMaxSamples),
       "Seed of all random numbers: initial weights, order of samples, augmentation."},
      {kNone, "",
       choice_of<bool>("run.check", +[](Config& c) -> bool& { return c.run.is_checked; },
                       {{"none", false}, {"quick", true}}),
       "quick: run the checks of `lockstep doctor --quick` before the first step. Problems are logged, and training "
       "continues."},
      {kNone, "", choice(KEY(device), {"auto", "cpu", "cuda"}), "Device that computes the step."},
      {kLearning, "", precision(),
       "Precision of the computation. auto: the fastest one that is known to reach the loss of fp32 on this kind of "
       "device, which a resumed run keeps. bf16, fp16: mixed precision with fp32 master weights. fp16 and tf32 need a "
       "GPU. fp8: bf16 in which the products of a language model's layers are computed in fp8 when it is trained; for "
       "GPUs from compute capability 8.9 on, and emulated on CPUs."},
  };
}

Key hidden(Key key) {
  key.is_hidden = true;
  return key;
}

/// The names of PEFT are accepted, too.
Key lora_targets() {
  Key key = list_of_choices(KEY(model.lora.targets), Config::Model::Lora{}.targets);
  key.accepts += ", also as q_proj, k_proj and so on, or all-linear";
  key.set = [set = key.set](Config& config, Value value) {
    constexpr std::string_view kAll = "all-linear", kModule = "_proj";
    if (value.text == kAll || (value.items.size() == 1 && value.items.front() == kAll))
      value = {.is_list = true, .text = {}, .items = Config::Model::Lora{}.targets};
    for (std::string& item : value.items)
      if (item.ends_with(kModule)) item.resize(item.size() - kModule.size());
    return set(config, value);
  };
  return key;
}

std::vector<Row> model_keys() {
  return {
      {kFixed, "", choice(KEY(model.family), {"resnet", "llama"}),
       "Family of the model: resnet classifies images, llama is a language model."},
      {kFixed, "layers",
       choice_of<int>(KEY(model.depth), {{"18", 18}, {"34", 34}, {"50", 50}, {"101", 101}, {"152", 152}}),
       "Depth of the ResNet."},
      {kFixed, "", choice(KEY(model.stem), {"cifar", "imagenet"}),
       "First layers of the ResNet. cifar: a 3x3 convolution, for small images. imagenet: a 7x7 convolution with "
       "stride 2, and pooling."},
      {kFixed, "channels", hidden(integer(KEY(model.width), 1, 64)),
       "Channels of the first stage. Tests use it to train small networks."},
      {kFixed, "classes", integer(KEY(model.classes), 1), "Number of outputs of the last layer."},
      {kLearning, "", boolean(KEY(model.zero_gamma)), "Initialize the last batch norm of each block with 0."},
      {kLearning, "", model_path(KEY(model.initialize_from)),
       "Checkpoint or .safetensors file with the initial weights. Training starts at step 0."},
      {kLearning, "", model_path(KEY(model.from)),
       "llama: directory in the format of Hugging Face with config.json, weights and tokenizer.json, from which "
       "training starts, or the name of a model in the local cache of the Hub, such as Qwen/Qwen2-0.5B. none: the "
       "weights are initialized at random."},
      {kFixed, "", path(KEY(model.config)),
       "llama: a config.json of a Llama, Mistral, Qwen2, Qwen3, SmolLM3 or Gemma 3 model, or a preset: smollm-135m, "
       "qwen2-0.5b. "
       "Empty: that of model.from, which takes precedence unless model.config is set after it."},
      {kNone, "", list_of_texts(KEY(model.ignore_keys)),
       "llama: keys of config.json that count as absent. A key that is not known is refused, because it may change "
       "what the model computes; name it here if it does not."},
      {kNone, "", choice(KEY(model.recompute), {"none", "block", "selective"}),
       "llama: activation checkpointing: what is recomputed in the backward pass to save memory. block: the inside of "
       "each layer except attention. selective: only norms and SwiGLU. The results are the same."},
      {kFixed, "", choice(KEY(model.base_precision), {"same", "nf4"}),
       "llama: how the matrices of the frozen base are stored. same: as `precision`. nf4: 4 bits (QLoRA)."},
      {kFixed, "", integer(KEY(model.lora.rank), 0, 1 << 16),
       "llama: rank of the adapters (LoRA) that are trained beside the matrices of model.from, which stay as they are. "
       "0: the whole model is trained."},
      {kFixed, "", real(KEY(model.lora.alpha), kPositive), "llama: what adapters add is multiplied by alpha / rank."},
      {kLearning, "", real(KEY(model.lora.dropout), kBelowOne),
       "llama: probability of the dropout that is applied to the input of each adapter."},
      {kFixed, "", lora_targets(), "llama: the matrices of each layer that have an adapter."},
      {kFixed, "", boolean(KEY(model.lora.rslora)),
       "llama: divide alpha by the square root of the rank (rsLoRA), instead of the rank."},
      {kNone, "", text(KEY(model.license)),
       "llama: licence of the trained model, which the model card in RUN/model states: an identifier of the Hugging "
       "Face Hub, such as apache-2.0, mit or cc-by-4.0. Empty: unknown."},
  };
}

std::vector<Row> data_keys() {
  return {
      {kLearning, "", path(KEY(data.train)), "HDF5 file with the training samples, or `synthetic`."},
      {kNone, "", path(KEY(data.validation)),
       "HDF5 file with the validation samples, or `synthetic`. Empty: no evaluation."},
      {kLearning, "", boolean(KEY(data.shuffle)), "Use a new order of samples in each epoch."},
      {kLearning, "", list_of_choices(KEY(data.augment), {"crop", "flip", "resized_crop", "trivial_augment"}),
       "Random augmentation of training images. resized_crop: a crop with 8 to 100 % of the area and an aspect ratio "
       "of 3/4 to 4/3. trivial_augment: one of 14 changes of geometry or colours (TrivialAugmentWide)."},
      {kLearning, "pixels", integer(KEY(data.crop_padding), 0, 1024),
       "Padding on each side before crop selects a part."},
      {kLearning, "", list_of_numbers(KEY(data.color_jitter), kNotNegative),
       "Random changes of training images: the ranges of brightness, contrast, saturation and hue, as in [0.4, 0.4, "
       "0.4, 0.1]. A factor is drawn from 1 - x to 1 + x; the hue is shifted by a fraction from -x to x of the colour "
       "wheel, with x at most 0.5. Empty: none."},
      {kLearning, "", real(KEY(data.mixup), kUpToTen),
       "Mix each image and its label with those of another sample: alpha of the beta distribution from which the "
       "fraction of each micro-batch is drawn; 0.2 is usual. With data.cutmix, one of the two is chosen at random for "
       "each micro-batch. 0: none."},
      {kLearning, "", real(KEY(data.cutmix), kUpToTen),
       "Replace a rectangle of each image by that of another sample, and mix their labels by its area: alpha of the "
       "beta distribution from which the area is drawn; 1 is usual. 0: none."},
      {kLearning, "", real(KEY(data.random_erase), kProbability),
       "Probability with which a rectangle of a training image, 2 to 33 % of its area, becomes the mean colour."},
      {kLearning, "", auto_or_list(KEY(data.mean), kProbability),
       "Mean of each channel, for values in [0, 1], which is subtracted. auto: as stored in data.train."},
      {kLearning, "", auto_or_list(KEY(data.std), kPositive),
       "Standard deviation of each channel, by which it is divided. auto: as stored in data.train."},
      {kNone, "pixels", integer(KEY(data.validation_size), 0, 8192),
       "Height and width of images in validation and prediction, if they differ from those in training. 0: "
       "data.image_size."},
      {kNone, "pixels", integer(KEY(data.validation_resize), 0, 16384),
       "Length to which the shorter side of a validation image is resized before it is cropped to its size. 0: 8/7 of "
       "that size."},
      {kLearning, "", boolean(KEY(data.balance)),
       "Draw samples of all classes equally often in each epoch, which keeps its length: samples of rare classes are "
       "repeated, and some of frequent ones left out."},
      {kLearning, "", boolean(KEY(data.drop_last)),
       "Leave out the last batch of an epoch if it is smaller than the others."},
      {kLearning, "samples", integer(KEY(data.start), 0),
       "First sample of data.train to train on. data.validation is not affected: see evaluation.max_samples."},
      {kLearning, "samples", integer(KEY(data.end), 0),
       "End of the range of samples of data.train (exclusive). If data.start and data.end are 0, all are used. "
       "data.validation is not affected."},
      {kNone, "threads", integer(KEY(data.readers), 1, 256),
       "Number of threads per rank that read samples in advance."},
      {kNone, "batches", integer(KEY(data.prefetch), 1, 1024),
       "Number of batches per rank that are prepared in advance."},
      {kLearning, "pixels", integer(KEY(data.image_size), 0, 8192),
       "Height and width of the images. The shorter side of an image is resized to 8/7 of it, and the image is cropped "
       "to the centre, or cropped by resized_crop. 0: as stored; synthetic images have 32."},
      {kLearning, "samples", integer(KEY(data.synthetic_samples), 1, kMaxSamples),
       "Number of samples in the synthetic data set."},
      {kLearning, "tokens", integer(KEY(data.sequence_length), 2, 1 << 24),
       "Text: length n of a window, which is one sample and gives n - 1 predictions. If it is not set and the model "
       "has fewer positions (max_position_embeddings), it is their number."},
      {kLearning, "", boolean(KEY(data.pack)),
       "Text: documents follow one another in a window. Attention does not cross documents, and positions restart. "
       "false: one document per window, cut off or padded."},
      {kLearning, "", boolean(KEY(data.cross_documents)),
       "Text, with data.pack: attention and predictions cross documents, as in one long text."},
  };
}

std::vector<Row> train_keys() {
  return {
      {Effect::epochs, "epochs", integer(KEY(train.epochs), 1), "Number of passes over the data, counted from step 0."},
      {kNone, "steps", integer(KEY(train.max_steps), 0),
       "Stop after this many steps, counted from step 0. 0: no limit."},
      {kFixed, "samples", integer(KEY(train.global_batch), 0, kMaxSamples),
       "Number of samples per step on all ranks together. 0: train.batch_per_rank is in effect."},
      {kNone, "samples", auto_or_integer<std::int64_t>(KEY(train.batch_per_rank), Config::kAuto, 0, kMaxSamples),
       "Number of samples per rank and micro-batch. Of this key and train.global_batch, the one that is set later is "
       "in effect. auto: as many as fit into 90 % of the memory of the device."},
      {kNone, "", auto_or_integer<int>(KEY(train.accumulate), Config::kAuto, 1, 65536),
       "Number of micro-batches per rank and step (gradient accumulation). auto: the smallest number with which each "
       "fits into memory and is not larger than train.batch_per_rank."},
      {kLearning, "", integer(KEY(train.micro_batches), 0, 65536),
       "Split the global batch into this many micro-batches on any number of ranks up to that, and sum them in a fixed "
       "order. With reproducible, results are then bitwise identical on any number of ranks. 0: the shard of a rank is "
       "one micro-batch, or train.accumulate of them."},
      {kNone, "", choice(KEY(train.shard), {"none", "optimizer", "gradients", "parameters"}),
       "What is sharded over the ranks instead of replicated. optimizer (ZeRO-1): the optimizer state and, with "
       "precision=bf16 or fp16, the fp32 master weights; each rank updates its shard. gradients (ZeRO-2): the summed "
       "gradients, too, which are summed in each micro-batch. parameters (ZeRO-3): the weights, too, and those of a "
       "base, which are gathered layer by layer, forward and backward. With reproducible and train.micro_batches, the "
       "results are the same. gradients and parameters need a number of ranks that divides train.micro_batches."},
      {kNone, "", choice(KEY(train.offload), {"none", "optimizer"}),
       "What is kept in the memory of the host instead of the device. optimizer: the fp32 master weights and the "
       "optimizer "
       "state, 12 bytes per parameter, or their shard with train.shard. The processor updates them, while the next "
       "forward "
       "pass begins. The results are the same. Needs precision=bf16."},
      {kLearning, "", number_type(KEY(train.gradient_type)),
       "Type of the gradients of weights, in which micro-batches and ranks are summed too. bf16 is for language models "
       "that are trained in full with adamw and precision=bf16; norms keep fp32."},
      {kLearning, "", real(KEY(train.label_smoothing), kBelowOne),
       "Fraction of each label that is distributed over all classes. 0: none."},
      {kLearning, "", list_of_numbers(KEY(train.class_weights), kNotNegative),
       "Weight of each class in the training loss: 0, or from 1e-6 to 1e6. The loss is divided by the sum of the "
       "weights of its samples, as in PyTorch's CrossEntropyLoss. Empty: all 1."},
      {kFixed, "", list_of_texts(KEY(train.freeze)),
       "Parameters that are not trained, by patterns of their names or of their layers: [conv1, bn1, \"layer1.*\"]. "
       "`*` stands for any characters. A frozen batch norm normalizes with its running statistics and keeps them."},
      {kLearning, "", real(KEY(train.clip_norm), kNotNegative),
       "Maximum global norm of the gradients. 0: no clipping."},
      {kNone, "steps", integer(KEY(train.check_replicas_every_steps), 0),
       "Interval at which the weights of all ranks are compared bit by bit. 0: never."},
      {kLearning, "standard deviations", real(KEY(train.spike_z_score), kNotNegative),
       "Skip a step whose loss exceeds the mean of the last 50 by this many standard deviations. 0: never. A resumed "
       "run starts with an empty history."},
      {kNone, "steps", integer(KEY(train.max_skipped_in_a_row), 0, 1000000),
       "Maximum number of consecutive steps that may be skipped because of a spike or a loss or gradient that is not "
       "finite. One more ends the run."},
  };
}

std::vector<Row> loss_scale_keys() {
  const Range scales{.low = 1, .high = 1e38, .accepts = "1 to 1e38"};
  return {
      {kLearning, "", choice(KEY(loss_scale.kind), {"auto", "dynamic", "constant", "none"}),
       "Multiply the loss by a scale, so that small gradients do not underflow in fp16. dynamic: if a gradient "
       "overflows, the step is skipped and the scale is halved. auto: dynamic in fp16, otherwise none."},
      {kLearning, "", real(KEY(loss_scale.initial), scales), "Loss scale at step 0; preferably a power of two."},
      {kLearning, "steps", integer(KEY(loss_scale.growth_steps), 1),
       "dynamic: the scale is doubled after this many steps without overflow, up to 16777216."},
  };
}

std::vector<Row> optimizer_keys() {
  return {
      {kLearning, "", choice(KEY(optimizer.kind), {"sgd", "adamw", "lars"}), "Optimizer."},
      {kLearning, "", real(KEY(optimizer.learning_rate), kNotNegative), "Maximum learning rate of the schedule."},
      {kLearning, "samples", integer(KEY(optimizer.learning_rate_batch), 0, kMaxSamples),
       "The global batch that learning rates are meant for: they are multiplied by the actual global batch divided by "
       "this number. 0: they are used as they are."},
      {kLearning, "", list_of_texts(KEY(optimizer.groups)),
       "Own learning rate (maximum of the schedule) and weight decay of parameters, by a pattern of their names or of "
       "their layers: [\"fc.* learning_rate=0.1 weight_decay=0\"]. The first entry that matches a parameter is in "
       "effect."},
      {kLearning, "", real(KEY(optimizer.momentum), kBelowOne), "sgd, lars: momentum. 0: none."},
      {kLearning, "", boolean(KEY(optimizer.nesterov)), "sgd, lars: use Nesterov momentum."},
      {kLearning, "", real(KEY(optimizer.weight_decay), kNotNegative), "Weight decay."},
      {kLearning, "", boolean(KEY(optimizer.decay_norms_and_biases)),
       "sgd, adamw: also apply weight decay to the parameters of normalization layers and to biases. lars never does."},
      {kLearning, "", boolean(KEY(optimizer.decay_norms)),
       "false: the parameters of normalization layers have no weight decay; biases still follow "
       "optimizer.decay_norms_and_biases."},
      {kLearning, "", real(KEY(optimizer.beta1), kBelowOne), "adamw: decay rate of the first moment."},
      {kLearning, "", real(KEY(optimizer.beta2), kBelowOne), "adamw: decay rate of the second moment."},
      {kLearning, "", real(KEY(optimizer.epsilon), kPositive),
       "adamw: added to the root of the second moment. lars: added to the norms in the denominator."},
      {kLearning, "", number_type(KEY(optimizer.moments)),
       "adamw: type in which the moments are stored. bf16 is rounded stochastically, with the same random numbers on "
       "any number of ranks, and is for language models that are trained in full with precision=bf16."},
      {kLearning, "", choice_of<bool>(KEY(optimizer.masters), {{"fp32", true}, {"none", false}}),
       "adamw: master weights beside those in bf16. none: the weights exist in bf16 only, and their updates are "
       "rounded stochastically; for the same models."},
      {kLearning, "", real(KEY(optimizer.trust_coefficient), kPositive),
       "lars: size of the step of a weight tensor relative to its norm at learning rate 1. Normalization layers and "
       "biases are updated as with sgd."},
  };
}

std::vector<Row> ema_and_schedule_keys() {
  return {
      {kLearning, "", real(KEY(ema.decay), kBelowOne),
       "Keep an exponential moving average of the weights and the running statistics: after every ema.every_steps "
       "steps, average = decay x average + (1 - decay) x weights. It is evaluated, saved and exported beside the "
       "weights. 0: none."},
      {kLearning, "steps", integer(KEY(ema.every_steps), 1),
       "Interval at which the weights enter their average. During the warmup, and at the first interval after it, the "
       "average becomes a copy of the weights."},
      {kLearning, "", choice(KEY(ema.intervals), {"run", "epoch"}),
       "When the weights enter their average. run: after the last step of each interval, counted from step 0. epoch: "
       "after the first step of each interval, counted from the beginning of each epoch, as in torchvision's "
       "references."},
      {kLearning, "", choice(KEY(schedule.kind), {"constant", "step", "cosine", "polynomial"}),
       "Shape of the learning rate after the warmup."},
      {kLearning, "epochs", real(KEY(schedule.warmup_epochs), kNotNegative),
       "Length of the linear warmup. Alternative to schedule.warmup_steps."},
      {kLearning, "steps", integer(KEY(schedule.warmup_steps), 0),
       "Length of the linear warmup. Alternative to schedule.warmup_epochs."},
      {kLearning, "", real(KEY(schedule.warmup_start), kProbability),
       "Fraction of the learning rate at which the warmup begins; the full rate is reached in the first step after the "
       "warmup. 0: a warmup of W steps begins at 1 / W of the rate and reaches it in its last step."},
      {kLearning, "", choice(KEY(schedule.update), {"step", "epoch"}),
       "When the learning rate changes. epoch: it is that of the first step of the epoch, as with PyTorch's schedulers "
       "that are called once per epoch; all lengths must be whole epochs."},
      {kLearning, "steps", integer(KEY(schedule.steps), 0),
       "Length of the schedule. 0: train.epochs x steps per epoch."},
      {kLearning, "epochs", integer(KEY(schedule.step_epochs), 1),
       "step: interval at which the learning rate is multiplied by schedule.gamma."},
      {kLearning, "", real(KEY(schedule.gamma), kUpToOne), "step: factor by which the learning rate is multiplied."},
      {kLearning, "", real(KEY(schedule.power), kPositive),
       "polynomial: exponent applied to the remaining fraction of the schedule."},
      {kLearning, "", real(KEY(schedule.final_learning_rate), kNotNegative),
       "cosine, polynomial: learning rate at the end of the schedule."},
  };
}

std::vector<Row> evaluation_and_batch_norm_keys() {
  return {
      {kNone, "epochs", integer(KEY(evaluation.every_epochs), 0), "Interval between evaluations. 0: only at the end."},
      {kNone, "steps", integer(KEY(evaluation.every_steps), 0), "Additional interval between evaluations. 0: none."},
      {kNone, "samples", integer(KEY(evaluation.max_samples), 0),
       "Evaluate on this many samples from the beginning of the set. 0: all."},
      {kNone, "samples", integer(KEY(evaluation.batch_per_rank), 0, kMaxSamples),
       "Number of samples per rank and step during evaluation. 0: as in training, and at most 128 in `lockstep "
       "evaluate`."},
      {kNone, "evaluations", integer(KEY(evaluation.patience), 0),
       "End the run when this many evaluations in a row were not better than the best one; checkpoint.best tells what "
       "is better. 0: no limit."},
      {kNone, "", list_of_texts(KEY(evaluation.generate)),
       "text: prompts that the model continues after each evaluation, with its most probable tokens. The samples are "
       "written to the log, metrics.jsonl and TensorBoard."},
      {kNone, "tokens", integer(KEY(evaluation.generate_tokens), 1), "text: maximum length of each of these samples."},
      {kNone, "conversations", integer(KEY(evaluation.answers), 0),
       "text: number of conversations of data.validation, from the beginning, whose last message the model answers in "
       "each evaluation. The answers are compared with those of the data: rouge_l and exact_match, which "
       "checkpoint.best "
       "accepts. 0: none."},
      {kNone, "tokens", integer(KEY(evaluation.answer_tokens), 1), "text: maximum length of each of these answers."},
      {kNone, "", integer(KEY(evaluation.beams), 1, 64),
       "text: number of beams with which these answers are searched for. 1: the most probable token each time."},
      {kLearning, "", boolean(KEY(batch_norm.synchronize)),
       "Normalize with the statistics of the global batch instead of those of each rank."},
      {kLearning, "", real(KEY(batch_norm.momentum), kUpToOne),
       "Weight of the statistics of a step in the running statistics."},
      {kLearning, "", real(KEY(batch_norm.epsilon), kPositive), "Added to the variance."},
  };
}

std::vector<Row> comm_and_cpu_keys() {
  return {
      {kNone, "", choice(KEY(comm.backend), {"auto", "nccl", "staged", "shared", "mpi"}),
       "How ranks all-reduce gradients. auto: NCCL for GPUs; for CPUs, shared memory within a node and MPI between "
       "nodes. nccl: NCCL, which is called even for one rank. staged: gradients of GPUs are copied through host "
       "memory. shared: only shared memory. mpi: only MPI."},
      {kLearning, "", choice(KEY(comm.gradients), {"fp32", "bf16", "fp16"}),
       "Type of the gradients that are sent between nodes. bf16 and fp16 halve the traffic and round to 8 and 11 "
       "significant bits. In fp16, a gradient beyond 65504 becomes infinite and the step is skipped."},
      {kNone, "MiB", real(KEY(comm.bucket_mb), kUpToATebibyte),
       "Size of the gradient buckets that are all-reduced during the backward pass."},
      {kNone, "ms", real(KEY(comm.sleep_ms), kUpToADay), "Artificial delay of each bucket, for testing the overlap."},
      {kNone, "s", real(KEY(comm.watchdog_seconds), Range{.low = 1e-3, .high = 1e6, .accepts = "0.001 to 1000000"}),
       "If a rank does not join a collective for this long, it is reported and the job ends. The limit is ten times as "
       "long while a run starts."},
      {kNone, "", boolean(KEY(comm.nccl_blocking)),
       "Use a blocking NCCL communicator (ncclConfig_t.blocking), whose calls return only when their work is queued. "
       "false: NCCL starts a thread for each call outside of captured steps, and a call that waits for a lost rank can "
       "be aborted."},
      {Effect::rounding, "threads", auto_or_integer<int>(KEY(cpu.threads), 0, 1, kMaxThreads),
       "Number of threads per rank. auto: the cores that the rank may use, or 1 if reproducible, since another number "
       "of threads changes the last bits."},
      {kNone, "", boolean(KEY(cuda.graph)),
       "Capture the step as a CUDA graph. false is meant for debugging. A trace switches it off."},
      {kNone, "", choice(KEY(cuda.weight_gradient_stream), {"auto", "on", "off"}),
       "Whether weight gradients of convolutions run on a second CUDA stream, concurrently with data gradients and "
       "norms. auto: if a step is faster with it, which is timed once; off with reproducible. The results have the "
       "same bits."},
      {kNone, "s", real(KEY(cuda.tuning_seconds), kNotNegative),
       "Limit of the time for timing algorithms before the first step. Layers that were not timed by then use the "
       "first plan of cuDNN's ranking, and a later run times them. 0: nothing is timed."},
  };
}

/// What `plan` predicts with. 0 is unknown.
std::vector<Row> hardware_keys() {
  const Range rates{.high = 1e9, .accepts = "0 to 1e9"};
  const Range gigabytes{.high = 1e6, .accepts = "0 to 1e6"};
  return {
      {kNone, "", list_of_choices(KEY(hardware.families), {"resnet", "llama"}),
       "Families of models that a hardware file is for. Others are refused. Empty: all."},
      {kNone, "cores", integer(KEY(hardware.cores_per_rank), 0),
       "plan: cores of a rank that can read and decode samples. 0: unknown."},
      {kNone, "samples/s", real(KEY(hardware.core_samples_per_second), rates),
       "plan: JPEG or PNG images that one core reads, decodes and crops. 0: unknown."},
      {kNone, "GB/s", real(KEY(hardware.core_gb_per_second), gigabytes),
       "plan: speed at which one core reads samples that are stored decoded. 0: unknown."},
      {kNone, "Mpixel/s", real(KEY(hardware.core_resize_megapixels_per_second), gigabytes),
       "plan: output pixels of one core that resizes images stored decoded. 0: unknown."},
      {kNone, "Mpixel/s", real(KEY(hardware.core_trivial_augment_megapixels_per_second), gigabytes),
       "plan: pixels to which one core applies trivial_augment. 0: unknown."},
      {kNone, "Mpixel/s", real(KEY(hardware.core_color_jitter_megapixels_per_second), gigabytes),
       "plan: pixels to which one core applies data.color_jitter. 0: unknown."},
      {kNone, "GB/s", real(KEY(hardware.storage_gb_per_second), gigabytes),
       "plan: speed at which a node reads from its storage, shared by its ranks. 0: unknown."},
      {kNone, "GB/s", real(KEY(hardware.pcie_gb_per_second), gigabytes),
       "plan: speed of copies between the host and the GPU of a rank, in one direction. 0: unknown."},
      {kNone, "GB/s", real(KEY(hardware.memory_gb_per_second), gigabytes),
       "plan: speed at which a rank reads and writes the memory of the host (train.offload). 0: unknown."},
      {kNone, "samples/s", real(KEY(hardware.device_samples_per_second), rates),
       "plan: training speed of the device of a rank. 0: unknown."},
  };
}

std::vector<Row> checkpoint_and_log_keys() {
  return {
      {kNone, "epochs", integer(KEY(checkpoint.every_epochs), 0), "Interval between checkpoints. 0: only at the end."},
      {kNone, "steps", integer(KEY(checkpoint.every_steps), 0), "Additional interval between checkpoints. 0: none."},
      {kNone, "minutes", real(KEY(checkpoint.every_minutes), kUpToAYear),
       "Additional interval between checkpoints. 0: none."},
      {kNone, "files", integer(KEY(checkpoint.keep), 0),
       "Number of newest checkpoints to keep, in addition to `latest` and `best`. 0: all."},
      {kNone, "steps", integer(KEY(checkpoint.keep_every), 0),
       "Checkpoints whose step is a multiple of this number are never removed. 0: none."},
      {kNone, "", path(KEY(checkpoint.resume_from)),
       "Checkpoint of the run to resume. Empty: the newest one in the run directory."},
      {kNone, "", text(KEY(checkpoint.best)),
       "The figure of an evaluation that decides which checkpoint is `best`, such as loss or accuracy. auto: accuracy, "
       "or the loss of a language model; without evaluations, the training loss."},
      {kNone, "", text(KEY(checkpoint.name)),
       "File name of a checkpoint without .h5. Placeholders: {step}, {epoch} (completed epochs), {model} (resnet18), "
       "{start} and {end} (data.start, data.end). Without {step}, the step is appended to the name of a checkpoint "
       "within an epoch. Needs quotes if it begins with {: \"{model}-{step}\"."},
      {kNone, "", text(KEY(checkpoint.max_shard_size)),
       "llama: greatest size of a .safetensors file in RUN/model, such as 5GB, 500MB or 1GiB. A larger model is "
       "divided among several files; a single tensor that is larger has a file of its own."},
      {kNone, "steps", integer(KEY(log.every_steps), 1), "Interval at which metrics are logged and recorded."},
      {kNone, "",
       choice_of<bool>("log.ranks", +[](Config& c) -> bool& { return c.log.all_ranks; },
                       {{"zero", false}, {"all", true}}),
       "Ranks that write the log: rank 0, or all, whose lines then begin with `[RANK: 1 node2]`."},
      {kNone, "", boolean(KEY(log.tensorboard)), "Write TensorBoard event files."},
      {kNone, "%", real(KEY(log.slow_rank_percent), kPercent),
       "Warn about a rank for which the others wait for more than this percentage of their time. 0: never."},
      {kNone, "", boolean(KEY(log.progress)), "Show a progress bar on a terminal."},
      {kNone, "s", real(KEY(log.usage_seconds), Range{.high = 86400, .accepts = "0, or 0.1 to 86400"}),
       "Interval at which memory and utilization of each GPU and process are written to RUN/usage/*.csv. 0: never; 5 "
       "is usual. `lockstep report memory` reads these files."},
      {kNone, "", text(KEY(log.mlflow)),
       "Address of an MLflow tracking server, such as http://host:5000, to which rank 0 sends parameters, metrics and "
       "files of the run. Empty: none."},
      {kNone, "", text(KEY(log.mlflow_experiment)), "The experiment of MLflow to which the run belongs."},
      {kLearning, "", boolean(KEY(reproducible)),
       "Use a fixed number of threads and fixed algorithms. Results are then bitwise identical on the same number of "
       "ranks, and with train.micro_batches on any number of ranks."},
      {kNone, "", boolean(KEY(trace)),
       "Write RUN/trace.json for Perfetto or chrome://tracing: a timeline of the last steps of each rank."},
  };
}

#undef KEY

}  // namespace

const std::vector<Key>& table() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    for (auto part : {run_and_device_keys, model_keys, data_keys, train_keys, loss_scale_keys, optimizer_keys,
                      ema_and_schedule_keys, evaluation_and_batch_norm_keys, comm_and_cpu_keys, hardware_keys,
                      checkpoint_and_log_keys}) {
      for (Row& row : part()) {
        row.key.effect = row.effect;
        row.key.unit = row.unit;
        row.key.meaning = row.meaning;
        all.push_back(std::move(row.key));
      }
    }
    return all;
  }();
  return keys;
}

const Key* find_key(std::string_view name) {
  const auto found = std::ranges::find(table(), name, &Key::name);
  return found == table().end() ? nullptr : &*found;
}

bool is_group(std::string_view name) {
  return std::ranges::any_of(table(), [&](const Key& key) { return key.name.starts_with(std::string(name) + "."); });
}

}  // namespace lockstep::config
