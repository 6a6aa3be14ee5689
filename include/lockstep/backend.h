// The narrow interface between the training program and a device: memory, streams, events, and make(), which plans the
// op for a description (op.h). Only src/backend_factory.cpp names concrete backends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "lockstep/algorithms.h"
#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/event.h"
#include "lockstep/op.h"
#include "lockstep/shape.h"

namespace lockstep {

/// One allocation of a backend: aligned to 64 bytes, on a device to 256; zero-filled; freed on destruction.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* data() const = 0;
  virtual std::size_t size_bytes() const = 0;
};

struct DeviceInfo {
  std::string name;                    // "AMD EPYC 9554, 2 threads, AVX-512"
  std::size_t memory_bytes = 0;        // available to one rank
  std::vector<std::string> libraries;  // "oneDNN 3.2.0"
  std::string uuid{};                  // of a device; ranks with the same uuid share the device. Empty: the processor
  std::string pci_bus{};               // of a device, "0000:18:00.0"
  int n_visible = 0;                   // devices that this process sees
  // Of a described device, from its data sheet: memory, and dense products in 16 bits. 0: unknown
  double bytes_per_second = 0, flops_per_second = 0;
};

/// Where allocate() places memory: on the host, where the ranks of a node can map and sum it themselves, or on a
/// device.
enum class MemorySpace : std::uint8_t { host, device };

/// What a model computes most of the time.
enum class Workload : std::uint8_t { convolutions, matrix_products };

/// What `precision: auto` stands for on a device, and the property of the device that decides it: "AVX-512 with bf16".
struct AutomaticPrecision {
  Precision precision = Precision::fp32;
  std::string reason;
};

/// How all processes together use a device, as its driver reports it. Empty if the driver does not report it.
struct DeviceUsage {
  std::optional<std::size_t> memory_bytes;
  std::optional<double> utilisation;  // fraction of about the last second in which it computed, 0 to 1
  std::optional<std::size_t> memory_total_bytes{};
  std::optional<int> index{};  // its number on the node, as in nvidia-smi
};

/// The progress of a stream (Backend::record_progress). It is in allocate_host() memory, and zero at first.
struct StreamProgress {
  std::uint64_t count = 0, what = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu"
  virtual DeviceInfo device() const = 0;
  virtual MemorySpace memory_space() const { return MemorySpace::host; }
  virtual DeviceUsage usage() { return {}; }
  /// The usage of another rank's device on this node, given its DeviceInfo::pci_bus. May be called from any thread.
  virtual DeviceUsage usage_of(const std::string& /*pci_bus*/) { return {}; }
  /// Every additional thread that uses this backend, its streams or its events must call this first. It selects the
  /// device for that thread.
  virtual void enter_thread() {}

  /// Zero-filled. `purpose` names the arena in messages. Throws out_of_memory, or internal after freeze().
  virtual std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) = 0;
  /// Zero-filled host memory for copies to and from the device that run concurrently with other work: pinned, where the
  /// device distinguishes pinned memory. May be called at any time.
  virtual std::unique_ptr<Memory> allocate_host(std::size_t size_bytes, const std::string& purpose) = 0;
  /// Pins host memory that was allocated elsewhere, for as long as the result lives; null if nothing needs pinning.
  virtual std::unique_ptr<Memory> pin_host(void* /*h_data*/, std::size_t /*size_bytes*/) { return nullptr; }
  /// After freeze() an allocation is a bug and throws; unfreeze() allows allocations again, to plan another step.
  virtual void freeze() = 0;
  virtual void unfreeze() = 0;

  virtual std::unique_ptr<Stream> make_stream(StreamPriority priority) = 0;
  std::unique_ptr<Stream> make_stream() { return make_stream(StreamPriority::normal); }
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual std::unique_ptr<CapturedGraph> make_captured_graph() = 0;
  /// An event that supports Event::seconds_since. It costs a little more than an event of make_event().
  virtual std::unique_ptr<Event> make_timing_event() { return make_event(); }
  /// Queues a copy on `stream`; fill_zero() is queued in the same way. Until the stream has passed this point, the
  /// source must not change and the target must not be read. Source and target can each be in host or device memory
  /// (unified addressing).
  virtual void copy(void* target, const void* source, std::size_t size_bytes, Stream& stream) = 0;
  virtual void fill_zero(void* d_target, std::size_t size_bytes, Stream& stream) = 0;
  /// When `stream` reaches this point, `what` is written and then the count is increased by one. The watchdog reads
  /// both, even while a captured graph runs.
  virtual void record_progress(StreamProgress* h_progress, std::uint64_t what, Stream& /*stream*/) {
    std::atomic_ref(h_progress->what).store(what);
    std::atomic_ref(h_progress->count).fetch_add(1);
  }

  /// Queues `work` on `stream`: a thread of the host does it when the stream reaches this point. It must not call this
  /// backend, and lives as long as graphs that have captured it.
  virtual void run_on_host(const std::function<void()>& work, Stream& /*stream*/) { work(); }
  /// A backend for ops on memory of the host: this one, or one with the cores of the rank beside a device.
  virtual Backend& host() { return *this; }

  /// The layout in which an activation of this shape is fastest inside a graph.
  virtual Layout activation_layout(const Shape& shape, DType dtype) const = 0;
  /// Throws not_supported if the device cannot compute in this precision. Otherwise returns a warning for the user, or
  /// an empty string.
  virtual std::string check_precision(Precision precision) const = 0;
  /// The fastest precision that reaches the loss of fp32 here, by what is known of this kind of device; nothing is
  /// timed.
  virtual AutomaticPrecision automatic_precision(Workload) const { return {Precision::fp32, name()}; }

  /// Plans the op of a description: make(Conv2dDescription{...}) checks the description, chooses an algorithm and
  /// returns a Conv2d. Throws op_description for an impossible description, and not_supported, with a sentence, where
  /// the device or the backend cannot do it.
  template <typename Description>
  std::unique_ptr<typename Description::Op> make(const Description& description) {
    std::unique_ptr<Op> op = make_op({typeid(Description), Description::kName, &description});
    return std::unique_ptr<typename Description::Op>(static_cast<typename Description::Op*>(op.release()));
  }
  /// Ops that are made from now on use fixed algorithms, as without BackendOptions::algorithms: their results do not
  /// depend on what was timed. false: no longer.
  virtual void fix_algorithms(bool /*are_fixed*/) {}
  /// For make(): makes the op of a request (op_list.h). The result is a Description::Op.
  virtual std::unique_ptr<Op> make_op(const OpRequest& request) = 0;
};

struct BackendOptions {
  std::string device = "auto";  // auto | cpu | cuda
  int threads = 0;     // cpu: threads of this rank; 0: the cores this process may use, shared by the node's ranks
  int local_rank = 0;  // this rank's number on its node, and the number of ranks there
  int local_size = 1;
  std::shared_ptr<Algorithms> algorithms = nullptr;  // null: fixed algorithms
  bool records_steps = true;                         // cuda: repeated parts of a step are captured as CUDA graphs
};
std::unique_ptr<Backend> make_backend(const BackendOptions& options);
/// A backend for a GPU that need not be present: ops are planned for it, but cannot run. `device` is the name of a
/// known GPU ("h200"), or a file with a description as cuDNN writes it (*.json). Throws usage if it is neither, and
/// not_supported in a build without CUDA.
std::unique_ptr<Backend> make_planning_backend(const std::string& device);
/// The names of the known GPUs, as a list for messages.
std::string known_devices();

}  // namespace lockstep
