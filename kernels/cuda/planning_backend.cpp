#include "kernels/cuda/planning_backend.h"

#include <algorithm>
#include <cctype>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device_description.h"
#include "kernels/cuda/ops.h"
#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

struct KnownDevice {
  const char* name;
  const char* title;
  int compute_capability;
  int multiprocessors;
  double gib;  // as its driver reports it
};
constexpr KnownDevice kKnown[] = {
    {"t4", "Tesla T4", 75, 40, 14.7},
    {"v100", "Tesla V100-SXM2-16GB", 70, 80, 15.7},
    {"v100-32gb", "Tesla V100-SXM2-32GB", 70, 80, 31.7},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 23.6},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 23.6},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", 80, 108, 39.4},
    {"a100", "NVIDIA A100-SXM4-80GB", 80, 108, 79.2},
    {"l40s", "NVIDIA L40S", 89, 142, 44.4},
    {"h100", "NVIDIA H100 80GB HBM3", 90, 132, 79.1},
    {"h200", "NVIDIA H200", 90, 132, 139.7},
    {"b200", "NVIDIA B200", 100, 148, 178.3},
};
constexpr double kContextGib = 0.6;  // that CUDA and the libraries take before a step is planned

DeviceDescription describe(const std::string& device) {
  if (device.ends_with(".json")) {
    DeviceDescription description = read_device_description(device);
    description.json.clear();  // cuDNN is not asked: it wants a driver, even for plans of other devices
    return description;
  }
  std::string name = device;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto* known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const KnownDevice& k) { return name == k.name; });
  require(known != std::end(kKnown), ErrorCode::usage,
          "--device {}: wanted one of {}, or a file FILE.json that describes one", device, known_devices());
  return {.name = known->title,
          .compute_capability = known->compute_capability,
          .multiprocessors = known->multiprocessors,
          .memory_bytes = static_cast<std::size_t>((known->gib - kContextGib) * (1 << 30)),
          .json = {}};
}

class PlanningBackend final : public OpsBackend {
 public:
  explicit PlanningBackend(std::shared_ptr<const DeviceDescription> device)
      : OpsBackend({.multiprocessors = device->multiprocessors,
                    .compute_capability = device->compute_capability,
                    .device_name = device->name,
                    .described = device},
                   nullptr),
        device_(std::move(device)) {}

  std::string name() const override { return "cuda"; }
  DeviceInfo device() const override {
    return {.name = device_->name, .memory_bytes = device_->memory_bytes, .libraries = {}};
  }
  MemorySpace memory_space() const override { return MemorySpace::device; }
  std::string check_precision(Precision precision) const override {
    return cuda::check_precision(precision, device_->name, device_->compute_capability);
  }

  std::unique_ptr<Memory> allocate(std::size_t, const std::string&) override { not_here(); }
  std::unique_ptr<Memory> allocate_host(std::size_t, const std::string&) override { not_here(); }
  void seal() override {}
  void unseal() override {}
  std::unique_ptr<Stream> make_stream(StreamPriority) override { not_here(); }
  std::unique_ptr<Event> make_event() override { not_here(); }
  std::unique_ptr<Repetition> make_repetition() override { not_here(); }
  void copy_to_device(void*, const void*, std::size_t, Stream&) override { not_here(); }
  void copy_to_host(void*, const void*, std::size_t, Stream&) override { not_here(); }
  void fill_zero(void*, std::size_t, Stream&) override { not_here(); }

 private:
  [[noreturn]] void not_here() const { fail(ErrorCode::internal, "{} was planned for and is not here", device_->name); }
  std::shared_ptr<const DeviceDescription> device_;
};

}  // namespace

std::unique_ptr<Backend> make_planning_backend(const std::string& device) {
  return std::make_unique<PlanningBackend>(std::make_shared<DeviceDescription>(describe(device)));
}

std::string known_devices() {
  std::string names;
  for (const KnownDevice& known : kKnown) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

}  // namespace lockstep::cuda
