// A backend for a GPU that is not here: its ops report what they need and how they would run. They run only while a
// LaunchList exists, and what they launch is then listed. Its memory is a range of addresses that nothing can access.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/backend_ops.h"
#include "kernels/cuda/matmul_few_rows.h"

namespace lockstep::cuda {

class PlanningBackend : public OpsBackend {
 public:
  explicit PlanningBackend(std::shared_ptr<const DeviceDescription> device);

  std::string name() const override { return "cuda"; }
  DeviceInfo device() const override;
  MemorySpace memory_space() const override { return MemorySpace::device; }
  std::string check_precision(Precision precision) const override;

  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override;
  std::unique_ptr<Memory> allocate_host(std::size_t size_bytes, const std::string& purpose) override;
  void freeze() override {}
  void unfreeze() override {}
  std::unique_ptr<Stream> make_stream(StreamPriority) override;
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }
  std::unique_ptr<CapturedGraph> make_captured_graph() override {
    return std::make_unique<FewRowsGraph>(context(), /*together=*/true);
  }
  void run_on_host(const std::function<void()>&, Stream&) override {}
  /// Copies are not listed: those of a step are small.
  void copy(void*, const void*, std::size_t, Stream&) override {}
  void fill_zero(void* d_target, std::size_t size_bytes, Stream&) override;
};

/// One of the known GPUs by its short name, or FILE.json (DeviceDescription). Throws usage if it is neither.
std::unique_ptr<Backend> make_planning_backend(const std::string& device);

/// Throws usage if the file cannot be read or lacks a key.
DeviceDescription read_device_description(const std::string& path);

/// "t4, v100, ..."
std::string known_devices();

}  // namespace lockstep::cuda
