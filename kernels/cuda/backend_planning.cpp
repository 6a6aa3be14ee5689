#include "kernels/cuda/backend_planning.h"

#include <algorithm>
#include <cctype>

#include "kernels/cuda/backend.h"
#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

struct KnownDevice {
  const char* name;
  const char* title;
  int compute_capability;
  int multiprocessors;
  double gib;  // as the driver reports it
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
constexpr double kContextGib = 0.6;  // memory that CUDA and the libraries use before a step is planned

DeviceDescription describe(const std::string& device) {
  if (device.ends_with(".json")) {
    DeviceDescription description = read_device_description(device);
    description.json.clear();  // cuDNN is not used: it needs a driver, even to plan for other devices
    return description;
  }
  std::string name = device;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto* known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const KnownDevice& k) { return name == k.name; });
  require(known != std::end(kKnown), ErrorCode::usage,
          "--device {}: expected one of {}, or a file FILE.json that describes one", device, known_devices());
  return {.name = known->title,
          .compute_capability = known->compute_capability,
          .multiprocessors = known->multiprocessors,
          .memory_bytes = static_cast<std::size_t>((known->gib - kContextGib) * (1 << 30)),
          .json = {}};
}

}  // namespace

PlanningBackend::PlanningBackend(std::shared_ptr<const DeviceDescription> device)
    : OpsBackend({.multiprocessors = device->multiprocessors,
                  .compute_capability = device->compute_capability,
                  .device_name = device->name,
                  .described = device},
                 nullptr) {}

DeviceInfo PlanningBackend::device() const {
  const DeviceDescription& device = *context().described;
  return {.name = device.name, .memory_bytes = device.memory_bytes, .libraries = {}};
}

std::string PlanningBackend::check_precision(Precision precision) const {
  return cuda::check_precision(precision, context().device_name, context().compute_capability);
}

void PlanningBackend::not_here() const {
  fail(ErrorCode::internal, "the step was only planned for {}, which is not in this machine", context().device_name);
}

std::unique_ptr<Backend> make_planning_backend(const std::string& device) {
  return std::make_unique<PlanningBackend>(std::make_shared<DeviceDescription>(describe(device)));
}

std::string known_devices() {
  std::string names;
  for (const KnownDevice& known : kKnown) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

}  // namespace lockstep::cuda
