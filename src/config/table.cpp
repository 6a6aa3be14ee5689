#include "config/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>

#include "config/key_types.h"
#include "lockstep/philox.h"

namespace lockstep::config {
namespace {

// A key's name is the path of its member.
// clang-format off
#define KEY(path) #path, +[](Config& c) -> auto& { return c.path; }
// clang-format on

constexpr Effect kLearning = Effect::learning;
constexpr Effect kNone = Effect::none;
constexpr int kMaxThreads = 1024;  // OpenMP has no message for more than the system gives, it crashes
const Range kUpToATebibyte{.high = 1 << 20, .low_excluded = true, .takes = "greater than 0, up to 1048576"};

std::vector<Key> run_and_device_keys() {
  return {
      text(KEY(run.name), {kNone, "", "name of the run; its directory is run.directory/run.name"}),
      path(KEY(run.directory), {kNone, "", "where run directories lie"}),
      integer(KEY(run.seed), 0, {kLearning, "", "seed of all random numbers: weights, order, augmentation"},
              kMaxSamples),
      word(KEY(device), {"auto", "cpu", "cuda"}, {kNone, "", "what computes the step"}),
      choice<Precision>(
          KEY(precision),
          {{"fp32", Precision::fp32}, {"tf32", Precision::tf32}, {"bf16", Precision::bf16}, {"fp16", Precision::fp16}},
          {kLearning, "", "what the step computes in"}),
  };
}

std::vector<Key> model_keys() {
  return {
      word(KEY(model.family), {"resnet"}, {kLearning, "", "kind of network"}),
      choice<int>(KEY(model.depth), {{"18", 18}, {"34", 34}, {"50", 50}}, {kLearning, "layers", "ResNet-18, 34 or 50"}),
      word(KEY(model.stem), {"cifar", "imagenet"},
           {kLearning, "", "first layers: 3x3 for small images, or 7x7 with stride 2 and pooling"}),
      integer(KEY(model.classes), 1, {kLearning, "classes", "outputs of the last layer"}),
      truth(KEY(model.zero_gamma), {kLearning, "", "the last batch norm of each block starts at 0"}),
      path(KEY(model.initialize_from),
           {kLearning, "", "checkpoint or .safetensors file whose weights training starts from, at step 0"}),
  };
}

std::vector<Key> data_keys() {
  return {
      path(KEY(data.train), {kLearning, "", "HDF5 file of training samples, or `synthetic`"}),
      path(KEY(data.validation), {kNone, "", "HDF5 file to evaluate on, or `synthetic`; empty: no evaluation"}),
      truth(KEY(data.shuffle), {kLearning, "", "a new order of samples each epoch"}),
      words(KEY(data.augment), {"crop", "flip", "resized_crop"},
            {kLearning, "",
             "random changes of training images; resized_crop: a part of 8 to 100 % of the area, ratio 3/4 to 4/3"}),
      integer(KEY(data.crop_padding), 0, {kLearning, "pixels", "padding on each side that crop cuts from"}, 1024),
      auto_or_list(KEY(data.mean), Range{.high = 1, .takes = "0 to 1"},
                   {kLearning, "", "subtracted from each channel's values in [0, 1]; auto: as stored in data.train"}),
      auto_or_list(KEY(data.std), kPositive,
                   {kLearning, "", "each channel is divided by it; auto: as stored in data.train"}),
      truth(KEY(data.drop_last),
            {kLearning, "", "leave out an epoch's last batch where it is smaller than the others"}),
      integer(KEY(data.start), 0, {kLearning, "samples", "first sample to train on"}),
      integer(KEY(data.end), 0, {kLearning, "samples", "sample to end before; 0 with data.start 0: all"}),
      integer(KEY(data.readers), 1, {kNone, "threads", "threads a rank that read ahead"}, 256),
      integer(KEY(data.prefetch), 1, {kNone, "batches", "batches a rank that are ready ahead"}, 1024),
      integer(KEY(data.image_size), 0,
              {kLearning, "pixels",
               "height and width of images: resized, shorter side to 8/7 of it, and the centre taken, or what "
               "resized_crop draws; 0: as stored, of synthetic images 32"},
              8192),
      integer(KEY(data.synthetic_samples), 1, {kLearning, "samples", "size of the synthetic data set"}, kMaxSamples),
  };
}

std::vector<Key> train_keys() {
  return {
      integer(KEY(train.epochs), 1, {Effect::epochs, "epochs", "passes over the data, counted from step 0"}),
      integer(KEY(train.max_steps), 0, {kNone, "steps", "stop after so many, counted from step 0; 0: no limit"}),
      integer(KEY(train.global_batch), 0,
              {kLearning, "samples", "samples a step, all ranks together; 0: train.batch_per_rank holds"}, kMaxSamples),
      auto_or_integer<std::int64_t>(
          KEY(train.batch_per_rank), Config::kAuto, 0, kMaxSamples,
          {kNone, "samples",
           "samples a rank and micro-batch; the later given of this and train.global_batch holds; auto: the most that "
           "fit into 90 % of the device's memory"}),
      auto_or_integer<int>(KEY(train.accumulate), Config::kAuto, 1, 65536,
                           {kNone, "",
                            "micro-batches a rank and step, one after another; auto: as few as fit, none larger than "
                            "train.batch_per_rank"}),
      integer(KEY(train.micro_batches), 0,
              {kLearning, "",
               "cut the global batch into so many, on any number of ranks up to that, summed in one fixed order: with "
               "reproducible, the same bits on any number of ranks; 0: a rank's share is one, or train.accumulate"},
              65536),
      real(KEY(train.label_smoothing), kBelowOne,
           {kLearning, "", "part of each label that is spread over all classes; 0: none"}),
      real(KEY(train.clip_norm), kNotNegative,
           {kLearning, "", "greatest global norm of the gradients; 0: no clipping"}),
      integer(KEY(train.check_replicas_every_steps), 0,
              {kNone, "steps", "compare the replicas' bits so often; 0: never"}),
      real(KEY(train.spike_z_score), kNotNegative,
           {kLearning, "standard deviations",
            "skip a step whose loss lies so far above the mean of the last 50; 0: none; a resumed run counts anew"}),
      integer(KEY(train.max_skipped_in_a_row), 0,
              {kNone, "steps", "so many may be skipped (loss or gradient not finite, spike); one more ends the run"},
              1000000),
  };
}

std::vector<Key> loss_scale_keys() {
  const Range scales{.low = 1, .high = 1e38, .takes = "1 to 1e38"};
  return {
      word(KEY(loss_scale.kind), {"auto", "dynamic", "constant", "none"},
           {kLearning, "",
            "gradients are computed times a number, so that small ones are not lost in fp16; dynamic: half of it, and "
            "the step is skipped, where they overflow; auto: dynamic in fp16, else none"}),
      real(KEY(loss_scale.initial), scales, {kLearning, "", "that number in step 0; best a power of two"}),
      integer(KEY(loss_scale.growth_steps), 1,
              {kLearning, "steps", "dynamic: twice of it after so many steps without overflow, up to 16777216"}),
  };
}

std::vector<Key> optimizer_keys() {
  return {
      word(KEY(optimizer.kind), {"sgd", "adamw", "lars"}, {kLearning, "", "rule of the update"}),
      real(KEY(optimizer.learning_rate), kNotNegative, {kLearning, "", "the schedule's greatest learning rate"}),
      real(KEY(optimizer.momentum), kBelowOne, {kLearning, "", "sgd, lars: momentum; 0: none"}),
      truth(KEY(optimizer.nesterov), {kLearning, "", "sgd, lars: Nesterov's momentum"}),
      real(KEY(optimizer.weight_decay), kNotNegative, {kLearning, "", "weight decay"}),
      truth(KEY(optimizer.decay_norms_and_biases),
            {kLearning, "", "sgd, adamw: weight decay for norms and biases too; lars: never"}),
      real(KEY(optimizer.beta1), kBelowOne, {kLearning, "", "adamw: decay of the first moment"}),
      real(KEY(optimizer.beta2), kBelowOne, {kLearning, "", "adamw: decay of the second moment"}),
      real(KEY(optimizer.epsilon), kPositive,
           {kLearning, "", "adamw: added to the root of the second moment; lars: to the norms that divide"}),
      real(KEY(optimizer.trust_coefficient), kPositive,
           {kLearning, "",
            "lars: step of a weight tensor, learning rate 1, over its norm; norms and biases step as with sgd"}),
  };
}

std::vector<Key> schedule_keys() {
  return {
      word(KEY(schedule.kind), {"constant", "step", "cosine", "polynomial"},
           {kLearning, "", "curve of the learning rate after warm-up"}),
      real(KEY(schedule.warmup_epochs), kNotNegative,
           {kLearning, "epochs", "linear rise of the learning rate; or schedule.warmup_steps"}),
      integer(KEY(schedule.warmup_steps), 0,
              {kLearning, "steps", "linear rise of the learning rate; or schedule.warmup_epochs"}),
      integer(KEY(schedule.steps), 0, {kLearning, "steps", "length of the schedule; 0: train.epochs x steps an epoch"}),
      integer(KEY(schedule.step_epochs), 1, {kLearning, "epochs", "step: after every so many epochs ..."}),
      real(KEY(schedule.gamma), kUpToOne, {kLearning, "", "step: ... the learning rate is multiplied by this"}),
      real(KEY(schedule.power), kPositive, {kLearning, "", "polynomial: power of the remaining part of the length"}),
      real(KEY(schedule.final_learning_rate), kNotNegative,
           {kLearning, "", "cosine, polynomial: learning rate at the end"}),
  };
}

std::vector<Key> evaluation_and_batch_norm_keys() {
  return {
      integer(KEY(evaluation.every_epochs), 0, {kNone, "epochs", "evaluate so often; 0: only at the end"}),
      integer(KEY(evaluation.every_steps), 0, {kNone, "steps", "evaluate also so often; 0: never"}),
      integer(KEY(evaluation.max_samples), 0, {kNone, "samples", "evaluate on the first so many; 0: all"}),
      integer(KEY(evaluation.batch_per_rank), 0, {kNone, "samples", "samples a rank and step; 0: as in training"},
              kMaxSamples),
      truth(KEY(batch_norm.synchronize), {kLearning, "", "statistics of the global batch instead of each rank's own"}),
      real(KEY(batch_norm.momentum), kUpToOne,
           {kLearning, "", "weight of a step's statistics in the running statistics"}),
      real(KEY(batch_norm.epsilon), kPositive, {kLearning, "", "added to the variance"}),
  };
}

std::vector<Key> comm_and_cpu_keys() {
  return {
      word(KEY(comm.backend), {"auto", "nccl", "staged", "shared", "mpi"},
           {kNone, "",
            "how ranks sum gradients. auto: GPUs by NCCL, processors by shared memory inside a node and MPI between "
            "nodes; staged: GPUs by way of the processors' memory; shared, mpi: that alone"}),
      word(
          KEY(comm.gradients), {"fp32", "bf16", "fp16"},
          {kLearning, "",
           "what gradients are between nodes: bf16 and fp16 are half as much to send, and round them to 8 and 11 bits; "
           "in fp16 a gradient beyond 65504 is infinite, and the step is not applied"}),
      real(KEY(comm.bucket_mb), kUpToATebibyte,
           {kNone, "MiB", "gradients that are summed at a time, while backward runs"}),
      real(KEY(comm.sleep_ms), kNotNegative, {kNone, "ms", "delay of each bucket, to test the overlap"}),
      real(KEY(comm.watchdog_seconds), kPositive,
           {kNone, "s", "a rank that is missing from a collective for so long ends the job, and is named"}),
      auto_or_integer<int>(
          KEY(cpu.threads), 0, 1, kMaxThreads,
          {Effect::rounding, "threads",
           "threads a rank; auto: the cores that it may use, or 1 if reproducible: another number gives other bits"}),
      truth(KEY(cuda.graph),
            {kNone, "", "record a step as a CUDA graph and start it as one; false: for debugging. Off with trace"}),
  };
}

std::vector<Key> checkpoint_and_log_keys() {
  return {
      integer(KEY(checkpoint.every_epochs), 0, {kNone, "epochs", "save so often; 0: only at the end"}),
      integer(KEY(checkpoint.every_steps), 0, {kNone, "steps", "save also so often; 0: never"}),
      real(KEY(checkpoint.every_minutes), kNotNegative, {kNone, "minutes", "save also so often; 0: never"}),
      integer(KEY(checkpoint.keep), 0,
              {kNone, "files", "newest checkpoints that are kept, besides `latest` and `best`; 0: all"}),
      integer(KEY(checkpoint.keep_every), 0,
              {kNone, "steps", "checkpoints whose step it divides are kept for ever; 0: none"}),
      path(KEY(checkpoint.resume_from),
           {kNone, "", "checkpoint of a run to continue; empty: that of the run directory"}),
      text(KEY(checkpoint.name),
           {kNone, "",
            "file name of a checkpoint, without .h5; filled in: {step}, {epoch} (finished ones), {model} (resnet18), "
            "{start} and {end} (data.start, data.end). Without {step}, what is saved inside an epoch has its step "
            "behind the name. In quotes where it begins with {: \"{model}-{step}\""}),
      integer(KEY(log.every_steps), 1, {kNone, "steps", "log and record figures so often"}),
      choice<bool>("log.ranks", +[](Config& c) -> bool& { return c.log.all_ranks; }, {{"zero", false}, {"all", true}},
                   {kNone, "", "which ranks write the log"}),
      truth(KEY(log.tensorboard), {kNone, "", "write TensorBoard event files"}),
      real(KEY(log.slow_rank_percent), kNotNegative,
           {kNone, "%", "warn of a rank that others wait for during so much of their time; 0: never"}),
      truth(KEY(log.progress), {kNone, "", "show a progress bar on a terminal"}),
      real(KEY(log.usage_seconds), Range{.high = 86400, .takes = "0, or 0.1 to 86400"},
           {kNone, "s",
            "write memory and utilisation of each GPU and process into RUN/usage/*.csv so often; 0: never, 5 is usual; "
            "`lockstep report memory` reads them"}),
      truth(KEY(reproducible),
            {kLearning, "",
             "threads and algorithms are fixed: the same bits on as many ranks, and with train.micro_batches on any "
             "number of ranks"}),
      truth(
          KEY(trace),
          {kNone, "", "write RUN/trace.json, for Perfetto or chrome://tracing: what each rank did in the last steps"}),
  };
}

#undef KEY

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string_view last_part(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

const std::vector<Key>& table() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    for (auto part : {run_and_device_keys, model_keys, data_keys, train_keys, loss_scale_keys, optimizer_keys,
                      schedule_keys, evaluation_and_batch_norm_keys, comm_and_cpu_keys, checkpoint_and_log_keys}) {
      for (Key& key : part()) all.push_back(std::move(key));
    }
    return all;
  }();
  return keys;
}

const Key* find_key(std::string_view name) {
  const auto& keys = table();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

bool is_group(std::string_view name) {
  return std::any_of(table().begin(), table().end(), [&](const Key& key) {
    return key.name.size() > name.size() && key.name.starts_with(name) && key.name[name.size()] == '.';
  });
}

const std::string& nearest_key(std::string_view given) {
  std::string name(given);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  // What other programs call it, where no spelling is near.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kElsewhere{
      {{"lr", "optimizer.learning_rate"},
       {"batch_size", "train.global_batch"},
       {"wd", "optimizer.weight_decay"},
       {"num_workers", "data.readers"},
       {"num_classes", "model.classes"},
       {"init_scale", "loss_scale.initial"},
       {"growth_interval", "loss_scale.growth_steps"},
       {"resume", "checkpoint.resume_from"}}};
  for (const auto& [other, ours] : kElsewhere) {
    if (last_part(name) == other) return find_key(ours)->name;
  }
  const auto dot = name.find('.');
  const bool group_is_known = dot != std::string::npos && is_group(name.substr(0, dot));
  const auto distance = [&](const Key& key) {
    const std::size_t whole = edit_distance(name, key.name);
    // A key under a wrong group, or without any, is a little further away than a misspelt one.
    return group_is_known ? whole : std::min(whole, edit_distance(last_part(name), last_part(key.name)) + 1);
  };
  return std::min_element(table().begin(), table().end(),
                          [&](const Key& a, const Key& b) { return distance(a) < distance(b); })
      ->name;
}

std::string quoted(const std::string& text) {
  const auto is_safe = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-'; };
  // Other readers of YAML must not take a name for a number or a truth value either.
  constexpr std::array<std::string_view, 11> kWords{"true", "false", "yes", "no",  "on", "off",
                                                    "null", "y",     "n",   "inf", "nan"};
  const bool plain = !text.empty() && (std::isalpha(static_cast<unsigned char>(text.front())) || text.front() == '/') &&
                     std::all_of(text.begin(), text.end(), is_safe) &&
                     std::find(kWords.begin(), kWords.end(), lower(text)) == kWords.end();
  if (plain) return text;
  std::string out = "\"";
  for (const char c : text) {
    // `$` is escaped too: a value that holds "${" must not be expanded when it is read back.
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == '$' || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace lockstep::config
