// The verdicts on software, launch and limits, derived from values, and what this machine reports.
#include "doctor/system.h"

#include <gtest/gtest.h>

#include "test/doctor/support.h"

namespace lockstep::doctor {
namespace {

using Verdicts = std::vector<std::string>;

SystemFacts good() {
  SystemFacts facts;
  facts.versions = {{"lockstep", "0.1.0 (abc)"}, {"MPI", "Open MPI v4.1.4"}, {"kernel", "6.1"}, {"NCCL", "NCCL 2.28"}};
  facts.environment = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}, {"PMIX_RANK", "0"}};
  facts.driver_cuda = "13.0";
  facts.built_with_cuda = "12.8";
  facts.computes_on_gpu = facts.has_nccl = facts.has_rdma = true;
  facts.open_files = 1024;
  facts.locked_memory_bytes = -1;
  facts.shm_free_bytes = 64e9;
  return facts;
}

template <typename Change>
std::vector<Check> check_with(const Change& change) {
  std::vector<SystemFacts> systems(4, good());
  change(systems);
  const auto checks = check_systems(places_on(2, 2), systems);
  EXPECT_EQ(without_remedy(checks), Verdicts());
  return checks;
}
/// The checks that do not pass, as "STATUS NAME WHERE".
template <typename Change>
Verdicts found_with(const Change& change) {
  Verdicts found;
  for (const Check& check : check_with(change))
    if (check.status != Status::pass) found.push_back(name(check.status) + " " + check.name + " " + check.scope);
  return found;
}
using Systems = std::vector<SystemFacts>;

TEST(SystemChecks, PassForEqualNodes) {
  EXPECT_EQ(found_with([](Systems&) {}), Verdicts());
}
TEST(SystemChecks, FailForAnotherBuild) {
  EXPECT_EQ(found_with([](Systems& all) { all[2].versions["lockstep"] = "0.1.0 (def)"; }),
            Verdicts({"fail versions rank 2 on node2"}));
  EXPECT_EQ(found_with([](Systems& all) { all[3].versions.erase("NCCL"); }),
            Verdicts({"fail versions rank 3 on node2"}));
  EXPECT_EQ(found_with([](Systems& all) { all[2].versions["kernel"] = "6.2"; }),
            Verdicts({"warn versions rank 2 on node2"}));
}
TEST(SystemChecks, CompareTheLaunchWithTheAllocation) {
  EXPECT_EQ(found_with([](Systems& all) { all[0].environment["SLURM_NTASKS"] = "8"; }),
            Verdicts({"warn launch all ranks"}));
  EXPECT_EQ(found_with([](Systems& all) { all[3].environment["SLURM_JOB_ID"] = "8"; }),
            Verdicts({"fail launch all ranks"}));
}
TEST(SystemChecks, FailForAnOldDriver) {
  EXPECT_EQ(found_with([](Systems& all) { all[1].driver_cuda = "11.8"; }), Verdicts({"fail CUDA rank 1 on node1"}));
  EXPECT_EQ(found_with([](Systems& all) { all[1].driver_cuda = "12.2"; }), Verdicts());
  EXPECT_EQ(found_with([](Systems& all) { all[1].missing_libraries = {"cuDNN: it is missing"}; }),
            Verdicts({"fail CUDA rank 1 on node1"}));
}
TEST(SystemChecks, FailWithoutNccl) {
  EXPECT_EQ(found_with([](Systems& all) {
              for (SystemFacts& system : all) system.has_nccl = false;
            }),
            Verdicts({"fail NCCL all ranks"}));
}
TEST(SystemChecks, FailForLowLimits) {
  EXPECT_EQ(found_with([](Systems& all) { all[2].open_files = 256; }), Verdicts({"fail open files node2"}));
  EXPECT_EQ(found_with([](Systems& all) { all[2].locked_memory_bytes = 65536; }),
            Verdicts({"fail locked memory node2"}));
  EXPECT_EQ(found_with([](Systems& all) {
              all[2].locked_memory_bytes = 65536;
              all[2].has_rdma = false;
            }),
            Verdicts());
  EXPECT_EQ(found_with([](Systems& all) { all[2].shm_free_bytes = 1e9; }), Verdicts({"warn /dev/shm node2"}));
  EXPECT_EQ(found_with([](Systems& all) { all[2].shm_free_bytes = 64e6; }), Verdicts({"fail /dev/shm node2"}));
}

TEST(MeasuredSystem, HasVersionsAndLimits) {
  const SystemFacts facts = measure_system(false);
  EXPECT_TRUE(facts.versions.contains("lockstep"));
  EXPECT_TRUE(facts.versions.contains("MPI"));
  EXPECT_TRUE(facts.versions.contains("kernel"));
  EXPECT_NE(facts.open_files, 0);
  EXPECT_TRUE(facts.shm_free_bytes);
}

}  // namespace
}  // namespace lockstep::doctor
