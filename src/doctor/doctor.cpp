#include "doctor/doctor.h"

#include <algorithm>
#include <iterator>

#include "doctor/device.h"
#include "doctor/folder.h"
#include "doctor/host.h"
#include "doctor/system.h"

namespace lockstep::doctor {
namespace {

void append(std::vector<Check>& to, std::vector<Check> checks) { std::ranges::move(checks, std::back_inserter(to)); }

}  // namespace

Report examine(World& world, Backend* backend, const std::string& problem, const Options& options) {
  const std::vector<Place> places = gather(world, Place{.rank = world.rank(),
                                                        .node = world.node(),
                                                        .local_rank = world.local_rank(),
                                                        .local_size = world.local_size(),
                                                        .host = world.host()});
  Report report;
  // This is first, while the job itself does not compute anything.
  const std::vector<HostFacts> hosts =
      gather(world, measure_host(world, backend == nullptr ? "" : backend->device().pci_bus));
  const std::vector<DeviceFacts> devices = gather(world, measure_device(backend, problem, world));
  append(report.checks, check_devices(places, devices));
  append(report.checks, check_hosts(places, hosts));
  report.slowest = find_slowest(places, devices);
  // All-reduces need the devices of all ranks.
  if (!options.examines_links) {
    report.notes.emplace_back("The links between ranks were not measured.");
  } else if (std::ranges::all_of(devices, [](const DeviceFacts& device) { return device.problem.empty(); })) {
    const std::vector<LinkFacts> links =
        gather(world, measure_links(world, *backend, places, options.effort, report.notes));
    append(report.checks, check_links(places, links, devices));
  } else if (world.size() > 1) {
    report.notes.emplace_back("The links between ranks were not measured, since a device failed.");
  }
  for (const auto& [folder, use] :
       {std::pair(options.run_folder, FolderUse::run), {options.data_folder, FolderUse::data}})
    if (!folder.empty())
      append(report.checks,
             check_folder(places, gather(world, measure_folder(world, folder, use, options.effort)), use));
  const bool computes_on_gpu = backend != nullptr && backend->memory_space() == MemorySpace::device;
  append(report.checks, check_systems(places, gather(world, measure_system(computes_on_gpu))));
  return report;
}

}  // namespace lockstep::doctor
