#include "doctor/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <span>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/matmul_rate.h"
#include "lockstep/error.h"
#include "lockstep/ops/add.h"
#include "lockstep/ops/matmul.h"

namespace lockstep::doctor {
namespace {

constexpr std::int64_t kProductSize = 512;  // rows, columns and depth
constexpr int kProducts = 20;
constexpr std::int64_t kStreamElements = std::int64_t{16} << 20;  // fp32, more than a cache holds
constexpr double kStreamSeconds = 0.2;
constexpr int kLeastStreams = 3;

/// Performs a part of the measurements. If it fails, this rank skips all later parts, but it still takes part in
/// collectives.
template <typename Work>
void attempt(std::string& problem, World& world, const Work& work) {
  world.barrier();
  if (!problem.empty()) return;
  try {
    work();
  } catch (const Error& error) {
    problem = error.what();
  }
}

std::unique_ptr<Memory> allocate(Backend& backend, std::size_t size_bytes) {
  return backend.allocate(std::max<std::size_t>(size_bytes, 1), "a measurement of this device");
}

/// Pseudo-random values between -1/4 and 1/4, the same on all ranks.
float value_of(std::size_t index) { return static_cast<float>(index * 2654435761u >> 8 & 0xFFF) * 0x1p-13F - 0.25F; }

/// The same product on every rank, computed several times. The device is also examined while it computes.
class Products {
 public:
  explicit Products(Backend& backend)
      : backend_(backend),
        op_(backend.make(MatmulDescription{.rows = kProductSize,
                                           .in_features = kProductSize,
                                           .out_features = kProductSize,
                                           .bias = false,
                                           .inference = true})),
        stream_(backend.make_stream()) {
    std::vector<float> canonical(kElements), packed(op_->weight_layout()->n_elements());
    for (std::size_t i = 0; i < kElements; ++i) canonical[i] = value_of(i);
    op_->weight_layout()->pack(canonical, packed.data());
    x_ = allocate(backend, kBytes);
    weight_ = allocate(backend, packed.size() * sizeof(float));
    y_ = allocate(backend, kBytes);
    workspace_ = allocate(backend, op_->memory_requirements().forward_workspace_bytes);
    backend.copy(x_->data(), canonical.data(), kBytes, *stream_);
    backend.copy(weight_->data(), packed.data(), packed.size() * sizeof(float), *stream_);
    stream_->synchronize();
  }

  void start() {
    op_->forward({.x = x_->data(), .weight = weight_->data(), .y = y_->data()}, {workspace_->data(), nullptr},
                 *stream_);
  }
  void synchronize() { stream_->synchronize(); }
  std::string hash() {
    std::vector<std::byte> product(kBytes);
    backend_.copy(product.data(), y_->data(), kBytes, *stream_);
    stream_->synchronize();
    return hash_text(hash_bytes(product));
  }

 private:
  static constexpr std::size_t kElements = kProductSize * kProductSize, kBytes = kElements * sizeof(float);

