#include "kernels/cuda/backend_planning.h"

#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "kernels/cuda/backend.h"
#include "lockstep/error.h"
#include "lockstep/launches.h"

namespace lockstep::cuda {
namespace {

/// Pages of zeros.
class MappedMemory final : public Memory {
 public:
  MappedMemory(std::size_t size_bytes, int protection, const std::string& purpose)
      : size_bytes_(size_bytes),
        data_(::mmap(nullptr, std::max<std::size_t>(1, size_bytes), protection,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    require(data_ != MAP_FAILED, ErrorCode::out_of_memory,
            "{} bytes of addresses for {} are not available: raise the limit (ulimit -v)", size_bytes, purpose);
  }
  ~MappedMemory() override { ::munmap(data_, std::max<std::size_t>(1, size_bytes_)); }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::size_t size_bytes_;
  void* data_;
};

class PlanningStream final : public Stream {
 public:
  void wait(const Event&) override {}
  void synchronize() override {}
};

struct KnownDevice {
  const char* name;
  const char* title;
  int compute_capability;
  int multiprocessors;
  double gib;               // as the driver reports it
  double tb_per_second;     // data sheet: its memory
  double tflop_per_second;  // data sheet: dense products in 16 bits, summed in fp32
};
constexpr KnownDevice kKnown[] = {
    {"t4", "Tesla T4", 75, 40, 14.7, 0.32, 65},
    {"v100", "Tesla V100-SXM2-16GB", 70, 80, 15.7, 0.9, 125},
    {"v100-32gb", "Tesla V100-SXM2-32GB", 70, 80, 31.7, 0.9, 125},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 23.6, 0.936, 71},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 23.6, 1.008, 165},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", 80, 108, 39.4, 1.555, 312},
    {"a100", "NVIDIA A100-SXM4-80GB", 80, 108, 79.2, 2.039, 312},
    {"l40s", "NVIDIA L40S", 89, 142, 44.4, 0.864, 362},
    {"h100", "NVIDIA H100 80GB HBM3", 90, 132, 79.1, 3.35, 989},
    {"h200", "NVIDIA H200", 90, 132, 139.7, 4.8, 989},
    {"b200", "NVIDIA B200", 100, 148, 178.3, 8, 2250},
};
constexpr std::uintmax_t kMaxDescriptionBytes = 1 << 20;
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
          .bytes_per_second = 1e12 * known->tb_per_second,
          .flops_per_second = 1e12 * known->tflop_per_second,
          .json = {}};
}

}  // namespace

PlanningBackend::PlanningBackend(std::shared_ptr<const DeviceDescription> device)
    : OpsBackend({.multiprocessors = device->multiprocessors,
                  .compute_capability = device->compute_capability,
                  .memory_bytes = device->memory_bytes,
                  .device_name = device->name,
                  .described = device},
                 nullptr) {}

DeviceInfo PlanningBackend::device() const {
  const DeviceDescription& device = *context().described;
  return {.name = device.name,
          .memory_bytes = device.memory_bytes,
          .libraries = {},
          .bytes_per_second = device.bytes_per_second,
          .flops_per_second = device.flops_per_second};
}

std::string PlanningBackend::check_precision(Precision precision) const {
  return cuda::check_precision(precision, context().device_name, context().compute_capability);
}

std::unique_ptr<Memory> PlanningBackend::allocate(std::size_t size_bytes, const std::string& purpose) {
  return std::make_unique<MappedMemory>(size_bytes, PROT_NONE, purpose);
}

std::unique_ptr<Memory> PlanningBackend::allocate_host(std::size_t size_bytes, const std::string& purpose) {
  return std::make_unique<MappedMemory>(size_bytes, PROT_READ | PROT_WRITE, purpose);
}

std::unique_ptr<Stream> PlanningBackend::make_stream(StreamPriority) { return std::make_unique<PlanningStream>(); }

void PlanningBackend::fill_zero(void*, std::size_t size_bytes, Stream&) {
  if (LaunchList* const list = LaunchList::current())
    list->add({.kind = "packs", .bytes = static_cast<double>(size_bytes)});
}

std::unique_ptr<Backend> make_planning_backend(const std::string& device) {
  return std::make_unique<PlanningBackend>(std::make_shared<DeviceDescription>(describe(device)));
}

DeviceDescription read_device_description(const std::string& path) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error);
  require(is_file && std::filesystem::file_size(path, error) <= kMaxDescriptionBytes, ErrorCode::usage,
          "{}: expected the description of a GPU, found {}", path,
          error     ? error.message()
          : is_file ? "a file of more than a megabyte"
                    : "a directory or a special file");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), ErrorCode::usage, "{}: the description of a GPU cannot be opened: {}", path,
          std::strerror(errno));
  DeviceDescription description;
  description.json.assign(std::istreambuf_iterator<char>(file), {});
  double memory_bytes = 0;
  try {
    const nlohmann::json keys = nlohmann::json::parse(description.json);
    description.name = keys.at("deviceName").get<std::string>();
    description.compute_capability = keys.at("deviceVer").get<int>() / 10;
    description.multiprocessors = keys.at("multiProcessorCount").get<int>();
    memory_bytes = keys.at("totalGlobalMem").get<double>();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::usage, "{}: this is not the description of a GPU that cuDNN writes: {}", path, error.what());
  }
  const auto in_range = [&](const char* key, double value, double least, double greatest) {
    require(value >= least && value <= greatest, ErrorCode::usage, "{}: {} must be from {} to {}, but is {}", path, key,
            least, greatest, value);
  };
  in_range("deviceVer", 10 * description.compute_capability, 500, 5000);
  in_range("multiProcessorCount", description.multiprocessors, 1, 10000);
  in_range("totalGlobalMem", memory_bytes, 1 << 28, 0x1p50);
  require(
      description.name.size() <= 200 && std::ranges::none_of(description.name, [](unsigned char c) { return c < ' '; }),
      ErrorCode::usage, "{}: deviceName is not the name of a GPU", path);
  description.memory_bytes = static_cast<std::size_t>(memory_bytes);
  return description;
}

std::string known_devices() {
  std::string names;
  for (const KnownDevice& known : kKnown) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

}  // namespace lockstep::cuda
