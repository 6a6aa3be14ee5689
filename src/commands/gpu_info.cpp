// lockstep gpu-info: reports the GPUs of this machine, how they reach each other, and the libraries that training on
// them needs, or describes what is missing. Exit status 0: training on a GPU is possible here; 1: it is not.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "comm/world.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "lockstep/gpu_report.h"

namespace lockstep::commands {
namespace {

double gib(std::size_t size_bytes) { return static_cast<double>(size_bytes) / (1 << 30); }

nlohmann::ordered_json json_of(const GpuReport& report, const std::string& nccl) {
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array(), libraries = nlohmann::ordered_json::object();
  for (const GpuReport::Gpu& gpu : report.gpus)
    gpus.push_back({{"name", gpu.name},
                    {"uuid", gpu.uuid},
                    {"pci_bus", gpu.pci_bus},
                    {"compute_capability", gpu.compute_capability},
                    {"multiprocessors", gpu.multiprocessors},
                    {"clock_mhz", gpu.clock_mhz},
                    {"memory_bytes", gpu.memory_bytes},
                    {"used_memory_bytes", or_null(gpu.usage.memory_bytes)},
                    {"utilisation", or_null(gpu.usage.utilisation)},
                    {"nvlinks", or_null(gpu.nvlinks)}});
  for (const GpuReport::Library& library : report.libraries)
    libraries[library.name] = {{"version", library.version}, {"problem", library.problem}};
  return {{"usable", report.is_usable()},
          {"problem", report.problem},
          {"driver", report.driver},
          {"driver_cuda", report.driver_cuda},
          {"built_with_cuda", report.built_with_cuda},
          {"gpus", gpus},
          {"reaches", report.reaches},
          {"libraries", libraries},
          {"nccl", nccl}};
}

std::string reach_text(const std::vector<std::vector<bool>>& reaches) {
  const auto all = [](const std::vector<bool>& row) { return std::ranges::all_of(row, [](bool can) { return can; }); };
  if (reaches.size() < 2) return "";
  if (std::ranges::all_of(reaches, all)) return "Every GPU can access the memory of every other GPU (P2P).\n";
  std::string text = "GPUs (rows) that can access the memory of other GPUs (columns), P2P:\n    ";
  for (std::size_t b = 0; b < reaches.size(); ++b) text += fmt::format("{:>4}", b);
  for (std::size_t a = 0; a < reaches.size(); ++a) {
    text += fmt::format("\n{:>4}", a);
    for (const bool can : reaches[a]) text += can ? " yes" : "  no";
  }
  return text + "\n";
}

std::string gpu_text(std::size_t number, const GpuReport::Gpu& gpu) {
  std::string text =
      fmt::format("GPU {}: {}, {}, PCI {}\n  compute capability {}, {} multiprocessors at up to {:.0f} MHz, {:.1f} GiB",
                  number, gpu.name, gpu.uuid, gpu.pci_bus, gpu.compute_capability, gpu.multiprocessors, gpu.clock_mhz,
                  gib(gpu.memory_bytes));
  if (gpu.usage.memory_bytes) text += fmt::format(", {:.1f} GiB in use", gib(*gpu.usage.memory_bytes));
  if (gpu.usage.utilisation) text += fmt::format(", busy {:.0f} % of the time", 100 * *gpu.usage.utilisation);
  if (gpu.nvlinks) text += fmt::format(", {} NVLinks", *gpu.nvlinks);
  return text + "\n";
}

std::string text_of(const GpuReport& report, const std::string& nccl) {
  std::string text = fmt::format("Number of GPUs: {}\n", report.gpus.size());
  if (report.gpus.empty()) return text + fmt::format("No GPU can be used: {}.\n", report.problem);
  text += fmt::format("NVIDIA driver {}, for CUDA {}; this program was built with CUDA {}\n",
                      report.driver.empty() ? "(unknown version)" : report.driver, report.driver_cuda,
                      report.built_with_cuda);
  for (std::size_t i = 0; i < report.gpus.size(); ++i) text += gpu_text(i, report.gpus[i]);
  text += reach_text(report.reaches);
  for (const GpuReport::Library& library : report.libraries)
    text += library.version.empty() ? fmt::format("{} is missing: {}\n", library.name, library.problem)
                                    : fmt::format("{} {}\n", library.name, library.version);
  text += nccl + "\n";
  if (!report.is_usable()) text += "Training on a GPU is not possible here; use device=cpu.\n";
  return text;
}

}  // namespace

void add_gpu_info(CLI::App& app, Run& run) {
  auto json = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "gpu-info", "Report the GPUs of this machine and their libraries; exit status 1 if none can be used");
  add_json(*command, *json);
  set_run(*command, run, [json] {
    const GpuReport found = gpu_report();
    const std::string nccl = comm::describe_nccl();
    report(*json, json_of(found, nccl), text_of(found, nccl));
    return found.is_usable() ? kExitDone : kExitFailed;
  });
}

}  // namespace lockstep::commands