  Backend& backend_;
  std::unique_ptr<Matmul> op_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> x_, weight_, y_, workspace_;
};

void compare_products(Backend& backend, DeviceFacts& facts) {
  Products products(backend);
  for (int i = 0; i < kProducts; ++i) {
    products.start();
    products.synchronize();
    const std::string hash = products.hash();
    if (facts.n_products++ == 0) facts.product_hash = hash;
    if (hash != facts.product_hash) ++facts.n_different;
  }
  for (int i = 0; i < kProducts; ++i) products.start();  // a GPU computes while its driver is asked
  facts.health = device_health(facts.pci_bus);
  products.synchronize();
}

/// y = a + b reads two arrays and writes one.
double measure_memory(Backend& backend) {
  const auto add = backend.make(AddDescription{.n_elements = kStreamElements});
  const auto stream = backend.make_stream();
  const std::size_t size_bytes = static_cast<std::size_t>(kStreamElements) * sizeof(float);
  const auto a = allocate(backend, size_bytes), b = allocate(backend, size_bytes), y = allocate(backend, size_bytes);
  const auto workspace = allocate(backend, add->memory_requirements().forward_workspace_bytes);
  for (const auto* memory : {&a, &b}) fill_random(backend, **memory, DType::fp32, *stream);
  const auto compute = [&] {
    add->forward({.a = a->data(), .b = b->data(), .y = y->data()}, {workspace->data(), nullptr}, *stream);
    stream->synchronize();
  };
  compute();  // the first one touches the memory
  return 3 * static_cast<double>(size_bytes) / shortest_seconds(kLeastStreams, kStreamSeconds, compute);
}

void measure_transfers(Backend& backend, DeviceFacts& facts) {
  if (backend.memory_space() == MemorySpace::host) return;  // there are no transfers to measure
  const auto stream = backend.make_stream();
  const std::size_t size_bytes = static_cast<std::size_t>(kStreamElements) * sizeof(float);
  const auto d_memory = allocate(backend, size_bytes);
  const auto h_memory = backend.allocate_host(size_bytes, "a measurement of transfers");
  const auto rate = [&](const auto& copy) {
    const double seconds = shortest_seconds(kLeastStreams, kStreamSeconds, [&] {
      copy();
      stream->synchronize();
    });
    return static_cast<double>(size_bytes) / seconds;
  };
  facts.to_device_rate = rate([&] { backend.copy(d_memory->data(), h_memory->data(), size_bytes, *stream); });
  facts.to_host_rate = rate([&] { backend.copy(h_memory->data(), d_memory->data(), size_bytes, *stream); });
}

/// The kernel log. No value if this user may not read it.
std::optional<std::string> kernel_log() {
  const int log = ::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (log < 0) return std::nullopt;
  const Descriptor closed(log);
  std::string text;
  char record[8192];
  constexpr int kMostRecords = 100'000;
  for (int i = 0; i < kMostRecords; ++i) {
    const ::ssize_t n = ::read(log, record, sizeof(record));
    if (n < 0 && errno == EPIPE) continue;  // older records were overwritten
    if (n < 0 && errno == EPERM) return std::nullopt;
    if (n <= 0) break;
    text.append(record, static_cast<std::size_t>(n));
  }
  return text;
}

bool computes_in_bf16(Backend& backend) {
  try {
    return backend.check_precision(Precision::bf16).empty();
  } catch (const Error&) {  // the device does not support it
    return false;
  }
}

}  // namespace

std::vector<std::string> xid_errors_in(std::string_view log, const std::string& pci_bus) {
  constexpr std::string_view kMark = "NVRM: Xid (PCI:";
  const std::string address = pci_bus.substr(0, pci_bus.find('.'));  // the log omits the function number
  std::vector<std::string> errors;
  for (std::size_t at = log.find(kMark); at != std::string_view::npos; at = log.find(kMark, at)) {
    at += kMark.size();
    const std::string_view line = log.substr(at, log.find('\n', at) - at);
    const std::size_t end = line.find("): ");
    if (end == std::string_view::npos || address.empty() || line.substr(0, end) != address) continue;
    errors.emplace_back(line.substr(end + 3, 60));
  }
  return errors;
}

DeviceFacts measure_device(Backend* backend, const std::string& problem, World& world) {
  DeviceFacts facts{.problem = problem};
  if (backend == nullptr && facts.problem.empty()) facts.problem = "there is no backend";
  DeviceHealth before;
  attempt(facts.problem, world, [&] {
    facts.name = backend->device().name;
    facts.pci_bus = backend->device().pci_bus;
    before = device_health(facts.pci_bus);
    facts.health = before;
    if (!facts.pci_bus.empty())
      if (const auto log = kernel_log()) facts.xid_errors = xid_errors_in(*log, facts.pci_bus);
  });
  attempt(facts.problem, world, [&] { compare_products(*backend, facts); });
  attempt(facts.problem, world, [&] { facts.matmul_fp32 = measure_matmul_rate(*backend, Precision::fp32); });
  attempt(facts.problem, world, [&] {
    if (computes_in_bf16(*backend)) facts.matmul_bf16 = measure_matmul_rate(*backend, Precision::bf16);
  });
  attempt(facts.problem, world, [&] { facts.memory_rate = measure_memory(*backend); });
  attempt(facts.problem, world, [&] { measure_transfers(*backend, facts); });
  attempt(facts.problem, world, [&] {
    const DeviceHealth after = device_health(facts.pci_bus);
    if (after.throttle_events && before.throttle_events)
      facts.throttle_events = *after.throttle_events - *before.throttle_events;
  });
  return facts;
}

}  // namespace lockstep::doctor
