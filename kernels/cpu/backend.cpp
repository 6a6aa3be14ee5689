#include "kernels/cpu/backend.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/base/machine.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/error.h"
#include "lockstep/memory_limit.h"
#include "lockstep/op_list.h"

namespace lockstep::cpu {

LOCKSTEP_DEFINE_MAKE_OP(CpuContext)

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

double gib(std::size_t size_bytes) { return static_cast<double>(size_bytes) / (1 << 30); }

/// What `precision: auto` stands for on processors with these instructions (product_instructions()); fp32 on all
/// others. Measured (bench/results/): with AMX, bf16 is 1.9 to 3.5 times as fast as fp32 for ResNets. With the bf16
/// instructions of AVX-512, it is 1.2 times as fast for ResNets, and 1.8 times for products of matrices.
struct ProcessorKind {
  const char* instructions;
  Precision of_convolutions, of_products;
};
constexpr ProcessorKind kFasterInBf16[] = {{"AVX-512 with AMX", Precision::bf16, Precision::bf16},
                                           {"AVX-512 with bf16", Precision::fp32, Precision::bf16}};

/// Anonymous pages, which are zero-filled and mapped on first touch. `allocated` counts the bytes of a backend's live
/// buffers.
class MappedMemory final : public Memory {
 public:
  MappedMemory(std::size_t size_bytes, const std::string& purpose, std::shared_ptr<std::atomic<std::size_t>> allocated)
      : size_bytes_(size_bytes), allocated_(std::move(allocated)) {
    // Large buffers are aligned to huge pages; small ones take only what they need.
    const std::size_t alignment = size_bytes >= kHugePage ? kHugePage : 0;
    mapped_bytes_ = std::max<std::size_t>(size_bytes, 1) + alignment;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(mapped_ != MAP_FAILED, ErrorCode::out_of_memory, "{}: the system refused {:.3f} GiB{}", purpose,
            gib(size_bytes), memory_limit_in_message());
    auto address = reinterpret_cast<std::uintptr_t>(mapped_);
    if (alignment != 0) {
      address = (address + alignment - 1) / alignment * alignment;
      // This is only advice: it fails if huge pages are disabled.
      madvise(reinterpret_cast<void*>(address), size_bytes, MADV_HUGEPAGE);
    }
    data_ = reinterpret_cast<void*>(address);
    *allocated_ += size_bytes_;
  }
  ~MappedMemory() override {
    *allocated_ -= size_bytes_;
    munmap(mapped_, mapped_bytes_);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::size_t size_bytes_, mapped_bytes_ = 0;
  void* mapped_ = nullptr;
  void* data_ = nullptr;
  std::shared_ptr<std::atomic<std::size_t>> allocated_;
};

/// Work is complete when its call returns. Waiting for an event blocks the caller.
class HostStream final : public Stream {
 public:
  void wait(const Event& event) override { event.synchronize(); }
  void synchronize() override {}
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendOptions& options, const CpuOptions& cpu_options) : algorithms_(options.algorithms) {
    require(options.threads >= 0, ErrorCode::op_description, "threads must not be negative, found {}", options.threads);
    context_.threads = options.threads > 0 ? options.threads : threads_of_this_rank(options.local_size);
    memory_bytes_ = std::min(available_memory_bytes() / static_cast<std::size_t>(std::max(1, options.local_size)),
                             limit_of_process().free_bytes());
    context_.options = cpu_options;
    context_.algorithms = algorithms_.get();
    omp_set_num_threads(context_.threads);
  }

  std::string name() const override { return "cpu"; }
  DeviceInfo device() const override {
    DeviceInfo info;
    info.name = fmt::format("{}, {} thread{}, {}", processor_name(), context_.threads, context_.threads == 1 ? "" : "s",
                            product_instructions());
    info.memory_bytes = memory_bytes_;
    info.libraries = {product_library()};
    return info;
  }

  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override {
    require(!frozen_, ErrorCode::internal, "{}: {} bytes were requested inside a step, where nothing may be allocated",
            purpose, size_bytes);
    // The system maps pages on first touch. It would grant too much memory here, and kill the process in the first
    // step.
    const std::size_t held = *allocated_;
    require(held <= memory_bytes_ && size_bytes <= memory_bytes_ - held, ErrorCode::out_of_memory,
            "{}: {:.3f} GiB are needed, but {:.3f} GiB of the {:.3f} GiB that this rank may use are in use{}", purpose,
            gib(size_bytes), gib(held), gib(memory_bytes_), memory_limit_in_message());
    return std::make_unique<MappedMemory>(size_bytes, purpose, allocated_);
  }
  std::unique_ptr<Memory> allocate_host(std::size_t size_bytes, const std::string& purpose) override {
    return std::make_unique<MappedMemory>(size_bytes, purpose, allocated_);
  }
  void freeze() override { frozen_ = true; }
  void unfreeze() override { frozen_ = false; }

  std::unique_ptr<Stream> make_stream(StreamPriority) override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }
  std::unique_ptr<CapturedGraph> make_captured_graph() override { return std::make_unique<EagerGraph>(); }
  void copy(void* target, const void* source, std::size_t size_bytes, Stream&) override {
    if (size_bytes > 0) std::memmove(target, source, size_bytes);
  }
  void fill_zero(void* d_target, std::size_t size_bytes, Stream&) override {
    if (size_bytes > 0) std::memset(d_target, 0, size_bytes);
  }

  Layout activation_layout(const Shape& shape, DType dtype) const override {
    return choose_activation_layout(shape, dtype, context_, algorithms_.get());
  }
  std::string check_precision(Precision precision) const override {
    require(
        precision == Precision::fp32 || storage_type(precision) == DType::bf16, ErrorCode::not_supported,
        "the cpu backend computes in fp32 or bf16, not in {}: set precision=fp32 or precision=bf16; GPUs "
        "compute in it (`lockstep gpu-info` lists the GPUs here; `plan --device h200` plans for one that is not here)",
        lockstep::name(precision));
    if (precision == Precision::fp8)
      return "processors have no products in fp8: numbers are rounded to fp8 and multiplied in a wider type, which is "
             "slower than precision=bf16";
    if (precision == Precision::fp32 || product_type(DType::bf16) == DType::bf16) return "";
    return "this processor has no instructions for bf16: tensors are stored in bf16, which saves memory, and "
           "multiplied in fp32";
  }
  AutomaticPrecision automatic_precision(Workload workload) const override {
    const std::string instructions = product_instructions();
    const bool multiplies = workload == Workload::matrix_products;
    for (const ProcessorKind& kind : kFasterInBf16)
      if (kind.instructions == instructions)
        return {multiplies ? kind.of_products : kind.of_convolutions, instructions};
    return {Precision::fp32, instructions};
  }

  void fix_algorithms(bool are_fixed) override { context_.algorithms = are_fixed ? nullptr : algorithms_.get(); }
  std::unique_ptr<Op> make_op(const OpRequest& request) override { return cpu::make_op(request, context_); }

 private:
  CpuContext context_;
  std::shared_ptr<Algorithms> algorithms_;
  std::size_t memory_bytes_ = 0;
  std::shared_ptr<std::atomic<std::size_t>> allocated_ = std::make_shared<std::atomic<std::size_t>>(0);
  bool frozen_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendOptions& options, const CpuOptions& cpu_options) {
  require(options.device == "auto" || options.device == "cpu", ErrorCode::not_supported,
          "the cpu backend has no device {}; the device must be cpu", options.device);
  return std::make_unique<CpuBackend>(options, cpu_options);
}

}  // namespace lockstep::cpu
